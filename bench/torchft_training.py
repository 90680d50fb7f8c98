"""The victim of `bench.elastic --against torchft`: small_training.py's model, by torchft's DDP and Gloo.

    torchft_training.py FOLDER LIGHTHOUSE    # a replica group of one process
    torchft_training.py --lighthouse MS      # prints its address; MS: timeout of a replica's heartbeat

Each worker writes a file in FOLDER: a line per committed step, as ddp_training.py. It commits with the available
replicas.
"""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torchft
import xxhash
from torch import nn
from torch.nn import functional
from torchft.coordination import LighthouseServer

WIDTH, NUM_LAYERS, NUM_SAMPLES, GLOBAL_BATCH = 512, 4, 4096, 16
"""As in small_training.py."""

HERE = "127.0.0.1"
LIGHTHOUSE = {"min_replicas": 1, "join_timeout_ms": 60_000, "quorum_tick_ms": 100}
"""Defaults of `torchft_lighthouse`."""


def train(folder: Path, lighthouse: str) -> None:
    """Train until the process is ended."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    inputs, targets = torch.randn(NUM_SAMPLES, WIDTH), torch.randn(NUM_SAMPLES, WIDTH)
    layers = [layer for _ in range(NUM_LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    store: Any = dist.TCPStore(HERE, 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=timedelta(seconds=10)),
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        min_replica_size=1,
        replica_id=f"worker-{os.getpid()}-",
        rank=0,
        world_size=1,
        store_addr=HERE,
        store_port=store.port,
        lighthouse_addr=lighthouse,
        hostname=HERE,
    )
    parallel = torchft.DistributedDataParallel(manager, model, bucket_cap_mb=1)
    with (folder / f"{os.getpid()}.steps").open("w", buffering=1) as file:
        while True:
            manager.start_quorum()
            optimizer.zero_grad()
            rank, size = manager.participating_rank() or 0, max(1, manager.num_participants())
            first = (manager.current_step() + 1) * GLOBAL_BATCH
            mine = [(first + index) % NUM_SAMPLES for index in range(rank, GLOBAL_BATCH, size)]
            loss: Any = functional.mse_loss(parallel(inputs[mine]), targets[mine])
            loss.backward()
            if not manager.should_commit():
                continue
            optimizer.step()
            digest = xxhash.xxh3_64()
            for parameter in model.parameters():
                digest.update(parameter.detach().numpy().tobytes())
            print(rank, manager.current_step(), time.monotonic_ns(), digest.hexdigest(), file=file)


def serve(heartbeat_ms: int) -> None:
    """Run the lighthouse until stdin ends."""
    lighthouse = LighthouseServer(bind=f"{HERE}:0", heartbeat_timeout_ms=heartbeat_ms, **LIGHTHOUSE)
    print(lighthouse.address(), flush=True)
    sys.stdin.read()
    lighthouse.shutdown()


if __name__ == "__main__":
    if sys.argv[1] == "--lighthouse":
        serve(int(sys.argv[2]))
    else:
        train(Path(sys.argv[1]), sys.argv[2])
