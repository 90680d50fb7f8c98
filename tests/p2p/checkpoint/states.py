"""States as `pack` of training/state/replica_state.py creates them, and checkpoints of them."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import nn

from p2p.checkpoint.manifest import Ancestry, Manifest
from p2p.checkpoint.settings import Checkpoint
from p2p.checkpoint.writer import Writer, child_of
from p2p.net.parcels import PackedState
from p2p.training.state.replica_state import pack

RUN = "ab" * 16
SAMPLES = [["a"], 12, [["90 samples", 96, ((3, 4),), 12, (), ()]]]
"""An example of a packed `SampleTracker`."""


class Odd:
    """An object whose state has all types that a tree may contain."""

    def state_dict(self) -> dict[str, object]:
        return {
            "bytes": b"\x00\xff",
            "nothing": None,
            "floats": (float("inf"), float("-inf"), 0.1, -0.0),
            "by number": {0: [True, 2**40], 7: {}},
            "$": {"$tensor": torch.arange(3, dtype=torch.int16)},
            "empty": torch.empty(0, 4),
            "complex": torch.tensor([1 + 2j], dtype=torch.complex128),
        }

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        self.loaded = state_dict


def make_state(seed: int = 0, width: int = 3) -> PackedState:
    """The state of a model in channels_last, partly bfloat16, with a used optimizer, and `Odd`."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Conv2d(2, width, 2), nn.BatchNorm2d(width)).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    model.append(nn.Linear(1, 1).to(torch.bfloat16))
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    state = pack(dict(model.state_dict()), [optimizer, Odd()], SAMPLES)
    return PackedState(state.tree, [bytes(part) for part in state.tensors])


def manifest(step: int, ancestry: Ancestry | None = None) -> Manifest:
    """The manifest of a state that is not written yet."""
    return Manifest(
        ancestry=ancestry or Ancestry(RUN, 1),
        step=step,
        epochs=(0,),
        swarm="test",
        lineage="cd" * 16,
        last_step=step + 3,
        num_bytes=0,
        tree=None,
        digests={},
    )


def written(folder: Path, steps: Sequence[int], *, start: int = 1, keep: int | None = None, **other: str) -> Writer:
    """Write checkpoints of one start of a run, one after the other; returns the writer."""
    writer = Writer(Checkpoint(folder, every=1, keep=keep), f"peer{start}")
    for step in steps:
        ancestry = child_of(writer.written, Ancestry(other.get("run", RUN), start))
        writer.begin(make_state(step), manifest(step, ancestry))
        writer.wait()
        assert not writer.failure
    return writer


def files_of(path: Path) -> Iterator[Path]:
    """Files of a checkpoint."""
    yield from sorted(path.iterdir())
