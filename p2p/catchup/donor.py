"""What this peer gives to those who have no seat yet: its state, and the steps that it commits. Belongs to the loop.

The state after a step is complete from the first forward pass after the step's commit until the next commit; from the
last backward pass on, where forward passes change any of it (p2p/training/edge.py). It is copied in that time, once for
all who wait for it, and sent afterwards, piece by piece, while training goes on. The results of a step are copied
before they are handed out, if somebody is to be fed with them.

Everything for one peer goes through one *stream*, in order, with a few segments under way at a time: the receiver says
how many it has taken. Who does not take what it is sent is not waited for. What is left out begins with a step of the
model: a script can load a state there, and nowhere else.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile

import numpy as np

from gossip import Member, View
from gossip.effects import Feed
from gossip.progress import Finish
from gossip.view import NO_NUMERICS

from ..net.frames import Taken
from ..net.parcels import Packer, Parcel, ParcelSegment, StateRecord, StepRecord, cut
from ..step.notices import Commit
from ..step.receipts import counts_of

WINDOW = 8
"""So many segments are under way to one peer."""

MOST_FED_BYTES = 256 << 20
"""Steps that wait for their turn to one peer; further ones are left out, and it has to ask for the state."""

FEWEST_FED, MOST_FED = 4, 256
"""So many steps may wait in any case, and so many at most: who is further behind is better off with a state."""

PATIENCE_S = 10.0
"""Who takes nothing for this long is sent nothing more until it asks again."""


@dataclass(slots=True, eq=False)
class _Stream:
    """To one peer. `sending`: what is left of the first of `parcels`."""

    number: int
    moved: float
    parcels: deque[Parcel] = field(default_factory=deque)
    sending: Iterator[ParcelSegment] | None = None
    num_sent: int = 0
    num_taken: int = 0

    def steps(self) -> list[Parcel]:
        return [parcel for parcel in self.parcels if not isinstance(parcel.record, StateRecord)]

    def overtake(self) -> None:
        """A state makes the steps superfluous that nothing was sent of, from the first one of the model on."""
        begun = [] if self.sending is None else [self.parcels.popleft()]
        needed = takewhile(_is_of_script, self.parcels)
        self.parcels = deque([*begun, *needed, *self.states()])

    def states(self) -> list[Parcel]:
        return [parcel for parcel in self.parcels if isinstance(parcel.record, StateRecord)]


class Donor:
    """Streams to observers and joiners.

    Attributes:
        waiting: for a state: after which step, and whether they have a seat.
        show: what this peer's replica is compared by.
    """

    def __init__(
        self,
        send: Callable[[Member, int, ParcelSegment], None],
        *,
        segment_bytes: int,
        most_fed_bytes: int = MOST_FED_BYTES,
    ) -> None:
        """Nobody asks yet.

        Args:
            send: takes target, stream and segment.
            segment_bytes: of a segment, at most.
            most_fed_bytes: of the steps that wait for their turn to one peer, beyond the fewest.
        """
        self.waiting: dict[Member, tuple[int, bool]] = {}
        self.show: Callable[[], bytes] = bytes
        self._send = send
        self._segment_bytes, self._most_fed_bytes = segment_bytes, most_fed_bytes
        self._packer: tuple[int, Packer] | None = None
        self._view: View | None = None
        self._withheld: tuple[int, float] | None = None
        self._waits_since: dict[Member, float] = {}
        self._given: dict[Member, int] = {}
        self._streams: dict[Member, _Stream] = {}
        self._num_streams = 0

    # Who gets what.

    def install(self, view: View) -> None:
        """Another view: whoever still needs a state asks again."""
        self.waiting, self._given, self._waits_since = {}, {}, {}

    def seated(self, view: View) -> None:
        """Every member of `view` has what it needs."""
        for member in view.members:
            self.forget(member)

    def forget(self, member: Member) -> None:
        """It is gone, or needs nothing more."""
        self.waiting.pop(member, None)
        self._streams.pop(member, None)

    def complete(self, step: int, packer: Packer, view: View | None = None) -> None:
        """The state after `step`, which was committed in `view`, is complete, and `packer` lends it."""
        self._packer, self._view = (step, packer), view

    def withhold(self, step: int, patience_s: float = 0.0) -> None:
        """The state after `step` may be incomplete, and stays so until another step is committed.

        `patience_s`: who has asked for it, and has a seat, is left to wait for so long.
        """
        self._withheld, self._packer = (step, patience_s), None

    def ask(self, member: Member, step: int, *, has_seat: bool) -> None:
        """`member` needs the state after `step`, or, while it has no seat, after a later one.

        Who has a seat is given one state in a view; an observer none while another is on its way to it.
        """
        stream = self._streams.get(member)
        is_coming = stream is not None and any(not has_seat or p.step == step for p in stream.states())
        if not is_coming and not (has_seat and self._given.get(member) == step):
            self.waiting[member] = step, has_seat

    def serve(self, now: float, done: int, record: StateRecord) -> Iterator[tuple[Member, str]]:
        """Send the state to whoever waits for it, if it may be copied now, with `done` the last committed step.

        Yields:
            Whom it cannot be sent to, and why.
        """
        is_complete = self._packer is not None and self._packer[0] == done
        withheld, patience_s = self._withheld or (None, 0.0)
        if not is_complete and withheld != done:
            return
        for member, (step, has_seat) in list(self.waiting.items()):
            if step != done and (has_seat or step > done):
                continue
            if is_complete:
                del self.waiting[member]
                try:
                    parcel = self._copy(done, record)
                except (TypeError, ValueError) as error:
                    yield member, f"the state cannot be sent to it: {error}"
                    continue
                self._given[member] = done
                if (stream := self._streams.get(member)) is not None:
                    stream.overtake()
                self._put(now, member, parcel)
            elif has_seat and now - self._waits_since.setdefault(member, now) >= patience_s:
                del self.waiting[member]
                yield (
                    member,
                    "it came between two updates of a batch, or in an operation between a backward pass and the next",
                )

    def _copy(self, step: int, record: StateRecord) -> Parcel:
        """The state, which nobody changes now; a copy that is still on its way to another peer serves, too."""
        under_way = (parcel for stream in self._streams.values() for parcel in stream.states())
        if (parcel := next((parcel for parcel in under_way if parcel.step == step), None)) is not None:
            return parcel
        assert self._packer is not None
        state = self._packer[1]()
        if self._view is not None:  # the members' scripts see no other before the next commit
            record = replace(record, view=self._view)
        tensors = state.tensors if state.is_whole else map(copied, state.tensors)
        return Parcel(step, record, [state.tree, *tensors], state.is_whole)

    def feed(
        self, now: float, feeds: Sequence[Feed], finish: Finish, commit: Commit, numerics: bytes = NO_NUMERICS
    ) -> None:
        """Send a committed step to observers; its results have not been handed out yet, and are copied.

        `numerics`: class of this peer. In a view of several, `finish` says nothing of the parameters.
        The training thread waits for the commit meanwhile, so the replica is what the step was computed with.
        """
        if not feeds:
            return
        receipt = commit.receipt
        is_of_model = finish.state_digest or (
            finish.is_mixed and any(o.collective.is_counts for o in commit.operations)
        )
        record = StepRecord(
            feeds[0].previous,
            feeds[0].digest,
            finish,
            commit.view,
            counts_of(receipt),
            receipt.algorithms,
            commit.fingerprints,
            self.show() if is_of_model else b"",
            numerics,
        )
        parcel = Parcel(finish.step, record, [copied(o.common.view(np.uint8).data) for o in commit.operations])
        for feed in feeds:
            stream = self._streams.get(feed.member)
            kept = stream.steps() if stream is not None else []
            is_short = len(kept) < MOST_FED and sum(step.num_bytes for step in kept) < self._most_fed_bytes
            is_needed = _is_of_script(parcel) and bool(kept) and kept[-1].step == parcel.step - 1
            if len(kept) < FEWEST_FED or is_short or is_needed:
                self._put(now, feed.member, parcel)

    # Streams.

    def _put(self, now: float, member: Member, parcel: Parcel) -> None:
        if member not in self._streams:
            self._num_streams += 1
            self._streams[member] = _Stream(self._num_streams, now)
        stream = self._streams[member]
        if not stream.parcels:
            stream.moved = now
        stream.parcels.append(parcel)
        self._pump(member, stream)

    def _pump(self, member: Member, stream: _Stream) -> None:
        while stream.num_sent - stream.num_taken < WINDOW and stream.parcels:
            if (is_whole := stream.parcels[0].is_whole) is not None and not is_whole():
                return  # `go_on` comes when it is
            stream.sending = stream.sending or cut(stream.parcels[0], self._segment_bytes)
            segment = next(stream.sending)
            self._send(member, stream.number, segment)
            stream.num_sent += 1
            if segment.is_final:
                stream.parcels.popleft()
                stream.sending = None

    def go_on(self) -> None:
        """A state is whole by now."""
        for member, stream in self._streams.items():
            self._pump(member, stream)

    def taken(self, now: float, taken: Taken) -> None:
        """A peer has taken some of what it was sent."""
        stream = self._streams.get(taken.source)
        is_news = stream is not None and stream.number == taken.stream
        if stream is None or not is_news or not stream.num_taken < taken.num_segments <= stream.num_sent:
            return
        stream.num_taken, stream.moved = taken.num_segments, now
        self._pump(taken.source, stream)

    def expire(self, now: float) -> None:
        """Give up on who takes nothing."""
        for member, stream in list(self._streams.items()):
            if stream.num_taken < stream.num_sent and now - stream.moved > PATIENCE_S:
                del self._streams[member]


def _is_of_script(parcel: Parcel) -> bool:
    """Whether it is an operation that a script has called, of which no state has the result."""
    record = parcel.record  # a step of the model shows it; where there are several classes, the finish does not tell
    return isinstance(record, StepRecord) and not (record.finish.state_digest or record.shown)


def copied(buffer: bytes | memoryview) -> bytes | memoryview:
    """The same bytes in memory of their own; the interpreter is free meanwhile."""
    return np.frombuffer(buffer, np.uint8).copy().data if len(buffer) else b""
