"""A CUDA device with the interface of the stand-in, for campaigns. Stages are delayed as drawn by the seed."""

import random
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from typing import Any, Final

import numpy as np
import torch

from collectives import Array
from p2p.device import HOST, Device, Mark
from p2p.staging import cuda_devices, device_of

LATE_CYCLES: Final = 20_000_000
"""About 10 ms: longer than the work that follows."""


class _Aliased:
    """An alias of a tensor's memory, unknown to the tensor."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.__cuda_array_interface__ = dict(tensor.__cuda_array_interface__)


class Gpu:
    """The first device of the process."""

    where = "cuda:0"
    refuses_every = 0

    def __init__(self, seed: int) -> None:
        self.begin(seed)
        found, why = cuda_devices()
        if not found:
            import pytest  # not needed by peers

            pytest.skip(f"no GPU: {why}")
        self._device = found[0].device
        self.numerics, self.adder = self._device.numerics, copy(self._device.adder)
        adder: Any = self.adder
        adder.least_bytes = 1  # campaigns have short sums
        self.num_copies = self.num_pins = 0
        self.pinned: dict[int, int] = {}
        """Begin and end of each piece, by address."""
        self.watched: Callable[[], Iterable[torch.Tensor]] = tuple

    def begin(self, seed: int) -> None:
        """From now on delay one stage, as drawn by `seed`."""
        self._late = random.Random(seed).choice(["mark", "fetch", "store", "none"])

    def device_of(self, tensor: Any) -> Device:
        return HOST if device_of(tensor) is HOST else self

    def check(self) -> None:
        self._device.check()

    def zeros(self, count: int, like: Any) -> Any:
        return self._device.zeros(count, like)

    def current_stream(self) -> Hashable:
        return self._device.current_stream()

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

    def order_after(self, mark: Mark) -> None:
        self._device.order_after(mark)

    def pin(self, memory: Array) -> None:
        begin = memory.ctypes.data
        self.num_pins += 1
        self._device.pin(memory)
        if self.refuses_every and self.num_pins % self.refuses_every == 0:
            try:
                self._device.pin(memory)  # CUDA refuses this
            finally:
                self._device.unpin(memory)
        self.pinned[begin] = begin + memory.nbytes

    def unpin(self, memory: Array) -> None:
        self._device.unpin(memory)
        self.pinned.pop(memory.ctypes.data)

    @staticmethod
    def empty(count: int, dtype: np.dtype[Any]) -> Array:
        """An array of pinned memory, without which copies would not be asynchronous."""
        return torch.empty(count * dtype.itemsize, dtype=torch.uint8, pin_memory=True).numpy().view(dtype)

    def wait_for_copies(self) -> None:
        self._device.wait_for_copies()

    def drain(self) -> None:
        self._device.wait_for_copies()

    def lose(self) -> None:
        """Let a kernel write to unmapped memory: all later uses of the device by this process raise."""
        gone = torch.ones(1 << 24, device=self.where)
        alias = torch.as_tensor(_Aliased(gone), device=self.where)
        gone.untyped_storage().resize_(0)
        torch.cuda.empty_cache()
        alias.add_(1)

    @contextmanager
    def refuses_waits(self) -> Iterator[None]:
        """In this block synchronising calls of torch raise, in all threads."""
        try:
            torch.cuda.set_sync_debug_mode("error")
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")

    def _delay(self, stage: str) -> None:
        if self._late == stage:
            torch.cuda._sleep(LATE_CYCLES)  # type: ignore[no-untyped-call]
