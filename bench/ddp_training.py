"""The victim of `bench.elastic --against torchrun`: small_training.py's model, by DDP and Gloo, with checkpoints.

    torchrun --standalone --nproc-per-node 3 ddp_training.py FOLDER EVERY

Continues from the checkpoint in FOLDER, which rank 0 writes every EVERY steps. Each process writes a file there: a line
per step with its rank, the step, the monotonic clock, and a digest of the parameters.
"""

import ctypes
import faulthandler
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import xxhash
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from p2p.launch.children import PR_SET_PDEATHSIG

WIDTH, NUM_LAYERS, NUM_SAMPLES, GLOBAL_BATCH = 512, 4, 4096, 16
"""As in small_training.py."""


def main(folder: Path, every: int) -> None:
    """Train until the process is ended."""
    faulthandler.register(signal.SIGUSR1)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)  # ends with torchrun, however that ends
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    inputs, targets = torch.randn(NUM_SAMPLES, WIDTH), torch.randn(NUM_SAMPLES, WIDTH)
    layers = [layer for _ in range(NUM_LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    model = nn.Sequential(*layers)
    parallel = DistributedDataParallel(model, bucket_cap_mb=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    step, path = 0, folder / "checkpoint.safetensors"
    if path.is_file():
        step = load(path, model, optimizer)
    with (folder / f"{os.getpid()}.steps").open("w", buffering=1) as file:
        while True:
            step += 1
            mine = [(step * GLOBAL_BATCH + index) % NUM_SAMPLES for index in range(rank, GLOBAL_BATCH, size)]
            loss: Any = functional.mse_loss(parallel(inputs[mine]), targets[mine])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            digest = xxhash.xxh3_64()
            for parameter in model.parameters():
                digest.update(parameter.detach().numpy().tobytes())
            print(rank, step, time.monotonic_ns(), digest.hexdigest(), file=file)
            if rank == 0 and step % every == 0:
                save(path, step, model, optimizer)


def save(path: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write a checkpoint atomically: a reader sees this one or the previous one."""
    named = {f"model.{name}": each.detach() for name, each in model.named_parameters()}
    named |= {f"momentum.{name}": optimizer.state[each]["momentum_buffer"] for name, each in model.named_parameters()}
    draft = path.with_suffix(".draft")
    save_file({**named, "step": torch.tensor(step)}, draft)
    draft.replace(path)


def load(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load a checkpoint; returns the step after which it was written."""
    named = load_file(path)
    with torch.no_grad():
        for name, each in model.named_parameters():
            each.copy_(named[f"model.{name}"])
            optimizer.state[each]["momentum_buffer"] = named[f"momentum.{name}"].clone()
    return int(named["step"])


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
