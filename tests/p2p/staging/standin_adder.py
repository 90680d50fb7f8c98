"""Sums of the stand-in. A sum runs as late as its copies, in the order of the calls, and reads its sources then.

1. Until then its target holds poison, unless work in progress reads it.
2. Its target must not be written by others from its call until it is over: a sum into the region of a later operation
   is refused.
3. Sources and target are in one piece of pinned memory each.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from collectives import Array, Reduction
from collectives.tensor_sum import add_tensors, can_add, torch_type
from p2p.device import Mark, MemoryShort

LEAST_HASTE = 0.2
"""Least probability of progress, since sums are polled, not waited for."""


class Unordered(AssertionError):
    """An action does not come after an action that it depends on."""


@dataclass(eq=False)
class Sum:
    """The mark of a sum."""

    device: Any
    sources: Sequence[Array]
    into: Array
    reduction: Reduction
    dtype: np.dtype[Any]
    completes: bool
    found: bytes | None = None
    """Bytes of the target at the call; None: another sum is to write it before."""
    stream = "add"
    has_run = is_done = is_held = False
    may_run = True

    @property
    def used(self) -> Sequence[Array]:
        return *self.sources, self.into

    def is_over(self) -> bool:
        self.device.check_is_there()
        if not self.is_done and self.device.random.random() < max(self.device.haste, LEAST_HASTE):
            self.device.progress()
        return self.is_done

    def wait(self) -> None:
        with self.device._lock:
            while not self.is_done:
                self.device.progress()

    def run(self) -> None:
        self._check()
        parts = (torch.from_numpy(each.view(np.uint8).copy()).view(torch_type(self.dtype)) for each in self.sources)
        found = add_tensors(parts, self.reduction, completes=self.completes)
        self.into.view(np.uint8)[...] = found.view(torch.uint8).numpy()
        self.found, self.has_run = self.into.tobytes(), True

    def finish(self) -> None:
        if next(self.device.users_of(self.into), None) is None:  # otherwise that work checks it
            self._check()
        self.is_done, self.sources, self.into = True, (), np.empty(0, np.uint8)

    def _check(self) -> None:
        if self.found is not None and self.into.tobytes() != self.found:
            self.device.refused.append(Unordered(f"a sum of {self.into.nbytes} bytes lands where others have written"))
            raise self.device.refused[-1]


class StandInAdder:
    """The adder of one stand-in."""

    least_bytes = 64

    def __init__(self, device: Any) -> None:
        self.device, self.num_sums = device, 0
        self.room = sys.maxsize
        """Device memory for each sum, in bytes."""

    def supports(self, reduction: Reduction, dtype: np.dtype[Any]) -> bool:
        return can_add(reduction, dtype)

    def add(
        self, sources: Sequence[Array], into: Array, reduction: Reduction, dtype: np.dtype[Any], *, completes: bool
    ) -> Mark:
        device = self.device
        device.check_is_there()
        if self.room < into.nbytes:
            raise MemoryShort(into.nbytes, self.room)
        with device._lock:
            for each in (*sources, into):
                device.check_pieces(each, is_pinned=True)
            found = Sum(device, sources, into, reduction, dtype, completes)
            is_read = any(np.may_share_memory(each, into) for each in sources)
            before = [*device.users_of(into)]
            if not before and not is_read:
                into.view(np.uint8).fill(0xFF)
            if not any(np.may_share_memory(each.into, into) for each in before):
                found.found = into.tobytes()
            device._queues["add"].append(found)
            self.num_sums += 1
            return found

    def drain(self) -> None:
        with self.device._lock:
            while self.device._queues["add"]:
                self.device.progress()
