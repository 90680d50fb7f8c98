"""A CUDA device as the campaigns use the stand-in. Each stage is late by as many cycles as the seed draws."""

import random
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

import pytest
import torch

from collectives import Array
from p2p.device import HOST, Device, Mark
from p2p.staging import cuda_devices, device_of

LATE_CYCLES: Final = 20_000_000
"""Some 10 ms: longer than what follows takes."""


class Gpu:
    """The first device of the process."""

    where = "cuda:0"
    refuses_every = 0

    def __init__(self, seed: int) -> None:
        self.begin(seed)
        found, why = cuda_devices()
        if not found:
            pytest.skip(f"no GPU: {why}")
        self._device = found[0].device
        self.numerics, self.adder = self._device.numerics, self._device.adder
        self.num_copies = 0
        self.pinned: set[int] = set()
        self.watched: Callable[[], Iterable[torch.Tensor]] = tuple

    def begin(self, seed: int) -> None:
        """Be late as `seed` draws from now on, in one stage."""
        self._late = random.Random(seed).choice(["mark", "fetch", "store", "none"])

    def device_of(self, tensor: Any) -> Device:
        return HOST if device_of(tensor) is HOST else self

    def check(self) -> None:
        self._device.check()

    def zeros(self, count: int, like: Any) -> Any:
        return self._device.zeros(count, like)

    def stream(self) -> Hashable:
        return self._device.stream()

    def on(self, stream: Hashable) -> AbstractContextManager[object]:
        make: Any = torch.cuda.Stream
        return self._device.on(make() if isinstance(stream, str) else stream)

    def mark(self) -> Mark:
        self._delay("mark")
        return self._device.mark()

    def fetch(self, source: Any, into: Array, after: Sequence[Mark]) -> Mark:
        self._delay("fetch")
        self.num_copies += 1
        return self._device.fetch(source, into, [*after, self._device.mark()] if self._late == "fetch" else after)

    def store(self, source: Array, into: Any, after: Sequence[Mark]) -> Mark:
        self._delay("store")
        self.num_copies += 1
        return self._device.store(source, into, [*after, self._device.mark()] if self._late == "store" else after)

    def hold(self, mark: Mark) -> None:
        self._device.hold(mark)

    def pin(self, memory: Array) -> None:
        self._device.pin(memory)
        self.pinned.add(memory.ctypes.data)

    def unpin(self, memory: Array) -> None:
        self._device.unpin(memory)
        self.pinned.remove(memory.ctypes.data)

    def settle(self) -> None:
        self._device.settle()

    def drain(self) -> None:
        self._device.settle()

    @contextmanager
    def refuses_waits(self) -> Iterator[None]:
        """What torch would wait for raises in this block, in all threads."""
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")

    def _delay(self, stage: str) -> None:
        if self._late == stage:
            torch.cuda._sleep(LATE_CYCLES)  # type: ignore[no-untyped-call]
