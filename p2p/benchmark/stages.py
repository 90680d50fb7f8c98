"""Times of the stages of an operation on a device's tensor: flatten, D2H, exchange, H2D, by the marks of its copies.

A copy counts as over when a caller that waits for its mark anyway observes it: watching adds no waits. Left out: the
device's own clock, which would need additional events.
"""

import time
from collections.abc import Hashable, Iterable, Sequence
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import Any, Final

import numpy as np

from collectives import Array, Reduction
from p2p.device import OVER, Adder, Device, Mark, PinRefused

FLATTEN: Final = "flatten"
"""From the call until the tensor is contiguous on the device and its first copy has begun."""
FETCH: Final = "D2H"
"""Until all of it is on the host."""
EXCHANGE: Final = "exchange"
"""Until the result's first copy to the device has begun; includes the commit, excludes what overlaps the fetch."""
STORE: Final = "H2D"
"""Until the result is on the device."""
STAGES: Final = (FLATTEN, FETCH, EXCHANGE, STORE)


class TimedCopy:
    """The mark of a copy, with the times at which its stages were observed.

    Attributes:
        mark: the device's mark, until it was observed to be over.
        stage: `FETCH` or `STORE`.
        begun_s: when the copy was requested from the device.
        ready_s: when the marks that it comes after were observed to be over; None: not yet.
        ended_s: when the copy was observed to be over; None: not yet.
    """

    def __init__(self, stage: str, after: Sequence[Mark]) -> None:
        self.mark: Mark  # set as soon as the device has returned it
        self.stage, self._after = stage, after
        self.ready_s: float | None = None
        self.ended_s: float | None = None
        self.begun_s = time.perf_counter()
        self._look()

    def is_over(self) -> bool:
        """As `Mark.is_over`."""
        self._look()
        if not self.mark.is_over():
            return False
        self._end()
        return True

    def wait(self) -> None:
        """As `Mark.wait`; waits for the marks before it first."""
        if self.ready_s is None:
            for each in self._after:
                each.wait()
            self.ready_s = time.perf_counter()
        self.mark.wait()
        self._end()

    def _look(self) -> None:
        if self.ready_s is None and all(each.is_over() for each in self._after):
            self.ready_s = time.perf_counter()

    def _end(self) -> None:
        if self.ended_s is None:
            self.ended_s = time.perf_counter()
            self._after, self.mark = (), OVER  # releases what these refer to


class CountedAdder:
    """An adder whose sums are counted.

    Attributes:
        num_sums: sums that were begun.
    """

    def __init__(self, adder: Adder) -> None:
        self._adder, self.num_sums = adder, 0

    @property
    def least_bytes(self) -> int:
        """As of `Adder`."""
        return self._adder.least_bytes

    def supports(self, reduction: Reduction, dtype: np.dtype[Any]) -> bool:
        """As `Adder.supports`."""
        return self._adder.supports(reduction, dtype)

    def add(
        self, sources: Sequence[Array], into: Array, reduction: Reduction, dtype: np.dtype[Any], *, completes: bool
    ) -> Mark:
        """As `Adder.add`."""
        mark = self._adder.add(sources, into, reduction, dtype, completes=completes)
        self.num_sums += 1
        return mark

    def drain(self) -> None:
        """As `Adder.drain`."""
        self._adder.drain()


class TimedDevice:
    """A device whose copies are recorded, and whose sums are counted.

    Attributes:
        copies: all copies since this list was last cleared.
        refused: why memory could not be registered, the last time; empty: it always could.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self.numerics = device.numerics
        self.adder = None if device.adder is None else CountedAdder(device.adder)
        self.copies: list[TimedCopy] = []
        self.refused = ""

    def check(self) -> None:
        """As `Device.check`."""
        self._device.check()

    def zeros(self, count: int, like: Any) -> Any:
        """As `Device.zeros`."""
        return self._device.zeros(count, like)

    def current_stream(self) -> Hashable:
        """As `Device.current_stream`."""
        return self._device.current_stream()

    def on(self, stream: Hashable) -> AbstractContextManager[object]:
        """As `Device.on`."""
        return self._device.on(stream)

    def mark(self) -> Mark:
        """As `Device.mark`."""
        return self._device.mark()

    def fetch(self, source: Any, into: Array, after: Sequence[Mark]) -> Mark:
        """As `Device.fetch`."""
        after = [_unwatched(each) for each in after]
        copy = TimedCopy(FETCH, after)
        copy.mark = self._device.fetch(source, into, after)
        self.copies.append(copy)
        return copy

    def store(self, source: Array, into: Any, after: Sequence[Mark]) -> Mark:
        """As `Device.store`."""
        after = [_unwatched(each) for each in after]
        copy = TimedCopy(STORE, after)
        copy.mark = self._device.store(source, into, after)
        self.copies.append(copy)
        return copy

    def order_after(self, mark: Mark) -> None:
        """As `Device.order_after`."""
        self._device.order_after(_unwatched(mark))

    def pin(self, memory: Array) -> None:
        """As `Device.pin`."""
        try:
            self._device.pin(memory)
        except PinRefused as error:
            self.refused = str(error)
            raise

    def unpin(self, memory: Array) -> None:
        """As `Device.unpin`."""
        self._device.unpin(memory)

    def wait_for_copies(self) -> None:
        """As `Device.wait_for_copies`."""
        self._device.wait_for_copies()


def _unwatched(mark: Mark) -> Mark:
    return mark.mark if isinstance(mark, TimedCopy) else mark


def times_of_stages(copies: Iterable[TimedCopy], start_s: float, end_s: float) -> tuple[float, ...]:
    """Seconds of each of `STAGES` of an operation that lasted from `start_s` to `end_s`; they add up to its duration.

    Raises:
        ValueError: copies, or their ends, were not observed.
    """
    copies = list(copies)
    fetched = [each for each in copies if each.stage == FETCH]
    stored = [each for each in copies if each.stage == STORE]
    ends = [each.ended_s for each in fetched if each.ended_s is not None]
    if not fetched or not stored or len(ends) < len(fetched) or fetched[0].ready_s is None:
        raise ValueError(f"{len(fetched)} copies to the host, {len(ends)} of them over, and {len(stored)} back")
    moments = (start_s, fetched[0].ready_s, max(ends), stored[0].begun_s, end_s)
    return tuple(later - earlier for earlier, later in pairwise(moments))
