"""Credit: how many bytes may be in flight to each other host. More would only wait in the queue in front of it.

Bytes in flight were handed to libzmq and are not acknowledged yet, by the kernel's count (flows.py): in the kernel's
buffers, in those of libzmq, and in the network. Several senders fill the queue of one receiver together, and none sees
the others' traffic; so each keeps at most the bandwidth-delay product plus `QUEUED_S` of the receiver's line in flight.
That keeps a queue of 50 ms from overflowing, which costs more than an idle line: data behind a lost packet wait for its
retransmission.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple


class Credit(NamedTuple):
    """Limit of bytes in flight: a frame may follow if the sum is at most `most`, or the present count at most `least`.

    `least` fills the path while the frame is handed over, so that frames longer than a queue do not each leave the line
    idle for a round trip.
    """

    most: int
    least: int = 0

    def allows(self, num_bytes: int, under_way: int) -> bool:
        """Whether `num_bytes` may follow; always, if no bytes are in flight."""
        return under_way <= max(0, self.least, self.most - num_bytes)


UNKNOWN: Final = Credit(2 << 20)
"""For a receiver whose bandwidth is not known, perhaps because too little was sent to it to measure that."""

QUEUED_S: Final = 0.035
"""How long a receiver's line may be occupied by bytes queued in front of it."""

TOTAL_S: Final = 0.05
"""How long this peer's own line may be occupied by bytes queued for it."""

BUSY_S: Final = 0.01
"""How long before the line would become idle the next frame is sent, whatever its length."""

FLOOR_BYTES: Final = 768 << 10
"""May be in flight to a receiver whose line carries this in `FLOOR_S`: three segments on a WAN.

Acknowledgements queue behind data of the other direction, so more than the bandwidth-delay product is in flight.
"""

TOTAL_FLOOR_BYTES: Final = 1 << 20
"""The same for all receivers together."""

FLOOR_S: Final = 0.12
"""Added to the round trip; longer queues overflow."""

LEAST_BYTES: Final = 64 << 10
"""May always be in flight."""


@dataclass(slots=True)
class _Handed:
    """Bytes handed over to one peer since the kernel's count was `acked`, and how many of them had arrived lately."""

    num_bytes: int
    acked: int
    num_arrived: int = 0

    @property
    def most(self) -> int:
        """Upper bound of the bytes in flight, without asking the kernel again."""
        return self.num_bytes - self.num_arrived


def credit_of(bytes_per_s: int, rtt_s: float, queued_s: float = QUEUED_S, floor_bytes: int = FLOOR_BYTES) -> Credit:
    """The credit for a line of this bandwidth: more than its bandwidth-delay product.

    So an underestimated line shows its real bandwidth.
    """
    floor = min(floor_bytes, bytes_per_s * (rtt_s + FLOOR_S))
    most = max(LEAST_BYTES, int(max(floor, bytes_per_s * (rtt_s + queued_s))))
    return Credit(most, max(LEAST_BYTES, int(bytes_per_s * (rtt_s + BUSY_S))))


class Credits:
    """The credits of one sending peer.

    Attributes:
        is_on: whether any limit applies.
        total: for all receivers together; None: not known.
    """

    def __init__(self, acked: Callable[[str], int | None]) -> None:
        """`acked`: bytes sent to a peer that it has acknowledged; None: the kernel has no count."""
        self.is_on = False
        self.total: Credit | None = None
        self._acked = acked
        self._known: Mapping[str, Credit] = {}
        self._handed: dict[str, _Handed] = {}

    def set(self, known: Mapping[str, Credit]) -> None:
        """Set the credits of receivers with known bandwidth."""
        self._known = known

    def of(self, peer_id: str) -> Credit:
        """The credit for this receiver."""
        return self._known.get(peer_id, UNKNOWN)

    def may_send(self, peer_id: str, num_bytes: int) -> bool:
        """Whether `num_bytes` may follow the bytes in flight. Asks the kernel only if necessary."""
        credit, handed = self.of(peer_id), self._handed.get(peer_id)
        if (
            handed is not None
            and not credit.allows(num_bytes, handed.most)
            and not credit.allows(num_bytes, self.in_flight_bytes(peer_id))
        ):
            return False
        total = self.total
        return (
            total is None
            or total.allows(num_bytes, sum(each.most for each in self._handed.values()))
            or total.allows(num_bytes, sum(self.in_flight_bytes(each) for each in list(self._handed)))
        )

    def in_flight_bytes(self, peer_id: str) -> int:
        """Bytes handed over and not acknowledged, by the kernel's count."""
        handed = self._handed.get(peer_id)
        if handed is None:
            return 0
        acked = self._acked(peer_id)
        if acked is None or not 0 <= acked - handed.acked < handed.num_bytes:  # all of it, or a new connection
            del self._handed[peer_id]
            return 0
        handed.num_arrived = acked - handed.acked
        return handed.most

    def sent(self, peer_id: str, num_bytes: int) -> None:
        """Record that `num_bytes` were handed over."""
        if (handed := self._handed.get(peer_id)) is not None:
            handed.num_bytes += num_bytes
        elif (acked := self._acked(peer_id)) is not None:
            self._handed[peer_id] = _Handed(num_bytes, acked)

    def forget(self, peer_id: str) -> None:
        """Drop the record of a peer whose link is closed."""
        self._handed.pop(peer_id, None)
