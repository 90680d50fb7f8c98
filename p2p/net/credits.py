"""How many bytes may be under way to each other host: what is more would only wait in the queue in front of it.

What is under way is what was handed over and is not acknowledged yet, by the kernel's count (flows.py): in its buffers,
in those of libzmq, and on the way. Several that send to one receiver fill its queue together, and none of them sees
what the others send; so each holds back what is more than fills the way to a receiver, and its line for `QUEUED_S`.
That keeps a queue of 50 ms from overflowing, which costs more than an idle line: what was sent after a lost packet
waits until it is sent again.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple


class Credit(NamedTuple):
    """What may be under way, in bytes: another frame if it then is not more than `most`, or is less than `least` now.

    `least` fills the way while the frame is handed over, so that frames which are longer than a queue do not leave a
    line idle for a round trip each.
    """

    most: int
    least: int = 0

    def allows(self, num_bytes: int, under_way: int) -> bool:
        """Whether so many more may follow those; if that is nothing, they may, however many they are."""
        return under_way <= max(0, self.least, self.most - num_bytes)


UNKNOWN: Final = Credit(2 << 20)
"""To a receiver whose line is not known, which what was sent to it before may have been too little to show."""

QUEUED_S: Final = 0.035
"""So long the line of a receiver is busy with what may wait for it."""

TOTAL_S: Final = 0.05
"""So long the own line may be busy with what waits for it."""

BUSY_S: Final = 0.01
"""So long before the line would be idle the next frame goes, however long it is."""

FLOOR_BYTES: Final = 768 << 10
"""May be under way to a receiver, if its line carries that in `FLOOR_S`: three segments on a WAN.

What is heard of arrives behind what comes the other way, so the way holds more than a line carries in a round trip.
"""

TOTAL_FLOOR_BYTES: Final = 1 << 20
"""To all together, likewise."""

FLOOR_S: Final = 0.12
"""And the round trip; longer queues overflow."""

LEAST_BYTES: Final = 64 << 10
"""May be under way in any case."""


@dataclass(slots=True)
class _Handed:
    """To one peer: so many bytes, since the kernel's count stood there; so many of them had arrived when last asked."""

    num_bytes: int
    acked: int
    num_arrived: int = 0

    @property
    def most(self) -> int:
        """Bytes that may be under way, without asking again."""
        return self.num_bytes - self.num_arrived


def credit_of(bytes_per_s: int, rtt_s: float, queued_s: float = QUEUED_S, floor_bytes: int = FLOOR_BYTES) -> Credit:
    """What may be under way on a line that carries that: more than has room on the way.

    So a line that was thought to be slower is found out.
    """
    floor = min(floor_bytes, bytes_per_s * (rtt_s + FLOOR_S))
    most = max(LEAST_BYTES, int(max(floor, bytes_per_s * (rtt_s + queued_s))))
    return Credit(most, max(LEAST_BYTES, int(bytes_per_s * (rtt_s + BUSY_S))))


class Credits:
    """Of one peer.

    Attributes:
        is_on: whether there is a bound at all.
        total: to all together; None: that is not known.
    """

    def __init__(self, acked: Callable[[str], int | None]) -> None:
        """`acked`: bytes that a peer has of what was sent to it; None: the kernel does not say."""
        self.is_on = False
        self.total: Credit | None = None
        self._acked = acked
        self._known: Mapping[str, Credit] = {}
        self._handed: dict[str, _Handed] = {}

    def set(self, known: Mapping[str, Credit]) -> None:
        """Those of receivers whose line is known."""
        self._known = known

    def of(self, peer_id: str) -> Credit:
        """What may be under way to that one."""
        return self._known.get(peer_id, UNKNOWN)

    def may_send(self, peer_id: str, num_bytes: int) -> bool:
        """Whether so many more may follow what is under way. The kernel is asked only if what it said does not do."""
        credit, handed = self.of(peer_id), self._handed.get(peer_id)
        if (
            handed is not None
            and not credit.allows(num_bytes, handed.most)
            and not credit.allows(num_bytes, self.under_way(peer_id))
        ):
            return False
        total = self.total
        return (
            total is None
            or total.allows(num_bytes, sum(each.most for each in self._handed.values()))
            or total.allows(num_bytes, sum(self.under_way(each) for each in list(self._handed)))
        )

    def under_way(self, peer_id: str) -> int:
        """Bytes that were handed over and have not arrived, as far as the kernel knows."""
        handed = self._handed.get(peer_id)
        if handed is None:
            return 0
        acked = self._acked(peer_id)
        if acked is None or not 0 <= acked - handed.acked < handed.num_bytes:  # all of it, or another connection
            del self._handed[peer_id]
            return 0
        handed.num_arrived = acked - handed.acked
        return handed.most

    def sent(self, peer_id: str, num_bytes: int) -> None:
        """So many bytes were handed over."""
        if (handed := self._handed.get(peer_id)) is not None:
            handed.num_bytes += num_bytes
        elif (acked := self._acked(peer_id)) is not None:
            self._handed[peer_id] = _Handed(num_bytes, acked)

    def forget(self, peer_id: str) -> None:
        """The link to that peer is closed."""
        self._handed.pop(peer_id, None)
