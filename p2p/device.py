"""Devices, on which tensors live, and marks in their work. Independent of torch and of the kind of device.

A device works asynchronously, and copies on streams of its own, so a copy names the marks that it comes after, and a
reader of the copy waits for its mark. Host memory is a device, too: `HOST`, where all work is over at once, and no data
are copied, since operations read and write the tensors themselves.

*Pinned* host memory is registered with a device, which copies it by itself; other memory is copied by the driver,
several times slower, and the host may have to wait for that.

A device may add up host memory, and so relieve the thread that does so otherwise (`Adder`).
"""

from collections.abc import Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from collectives import Array, Reduction

from .errors import DeviceLost


class PinRefused(Exception):
    """Memory cannot be registered with a device; it is copied as before. The reason is a sentence."""


class MemoryShort(Exception):
    """A device has too little free memory."""

    def __init__(self, asked_bytes: int, free_bytes: int) -> None:
        super().__init__(f"{asked_bytes} bytes were asked for, and {free_bytes} are free")


@contextmanager
def failures_named() -> Iterator[None]:
    """Convert device errors in this block, which torch raises as RuntimeError, to `DeviceLost`."""
    try:
        yield
    except RuntimeError as error:
        raise DeviceLost(error) from error


class Mark(Protocol):
    """A point in the work of a device."""

    def is_over(self) -> bool:
        """Whether all work before it is done. Never waits."""
        ...

    def wait(self) -> None:
        """Wait until all work before it is done; other threads continue meanwhile."""
        ...


class Adder(Protocol):
    """Adds up on a device, from host memory into host memory. For one thread at a time: the one that drives the loop.

    Called only while an operation of the peer is open.

    Attributes:
        least_bytes: smallest sum that is worthwhile; the host is faster below it.
    """

    @property
    def least_bytes(self) -> int: ...

    def supports(self, reduction: Reduction, dtype: np.dtype[Any]) -> bool:
        """Whether this device supports this reduction of this type."""
        ...

    def add(
        self,
        sources: Sequence[Array],
        into: Array,
        reduction: Reduction,
        dtype: np.dtype[Any],
        *,
        completes: bool,
    ) -> Mark:
        """Begin to reduce `sources`, in their order, into `into`, which may be the first of them.

        Sums run one after the other, in the order of the calls. Until the mark is over, no argument may be written, and
        `into` not read. The bits are those of `collectives.reducer`, if all NaNs are taken as equal.

        Args:
            sources: of equal length, as `carried` has them; each lies in one piece of pinned memory. One alone is
                copied.
            into: likewise.
            reduction: as `supports` allows.
            dtype: of the elements.
            completes: whether the result is that of all ranks.

        Raises:
            MemoryShort: there is no memory for the parts; the sum was not begun.
        """
        ...

    def drain(self) -> None:
        """Wait until no memory of any sum is read or written any more. Any thread may call this."""
        ...


class Device(Protocol):
    """Called by the training thread. Tensors and arrays of a copy are contiguous, and have equally many bytes.

    A copy keeps the memory of both alive until its mark was found to be over. Until then they must not be written, nor
    `into` read. Host memory of a copy lies in one piece of pinned memory, or in none. `pin` may be called by any
    thread.

    Attributes:
        numerics: description of what decides its bits; empty: those of this host's processor.
    """

    @property
    def numerics(self) -> str: ...

    @property
    def adder(self) -> Adder | None:
        """The adder of this device; None: it has none."""
        ...

    def check(self) -> None:
        """Raise if the device cannot be called now.

        Raises:
            ShoalError: a graph is being captured, which would record copies without their waits.
        """
        ...

    def zeros(self, count: int, like: Any) -> Any:
        """A tensor of `count` zeros, of the type and on the device of `like`.

        Raises:
            MemoryShort: there is no memory for it.
        """
        ...

    def current_stream(self) -> Hashable:
        """The current stream of the script."""
        ...

    def on(self, stream: Hashable) -> AbstractContextManager[object]:
        """Context in which `current_stream`, an earlier current one, is current again."""
        ...

    def mark(self) -> Mark:
        """Mark the work submitted to the current stream so far."""
        ...

    def fetch(self, source: Any, into: Array, after: Sequence[Mark]) -> Mark:
        """Copy a tensor of the device into host memory, once the marks of `after` are over."""
        ...

    def store(self, source: Array, into: Any, after: Sequence[Mark]) -> Mark:
        """Copy host memory into a tensor of the device, once the marks of `after` are over."""
        ...

    def order_after(self, mark: Mark) -> None:
        """Have later work of the current stream wait for `mark`. The host does not wait."""
        ...

    def pin(self, memory: Array) -> None:
        """Register whole pages of host memory, none of which is pinned; read-only memory is registered as such.

        Raises:
            PinRefused: the memory cannot be registered; later calls are not affected.
        """
        ...

    def unpin(self, memory: Array) -> None:
        """Unregister memory before it is unmapped; no copy of it may be open. RuntimeError: the device is lost."""
        ...

    def wait_for_copies(self) -> None:
        """Wait until no copy is open."""
        ...


@dataclass(frozen=True, slots=True)
class FoundDevice:
    """A device visible to this process.

    Attributes:
        name: as torch has it.
        free_bytes, total_bytes: of its memory.
        registers_read_only: whether it reports that it registers read-only memory; None: not reported.
    """

    name: str
    device: Device
    free_bytes: int
    total_bytes: int
    registers_read_only: bool | None = None


class _Over:
    def is_over(self) -> bool:
        return True

    def wait(self) -> None:
        pass


OVER: Final[Mark] = _Over()
"""A mark that is always over."""


class _Host:
    """Host memory: source and target of a copy would be the same."""

    numerics = ""
    adder = None

    def check(self) -> None:
        pass

    def zeros(self, count: int, like: Any) -> Any:
        return like.new_zeros(count)

    def current_stream(self) -> Hashable:
        return None

    def on(self, stream: Hashable) -> AbstractContextManager[object]:
        return nullcontext()

    def mark(self) -> Mark:
        return OVER

    def fetch(self, source: Any, into: Array, after: Sequence[Mark]) -> Mark:
        return OVER

    def store(self, source: Array, into: Any, after: Sequence[Mark]) -> Mark:
        return OVER

    def order_after(self, mark: Mark) -> None:
        pass

    def pin(self, memory: Array) -> None:
        pass

    def unpin(self, memory: Array) -> None:
        pass

    def wait_for_copies(self) -> None:
        pass


HOST: Final[Device] = _Host()
