"""How many bytes may be under way to each other host: what is more would only wait in the queue in front of it.

What is under way is what was handed over and is not acknowledged yet, by the kernel's count (flows.py): in its buffers,
in those of libzmq, and on the way. Several that send to one receiver fill its queue together, and none of them sees
what the others send; so each holds back what the receiver's line would need longer than `QUEUED_S` for, besides what
fills the way to it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

UNKNOWN_BYTES: Final = 1 << 20
"""To a receiver whose line is not known."""

QUEUED_S: Final = 0.05
"""So long the line of a receiver is busy with what may wait for it."""

LEAST_S: Final = 0.1
"""At its rate; also where the way is short."""


@dataclass(slots=True)
class _Handed:
    """To one peer: so many bytes, since the kernel's count stood there."""

    num_bytes: int
    acked: int


def credit_of(bytes_per_s: int, rtt_s: float) -> int:
    """Bytes that may be under way to a receiver whose line carries that: more than have room on the way there.

    So a line that was thought to be slower is found out.
    """
    return int(bytes_per_s * max(LEAST_S, rtt_s + QUEUED_S))


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
        """Whether so many more may follow what is under way; if that is nothing, they may, however many they are."""
        under_way = self.under_way(peer_id)
        if under_way and under_way + num_bytes > self.of(peer_id):
            return False
        if not self.total_bytes:
            return True
        total = sum(self.under_way(each) for each in list(self._handed))
        return not total or total + num_bytes <= self.total_bytes

    def under_way(self, peer_id: str) -> int:
        """Bytes that were handed over and have not arrived, as far as the kernel knows."""
        handed = self._handed.get(peer_id)
        if handed is None:
            return 0
        acked = self._acked(peer_id)
        if acked is None or not 0 <= acked - handed.acked < handed.num_bytes:  # all of it, or another connection
            del self._handed[peer_id]
            return 0
        return handed.num_bytes - (acked - handed.acked)

    def sent(self, peer_id: str, num_bytes: int) -> None:
        """So many bytes were handed over."""
        if (handed := self._handed.get(peer_id)) is not None:
            handed.num_bytes += num_bytes
        elif (acked := self._acked(peer_id)) is not None:
            self._handed[peer_id] = _Handed(num_bytes, acked)

    def forget(self, peer_id: str) -> None:
        """The link to that peer is closed."""
        self._handed.pop(peer_id, None)
