"""Parcels for one peer, sent in order, with a few segments in flight at a time."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import takewhile

from gossip import Member

from ..net.parcels import Parcel, ParcelSegment, ShareRecord, StepRecord, cut
from .window import Window


@dataclass(slots=True, eq=False)
class Stream:
    """A stream to one peer. `sending`: the remaining segments of the first of `parcels`."""

    number: int
    moved: float
    window: Window
    parcels: deque[Parcel] = field(default_factory=deque)
    sending: Iterator[ParcelSegment] | None = None
    num_sent: int = 0
    num_acked: int = 0

    def steps(self) -> list[Parcel]:
        return [parcel for parcel in self.parcels if isinstance(parcel.record, StepRecord)]

    def due(self, now: float, segment_bytes: int) -> Iterator[ParcelSegment]:
        """Segments of `segment_bytes` that may be sent now."""
        while self.parcels and self.window.has_room:
            if (is_whole := self.parcels[0].is_whole) is not None and not is_whole():
                return  # it is asked again when it is
            if self.num_acked == self.num_sent:
                self.moved = now  # what was not sent yet was not left lying
            self.sending = self.sending or cut(self.parcels[0], segment_bytes)
            segment = next(self.sending)
            self.num_sent += 1
            self.window.sent(now)
            if segment.is_final:
                self.parcels.popleft()
                self.sending = None
            yield segment

    def overtake(self) -> None:
        """A state was queued: drop steps of which nothing was sent, from the first step of the model on."""
        begun = [] if self.sending is None else [self.parcels.popleft()]
        needed = takewhile(is_of_script, self.parcels)
        self.parcels = deque([*begun, *needed, *self.states()])

    def states(self) -> list[Parcel]:
        return [parcel for parcel in self.parcels if not isinstance(parcel.record, StepRecord)]

    def drop_shares(self, first: Member) -> None:
        """Drop shares of states of which `first` is the first donor."""
        is_sent = bool(self.parcels) and self.sending is not None
        if is_sent and self.parcels[0].record == ShareRecord(first):
            self.sending = None  # what is begun is not ended
        self.parcels = deque([parcel for parcel in self.parcels if parcel.record != ShareRecord(first)])


def is_of_script(parcel: Parcel) -> bool:
    """Whether `parcel` is the step of an operation called by the script itself, whose result no state contains."""
    record = parcel.record  # a step of the model shows it; where there are several classes, the finish does not tell
    return isinstance(record, StepRecord) and not (record.finish.state_digest or record.shown)
