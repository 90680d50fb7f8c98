"""Staging: tensors of a device are fetched into host memory for an operation, and their results stored back."""

import sys
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from collectives import Array

from .device import HOST, Device, FoundDevice, Mark, failures_named
from .errors import DeviceLost


def device_of(tensor: Any) -> Device:
    """The device of a tensor; `HOST` for all other values, which are refused elsewhere if they cannot be used."""
    torch = sys.modules.get("torch")  # a caller with a tensor has imported it
    if torch is None or not isinstance(tensor, torch.Tensor) or tensor.device.type != "cuda":
        return HOST
    from .cuda import cuda_device  # the driver is not used before that

    return cuda_device(tensor.device.index)


def cuda_devices() -> tuple[tuple[FoundDevice, ...], str]:
    """All CUDA devices visible to this process; and why there are none, if so. Imports torch."""
    from .cuda import found

    return found()


Cut = Callable[[Array], Sequence[slice]]
"""An array as pieces, each of which lies in one piece of pinned memory, or in none."""


def whole(array: Array) -> Sequence[slice]:
    """The array as one piece."""
    return (slice(0, len(array)),)


class Staged:
    """Staging of one operation at a time: fetched, submitted, stored, held, in this order.

    Once `is_ready`, the input of the operation may be read, and its result written, by others than the device.

    All but `check` raise DeviceLost if the device raises an error.
    """

    def __init__(
        self, device: Device, cut: Cut = whole, told: Callable[[DeviceLost], None] = lambda error: None
    ) -> None:
        """Without open copies.

        Args:
            device: of the tensors.
            cut: cuts host memory for each copy.
            told: called with an error of the device before it is raised.
        """
        self._device, self._cut, self._told = device, cut, told
        self._fetched: list[Mark] = []
        self._stored: list[Mark] = []
        """Marks of pieces, which keep their memory alive until they are found to be over."""

    def check(self) -> None:
        """As `Device` does."""
        self._device.check()

    def zeros(self, count: int, like: Any) -> Any:
        """As `Device` does."""
        with self._failures_told():
            return self._device.zeros(count, like)

    def current_stream(self) -> Hashable:
        """As `Device` does."""
        return self._device.current_stream()

    def order_after_stream(self, stream: Hashable) -> None:
        """Have later work of the current stream wait for the work submitted to `current_stream` so far."""
        device = self._device
        if stream is not None and stream != device.current_stream():
            with self._failures_told():
                with device.on(stream):
                    mark = device.mark()
                device.order_after(mark)

    @contextmanager
    def beside(self, stream: Hashable) -> Iterator[None]:
        """Context in which `current_stream` is current: it waits for the current one, which then waits for it."""
        here = self._device.current_stream()
        if stream == here:
            yield
            return
        with self._device.on(stream):
            self.order_after_stream(here)
            yield
        self.order_after_stream(stream)

    def fetch(self, *pairs: tuple[Any, Array]) -> None:
        """Begin to copy tensors, after the current work of the stream, into host memory."""
        device, cut = self._device, self._cut
        with self._failures_told():
            self._fetched = [
                device.fetch(source[piece], into[piece], after=[device.mark()])
                for source, into in pairs
                for piece in cut(into)
            ]

    def is_ready(self) -> bool:
        """Whether no copy is open, neither of fetched tensors nor of the result of the previous operation."""
        with self._failures_told():
            return all(mark.is_over() for mark in (*self._stored, *self._fetched))

    def wait(self) -> None:
        """Wait until it is ready. No copy keeps any memory alive then."""
        with self._failures_told():
            for mark in (*self._stored, *self._fetched):
                mark.wait()

    def store(self, source: Array, into: Any) -> None:
        """Begin to copy the result; the fetched input is not needed any more."""
        with self._failures_told():
            self._stored = [mark for mark in self._stored if not mark.is_over()]
            for piece in self._cut(source):
                self._stored.append(self._device.store(source[piece], into[piece], after=[self._device.mark()]))

    def order_after_stores(self) -> None:
        """Make the stored results visible to later work of the current stream."""
        with self._failures_told():
            for mark in self._stored:
                self._device.order_after(mark)

    @contextmanager
    def _failures_told(self) -> Iterator[None]:
        try:
            with failures_named():
                yield
        except DeviceLost as error:
            self._told(error)
            raise


def flat_of(tensor: Any) -> Any:
    """A contiguous tensor as a flat one that can be viewed as bytes: a single element may have any stride."""
    return tensor.as_strided((tensor.numel(),), (1,))


def num_users(tensor: Any) -> int:
    """A count that increases when further tensors or storages share the memory; for comparison."""
    torch = sys.modules["torch"]
    storage = tensor.untyped_storage()  # one object for all callers
    count: int = torch._C._storage_Use_Count(storage._cdata)
    return count + sys.getrefcount(storage)
