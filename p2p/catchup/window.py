"""How many segments of a stream may be under way: as many as the way carries without a queue that others wait in. Pure.

The arithmetic is that of LEDBAT (RFC 6817), with a segment in the place of a packet, and the way there and back in that
of the way there: who takes segments says so at once, and its clock is not known. The least delay that was seen is the
way without a queue; what is beyond is the queue, and the window grows or shrinks with its distance from a target.
Training is exchanged over the same lines, and loses its packets where a state has filled the queue. Leaves out: a way
that becomes longer while a stream lasts.
"""

import math
from collections import deque
from typing import Final

TARGET_S: Final = 0.025
"""So long may what is sent here wait in queues."""

NUM_RECENT: Final = 8
"""The least of so many delays counts: a queue delays each segment, a busy processor only some."""

FEWEST: Final = 3
"""Segments that may be under way in any case."""

FIRST: Final = 8
"""As many at first."""

MOST_BYTES: Final = 8 << 20


class Window:
    """Of one stream.

    Attributes:
        size: so many segments may be under way, rounded down.
    """

    def __init__(self, segment_bytes: int) -> None:
        """Nothing was sent. Segments have `segment_bytes` at most."""
        self.size = float(FIRST)
        self._most = max(FIRST, MOST_BYTES // segment_bytes)
        self._sent: deque[float] = deque()
        self._least_s = math.inf
        self._recent: deque[float] = deque(maxlen=NUM_RECENT)

    @property
    def has_room(self) -> bool:
        """Whether one more may be sent."""
        return len(self._sent) < int(self.size)

    def sent(self, now: float) -> None:
        """One was sent."""
        self._sent.append(now)

    def taken(self, now: float, count: int) -> None:
        """The receiver has taken `count` more, which were under way."""
        self._recent.append(now - self._sent[count - 1])
        delay_s = min(self._recent)
        for _ in range(count):
            self._sent.popleft()
        self._least_s = min(self._least_s, delay_s)
        off = (TARGET_S - (delay_s - self._least_s)) / TARGET_S
        self.size += max(off, -1.0) * count / self.size
        self.size = min(max(self.size, FEWEST), self._most)
