"""How tensors of a device take part in an operation: fetched into memory of the host, and their results stored back."""

import sys
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from collectives import Array

from .device import HOST, Device, FoundDevice, Mark, failures_named
from .errors import DeviceLost


def device_of(tensor: Any) -> Device:
    """Where a tensor lives; `HOST` for everything else, which has to be refused elsewhere if it cannot be used."""
    torch = sys.modules.get("torch")  # who has a tensor has imported it
    if torch is None or not isinstance(tensor, torch.Tensor) or tensor.device.type != "cuda":
        return HOST
    from .cuda import cuda_device  # the driver is asked for nothing before that

    return cuda_device(tensor.device.index)


def cuda_devices() -> tuple[tuple[FoundDevice, ...], str]:
    """All that this process sees; and why there are none, if so. Imports torch."""
    from .cuda import found

    return found()


Cut = Callable[[Array], Sequence[slice]]
"""An array as pieces, each of which lies in one piece of pinned memory, or in none."""


def whole(array: Array) -> Sequence[slice]:
    """As one piece."""
    return (slice(0, len(array)),)


class Staged:
    """The way of one operation at a time: fetched, submitted, stored, held, in this order.

    The input of the operation may be read, and its result written, by others than the device, where `is_ready`.

    All but `check` raise DeviceLost if the device raises an error.
    """

    def __init__(
        self, device: Device, cut: Cut = whole, told: Callable[[DeviceLost], None] = lambda error: None
    ) -> None:
        """Nothing is under way.

        Args:
            device: of the tensors.
            cut: memory of the host, for each copy.
            told: is, before an error of the device is raised.
        """
        self._device, self._cut, self._told = device, cut, told
        self._fetched: list[Mark] = []
        self._stored: list[Mark] = []
        """Of pieces, which keep their memory until they are seen to be over."""

    def check(self) -> None:
        """As of the device."""
        self._device.check()

    def zeros(self, count: int, like: Any) -> Any:
        """As of the device."""
        with self._failures_told():
            return self._device.zeros(count, like)

    def stream(self) -> Hashable:
        """As of the device."""
        return self._device.stream()

    def follow(self, stream: Hashable) -> None:
        """What the current stream is given from now on comes after what this one was given so far."""
        device = self._device
        if stream is not None and stream != device.stream():
            with self._failures_told():
                with device.on(stream):
                    mark = device.mark()
                device.hold(mark)

    @contextmanager
    def beside(self, stream: Hashable) -> Iterator[None]:
        """This one is current inside of this: after the current one so far, which goes on after it."""
        here = self._device.stream()
        if stream == here:
            yield
            return
        with self._device.on(stream):
            self.follow(here)
            yield
        self.follow(stream)

    def fetch(self, *pairs: tuple[Any, Array]) -> None:
        """Begin to copy tensors, as the current stream leaves them, into the input and beside it."""
        device, cut = self._device, self._cut
        with self._failures_told():
            self._fetched = [
                device.fetch(source[piece], into[piece], after=[device.mark()])
                for source, into in pairs
                for piece in cut(into)
            ]

    def is_ready(self) -> bool:
        """Whether no copy is under way, neither of what was fetched nor of the result of the operation before."""
        with self._failures_told():
            return all(mark.is_over() for mark in (*self._stored, *self._fetched))

    def wait(self) -> None:
        """Return when it is ready. No copy keeps any memory then."""
        with self._failures_told():
            for mark in (*self._stored, *self._fetched):
                mark.wait()

    def store(self, source: Array, into: Any) -> None:
        """Begin to copy the result; what was fetched is not needed any more."""
        with self._failures_told():
            self._stored = [mark for mark in self._stored if not mark.is_over()]
            for piece in self._cut(source):
                self._stored.append(self._device.store(source[piece], into[piece], after=[self._device.mark()]))

    def hold(self) -> None:
        """What the current stream is given from now on sees what was stored."""
        with self._failures_told():
            for mark in self._stored:
                self._device.hold(mark)

    @contextmanager
    def _failures_told(self) -> Iterator[None]:
        try:
            with failures_named():
                yield
        except DeviceLost as error:
            self._told(error)
            raise


def flat_of(tensor: Any) -> Any:
    """A contiguous tensor in one dimension, to be seen as bytes: of one element the stride may be any."""
    return tensor.as_strided((tensor.numel(),), (1,))


def num_users(tensor: Any) -> int:
    """More than before if somebody else has come to share its memory, by tensors or as a storage; for comparison."""
    torch = sys.modules["torch"]
    storage = tensor.untyped_storage()  # one object for all who ask
    count: int = torch._C._storage_Use_Count(storage._cdata)
    return count + sys.getrefcount(storage)
