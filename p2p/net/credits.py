"""How many bytes may be under way to each other host: what is more would only wait in the queue in front of it.

What is under way is what was handed over and is not acknowledged yet, by the kernel's count (flows.py): in its buffers,
in those of libzmq, and on the way. Several that send to one receiver fill its queue together, and none of them sees
what the others send; so each holds back what is more than fills the way to a receiver, and its line for `QUEUED_S`.
That keeps a queue of 50 ms from overflowing, which costs more than an idle line: what was sent after a lost packet
waits until it is sent again.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

UNKNOWN_BYTES: Final = 2 << 20
"""To a receiver whose line is not known, which what was sent to it before may have been too little to show."""

LEAST_TOTAL_BYTES: Final = 1 << 20
"""To all together."""

QUEUED_S: Final = 0.035
"""So long the line of a receiver is busy with what may wait for it."""

LEAST_BYTES: Final = 768 << 10
"""Three segments on a WAN: the next one goes before it is heard that the last but one has arrived."""


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


def credit_of(bytes_per_s: int, rtt_s: float) -> int:
    """Bytes that may be under way to a receiver whose line carries that: more than have room on the way there.

    So a line that was thought to be slower is found out.
    """
    return max(LEAST_BYTES, int(bytes_per_s * (rtt_s + QUEUED_S)))


class Credits:
    """Of one peer.

    Attributes:
        is_on: whether there is a bound at all.
        total_bytes: to all together; 0: that is not known.
    """

    def __init__(self, acked: Callable[[str], int | None]) -> None:
        """`acked`: bytes that a peer has of what was sent to it; None: the kernel does not say."""
        self.is_on = False
        self.total_bytes = 0
        self._acked = acked
        self._bytes: Mapping[str, int] = {}
        self._handed: dict[str, _Handed] = {}

    def set(self, bounds: Mapping[str, int]) -> None:
        """Bytes for each receiver whose line is known."""
        self._bytes = bounds

    def of(self, peer_id: str) -> int:
        """Bytes that may be under way to that one."""
        return self._bytes.get(peer_id, UNKNOWN_BYTES)

    def may_send(self, peer_id: str, num_bytes: int) -> bool:
        """Whether so many more may follow what is under way; if that is nothing, they may, however many they are.

        The kernel is asked only if what it has said before does not do.
        """
        room = self.of(peer_id) - num_bytes
        handed = self._handed.get(peer_id)
        if handed is not None and handed.most > room and self.under_way(peer_id) > max(0, room):
            return False
        room = self.total_bytes - num_bytes
        if not self.total_bytes or sum(each.most for each in self._handed.values()) <= room:
            return True
        return sum(self.under_way(each) for each in list(self._handed)) <= max(0, room)

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
