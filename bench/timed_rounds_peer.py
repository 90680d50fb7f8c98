"""A peer of bench.timed_rounds: FOLDER KIND LENGTH EPOCHS SLOWER. Writes the times of its steps."""

import hashlib
import sys
import time
from pathlib import Path
from threading import Event
from typing import Any

import torch

import p2p
from bench.timed_rounds import GLOBAL_BATCH, NUM_SAMPLES, STEP_S

folder, (kind, length, epochs, slower) = Path(sys.argv[1]), sys.argv[2:]
never = Event()
torch.set_num_threads(1)
torch.manual_seed(0)
inputs = torch.randn(NUM_SAMPLES, 16)
model = torch.nn.Linear(16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
when: dict[str, Any] = {"round_s": float(length)} if kind == "round_s" else {"inner_steps": int(length)}
with p2p.join() as peer, (folder / f"{peer.peer_id}.steps").open("w", buffering=1) as steps:
    print(peer.peer_id, flush=True)
    wrapped = p2p.DiLoCo(peer, model, optimizer, state_digest="all")
    step_s = STEP_S * (int(slower) if peer.rank == 0 else 1)
    dataset = torch.utils.data.TensorDataset(inputs)
    loader = peer.loader(dataset, global_batch=GLOBAL_BATCH, epochs=int(epochs), **when)
    for _ in loader.epochs():
        for (x,) in loader:
            loss = (wrapped(x) - x[:, :4]).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            if not (folder / "quick").exists():
                never.wait(step_s)
            optimizer.step()
            steps.write(f"{time.monotonic()} {peer.world_size}\n")
    digest = hashlib.sha1(model.weight.detach().numpy().tobytes()).hexdigest()
    (folder / f"{peer.peer_id}.end").write_text(digest)
