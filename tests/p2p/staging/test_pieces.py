"""Copies in several pieces, on a device whose copies keep their memory alive as those of a GPU do."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from collectives import Array
from p2p.device import Mark, _Host
from p2p.staging import Staged
from p2p.training.tensors.staged_buckets import make_staged_bucket


class Kept:
    """The mark of a copy that is over immediately, and keeps its tensor until that was observed."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor: torch.Tensor | None = tensor

    def is_over(self) -> bool:
        self.wait()
        return True

    def wait(self) -> None:
        self.tensor = None


class Keeping(_Host):
    """A device that keeps the marks of all copies."""

    def __init__(self) -> None:
        self.marks: list[Kept] = []

    def fetch(self, source: Any, into: Array, after: Sequence[Mark]) -> Mark:
        into.view(np.uint8)[...] = source.view(torch.uint8).numpy()
        return self._copied(source)

    def store(self, source: Array, into: Any, after: Sequence[Mark]) -> Mark:
        into.view(torch.uint8).copy_(torch.from_numpy(source.view(np.uint8)))
        return self._copied(into)

    def _copied(self, tensor: torch.Tensor) -> Mark:
        self.marks.append(Kept(tensor))
        return self.marks[-1]


def halves(array: Array) -> Sequence[slice]:
    middle = len(array) // 2
    return (slice(0, middle), slice(middle, len(array)))


def test_a_buffer_that_was_stored_in_pieces_is_used_again_in_the_next_step() -> None:
    """Otherwise each step would allocate another buffer on the device, although the script keeps none."""
    device, parameter = Keeping(), nn.Parameter(torch.zeros(6))
    bucket = make_staged_bucket([parameter], None, make_staged=lambda: Staged(device, halves))
    flat = bucket.flat
    for step in range(3):
        bucket.add(0, torch.full((6,), float(step)), 1.0)
        assert bucket.flat is flat, step
        bucket.fetch()
        bucket.wait()
        assert (bucket.operation.input[:6] == step).all()
        bucket.operation.result[...] = 1
        assert bucket.operation.on_complete is not None
        bucket.operation.on_complete(b"a view")
        (given,) = bucket.result_views()
        assert given is not None and given.tolist() == [1.0] * 6
        del given
        bucket.begin_step()
    assert device.marks


def test_what_a_script_has_kept_of_a_buffer_stays_as_it_is() -> None:
    bucket = make_staged_bucket([nn.Parameter(torch.zeros(6))], None, make_staged=lambda: Staged(Keeping(), halves))
    bucket.add(0, torch.ones(6), 1.0)
    bucket.fetch()
    bucket.wait()
    bucket.operation.result[...] = 2
    assert bucket.operation.on_complete is not None
    bucket.operation.on_complete(b"a view")
    (kept,) = bucket.result_views()
    bucket.begin_step()
    bucket.add(0, torch.ones(6), 1.0)
    assert kept is not None and kept.tolist() == [2.0] * 6
