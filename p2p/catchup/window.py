"""Congestion window of a stream: as many segments in flight as the path carries without building up a queue. Pure.

The arithmetic is that of LEDBAT (RFC 6817), with a segment in place of a packet, and the round trip in place of the
one-way delay, since receivers acknowledge segments at once, and their clocks are not known. The smallest delay seen is
that of the path without a queue; the excess is the queue, and the window grows or shrinks with its distance from a
target. Exchanges of training share the path, and would lose packets if a state filled the queue. Leaves out: a path
whose delay grows while a stream lasts.
"""

import math
from collections import deque
from typing import Final

TARGET_S: Final = 0.025
"""Target queueing delay."""

NUM_RECENT: Final = 8
"""The minimum over so many delays counts: a queue delays every segment, a busy processor only some."""

FEWEST: Final = 3
"""Smallest window, in segments."""

FIRST: Final = 8
"""Initial window, in segments."""

MOST_BYTES: Final = 8 << 20


class Window:
    """The window of one stream.

    Attributes:
        size: how many segments may be in flight, to be rounded down.
    """

    def __init__(self, segment_bytes: int) -> None:
        """A stream of which no segment was sent yet; `segment_bytes`: at most, of each."""
        self.size = float(FIRST)
        self._most = max(FIRST, MOST_BYTES // segment_bytes)
        self._sent: deque[float] = deque()
        self._least_s = math.inf
        self._recent: deque[float] = deque(maxlen=NUM_RECENT)

    @property
    def has_room(self) -> bool:
        """Whether another segment may be sent."""
        return len(self._sent) < int(self.size)

    def sent(self, now: float) -> None:
        """A segment was sent."""
        self._sent.append(now)

    def acked(self, now: float, count: int) -> None:
        """The receiver acknowledges the `count` oldest segments in flight."""
        self._recent.append(now - self._sent[count - 1])
        delay_s = min(self._recent)
        for _ in range(count):
            self._sent.popleft()
        self._least_s = min(self._least_s, delay_s)
        off = (TARGET_S - (delay_s - self._least_s)) / TARGET_S
        self.size += max(off, -1.0) * count / self.size
        self.size = min(max(self.size, FEWEST), self._most)
