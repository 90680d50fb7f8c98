"""The peer of bench/checkpoint.py: trains a model with a state of the given size, and times each step.

python checkpoint_peer.py FOLDER MEGABYTES EVERY CHECKPOINTS
"""

import json
import sys
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

import p2p

WIDTH: Final = 2048
BYTES_PER_PARAMETER: Final = 12
"""A parameter with the two moments of AdamW."""


def main(folder: Path, num_bytes: int, every: int, num_checkpoints: int) -> None:
    """Train until `num_checkpoints` were written, and one more interval."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    num_layers = max(1, round(num_bytes / (BYTES_PER_PARAMETER * WIDTH * WIDTH)))
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(num_layers)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    inputs = torch.randn(64, WIDTH)
    steps = []
    with p2p.join() as peer:
        checkpoint = p2p.Checkpoint(folder / "checkpoints", every=every, keep=2)
        parallel = p2p.DataParallel(peer, model, optimizer, checkpoint=checkpoint)
        keeper: Any = peer._session.membership.keeper
        before = now()
        for step in range(1, every * (num_checkpoints + 1)):
            optimizer.zero_grad()
            loss: Any = parallel(inputs).square().mean()
            loss.backward()
            optimizer.step()
            after = now()
            is_writing = not keeper._writer.is_idle  # listing the folder would wait for the disk
            steps.append((step - 1, *(after - before), is_writing))  # the copy is of the step before
            before = after
    num_bytes = num_layers * BYTES_PER_PARAMETER * WIDTH * WIDTH
    source, target = np.ones(num_bytes, np.uint8), np.ones(num_bytes, np.uint8)
    memcpy = []
    for _ in range(7):
        before = now()
        np.copyto(target, source)
        memcpy.append(now() - before)
    clock_s, processor_s = np.array(memcpy).T.tolist()
    measured = {"bytes": num_bytes, "steps": steps, "memcpy_clock_s": clock_s, "memcpy_processor_s": processor_s}
    (folder / "measured.json").write_text(json.dumps(measured))


def now() -> npt.NDArray[np.float64]:
    """Wall-clock time, and processor time of this thread."""
    return np.array([time.perf_counter(), time.thread_time()])


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) * 10**6, int(sys.argv[3]), int(sys.argv[4]))
