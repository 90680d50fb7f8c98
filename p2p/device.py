"""Where tensors live, and points in the work of such a place. Knows neither torch nor a kind of device.

A device works later than it is told to, and copies on streams of its own, so whoever copies says what the copy comes
after, and whoever reads what was copied waits for its mark. Memory of this host is a device, too: `HOST`, where
everything is over at once, and nothing is copied, since an operation reads and writes the tensors themselves.

Memory of the host that is *pinned* is registered with a device, which copies it by itself; other memory is copied by
the driver, several times slower, and the host may have to wait for that.

A device may add up memory of the host, and so relieve the thread that does so otherwise (`Adder`).
"""

from collections.abc import Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from collectives import Array, Reduction

from .errors import DeviceLost


class PinRefused(Exception):
    """Memory cannot be registered with a device; copies of it go on as before. The reason is a sentence."""


class MemoryShort(Exception):
    """A device has not so much memory left."""

    def __init__(self, asked_bytes: int, free_bytes: int) -> None:
        super().__init__(f"{asked_bytes} bytes were asked for, and {free_bytes} are free")


@contextmanager
def failures_named() -> Iterator[None]:
    """What a device raises in this block is a `DeviceLost`: torch has RuntimeError for that."""
    try:
        yield
    except RuntimeError as error:
        raise DeviceLost(error) from error


class Mark(Protocol):
    """A point in the work of a device."""

    def is_over(self) -> bool:
        """Whether all before it is done. Never waits."""
        ...

    def wait(self) -> None:
        """Return when all before it is done; other threads go on meanwhile."""
        ...


class Adder(Protocol):
    """Adds up on a device, out of memory of the host and into it. For one thread at a time: whoever drives the loop.

    It is called while an operation of the peer is open, and at no other time.

    Attributes:
        least_bytes: of a sum; the host is quicker with less.
    """

    @property
    def least_bytes(self) -> int: ...

    def takes(self, reduction: Reduction, dtype: np.dtype[Any]) -> bool:
        """Whether it reduces arrays of this type like this."""
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
        """Begin to write what becomes of `sources`, in their order, into `into`, which may be the first of them.

        Sums come one after the other, in the order of the calls. Until the mark is over nobody writes what was given,
        or reads `into`. The bits are those of `collectives.reducer` where each NaN is the same one.

        Args:
            sources: of equal length, as `carried` has them; each lies in one piece of pinned memory. One alone is
                copied.
            into: likewise.
            reduction: as `takes` allows.
            dtype: of the elements.
            completes: whether this is the result of all ranks.

        Raises:
            MemoryShort: there is none for the parts; nothing of this sum was begun.
        """
        ...

    def drain(self) -> None:
        """Return when nothing that was given is read or written any more. Any thread may call this."""
        ...


class Device(Protocol):
    """Called by the training thread. Tensors and arrays of a copy are contiguous, and have equally many bytes.

    A copy keeps the memory of both until its mark was seen to be over. Until then nobody writes them, or reads `into`.
    It lies in one piece of pinned memory, or in none. `pin` may be called by any thread.

    Attributes:
        numerics: what decides which bits it computes, for people; empty: those of this host's processor.
    """

    @property
    def numerics(self) -> str: ...

    @property
    def adder(self) -> Adder | None:
        """What adds up on it; None: nothing does."""
        ...

    def check(self) -> None:
        """Whether it can be called now.

        Raises:
            ShoalError: a graph is captured, in which copies would be without their waits.
        """
        ...

    def zeros(self, count: int, like: Any) -> Any:
        """A tensor of so many elements, of the type and on the device of `like`.

        Raises:
            MemoryShort: there is no room for it.
        """
        ...

    def stream(self) -> Hashable:
        """The current one of the streams that a script has."""
        ...

    def on(self, stream: Hashable) -> AbstractContextManager[object]:
        """One that was current is so again, inside of this."""
        ...

    def mark(self) -> Mark:
        """All that the current stream was given so far."""
        ...

    def fetch(self, source: Any, into: Array, after: Sequence[Mark]) -> Mark:
        """Copy a tensor of the device into memory of the host, once the marks of `after` are over."""
        ...

    def store(self, source: Array, into: Any, after: Sequence[Mark]) -> Mark:
        """Copy memory of the host into a tensor of the device, once the marks of `after` are over."""
        ...

    def hold(self, mark: Mark) -> None:
        """What the current stream is given from now on comes after `mark`. The host goes on."""
        ...

    def pin(self, memory: Array) -> None:
        """Register whole pages of memory of the host, none of which is pinned; what is read-only, to be read alone.

        Raises:
            PinRefused: it cannot be; later calls hear nothing of that.
        """
        ...

    def unpin(self, memory: Array) -> None:
        """What `pin` was given may be unmapped; no copy of it is under way. RuntimeError: the device is lost."""
        ...

    def settle(self) -> None:
        """Return when no copy is under way."""
        ...


@dataclass(frozen=True, slots=True)
class FoundDevice:
    """One that this process sees.

    Attributes:
        name: as torch has it.
        free_bytes, total_bytes: of its memory.
        registers_read_only: whether it says that it registers memory that may only be read; None: it does not say.
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
"""Before everything."""


class _Host:
    """Memory of this host: source and target of a copy would be the same."""

    numerics = ""
    adder = None

    def check(self) -> None:
        pass

    def zeros(self, count: int, like: Any) -> Any:
        return like.new_zeros(count)

    def stream(self) -> Hashable:
        return None

    def on(self, stream: Hashable) -> AbstractContextManager[object]:
        return nullcontext()

    def mark(self) -> Mark:
        return OVER

    def fetch(self, source: Any, into: Array, after: Sequence[Mark]) -> Mark:
        return OVER

    def store(self, source: Array, into: Any, after: Sequence[Mark]) -> Mark:
        return OVER

    def hold(self, mark: Mark) -> None:
        pass

    def pin(self, memory: Array) -> None:
        pass

    def unpin(self, memory: Array) -> None:
        pass

    def settle(self) -> None:
        pass


HOST: Final[Device] = _Host()
