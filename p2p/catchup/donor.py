"""The donor: a member gives its state, and the steps that it commits, to peers without a seat. Belongs to the loop.

The state after a step is complete from the first forward pass after the step's commit until the next commit; from the
last backward pass on, where forward passes change any of it (p2p/training/state/forward_state.py). The copy begins in
that time: one for all waiting peers, made by a thread for which the next update waits
(`PackedState.run_in_background`), into memory that was prepared before (rooms.py). It is sent afterwards, piece by
piece, while training continues. Donors on other hosts are asked for shares of a large state (shares.py), and copy only
these. The results of a step are copied before they are handed out, if an observer is to be fed with them.

Everything for one observer goes through one *stream*, in order, with a few segments in flight at a time (window.py);
the receiver acknowledges how many it has taken. The donor does not wait for an observer that takes nothing. When steps
are left out of a stream, the gap begins with a step of the model, since a script can load a state only there.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from weakref import WeakValueDictionary

import numpy as np

from gossip import Member, View
from gossip.effects import Feed
from gossip.fed_steps import MOST_FED
from gossip.progress import Finish
from gossip.view import NO_NUMERICS

from ..device import MemoryShort
from ..net.frames import Taken
from ..net.parcels import SOON, Chunk, PackedState, Parcel, ParcelSegment, ShareRequest, StateRecord, StepRecord
from ..step.notices import Commit
from ..step.receipts import counts_of
from .frozen import FrozenDiffer
from .replica import Packer, Replica
from .rooms import Make, Rooms, check_memory
from .shares import ShareRequests
from .state_copy import StateCopy, chunk_bytes_of, copied, declined, is_worth_sharing, share_of, sizes_for, sizes_of
from .state_requests import StateRequest, StateRequests
from .stream import Stream, is_of_script
from .window import Window

MOST_SEGMENT_BYTES = 256 << 10
"""Largest segment of a stream: a few of them must not fill a queue."""

MOST_WAITING_BYTES = 256 << 20
"""Limit of the steps queued for one observer. Further steps are left out, and it has to ask for the state."""

FEWEST_FED = 4
"""How many steps may always be queued (at most `MOST_FED`). Members commit steps while a state is in flight; an
observer that lacks one of them must ask for another state, which takes as long again."""

ACK_TIMEOUT_S = 10.0
"""An observer that takes nothing for this long is sent nothing more until it asks again."""

UNPACKABLE = TypeError, ValueError, RuntimeError, MemoryError
"""Errors of a state that cannot be copied now: not packable, changed by a pass meanwhile, no memory, no thread."""

KEPT_S = 30.0
"""How long the first of several donors keeps its copy after it last heard from the joiner."""


class Donor:
    """Streams to observers and joiners.

    Attributes:
        waiting: for a state.
        share_requests: of other donors.
        show: what this peer's replica is compared by.
        digest: of its parameters; None: as of `Replica`.
    """

    def __init__(
        self,
        send: Callable[[Member, int, ParcelSegment], None],
        send_wish: Callable[[Member, ShareRequest], None],
        *,
        segment_bytes: int,
        most_fed_bytes: int = MOST_WAITING_BYTES,
        least_shared_bytes: int = 1 << 62,
        make_room: Make | None = None,
    ) -> None:
        """A donor that has no requests yet.

        Args:
            send: takes target, stream and segment.
            send_wish: takes another donor, and the request for it.
            segment_bytes: of a segment, at most; no more than `MOST_SEGMENT_BYTES` are used.
            most_fed_bytes: of the steps queued for one observer, beyond `FEWEST_FED`.
            least_shared_bytes: a state with fewer bytes in common to all members comes from one donor.
            make_room: prepares memory for copies; None: none is prepared.
        """
        self._requests = StateRequests()
        self.waiting = self._requests.waiting
        self.show: Callable[[], bytes] = bytes
        self.digest: Callable[[], bytes] | None = None
        self._lends = True
        self.share_requests = ShareRequests()
        self._rooms = Rooms(make_room)
        self._send, self._send_wish = send, send_wish
        self._segment_bytes = min(segment_bytes, MOST_SEGMENT_BYTES)
        self._most_fed_bytes = most_fed_bytes
        self._least_shared_bytes = least_shared_bytes
        self._copies: WeakValueDictionary[tuple[int, bytes], StateCopy] = WeakValueDictionary()
        self._kept: dict[Member, tuple[StateCopy, Member, float]] = {}
        self._packer: tuple[int, Packer] | None = None
        self._view: View | None = None
        self._withheld: tuple[int, float] | None = None
        self._waits_since: dict[Member, float] = {}
        self._streams: dict[Member, Stream] = {}
        self._num_streams = 0
        self._is_exchanging = False

    # Who gets what.

    @property
    def is_asked(self) -> bool:
        """Whether a peer waits for the state or a share of it, or has announced that it will."""
        return bool(self.waiting or self.share_requests.waiting or self._rooms.expected)

    def use(self, replica: Replica) -> None:
        """Of this state."""
        self.show, self.digest, self._lends = replica.show, replica.digest, replica.lends

    def install(self) -> None:
        """Another view is installed: a peer that still needs a state asks again."""
        self._requests.install()
        self._waits_since = {}

    def seated(self, view: View) -> None:
        """Every member of `view` has what it needs."""
        for member in view.members:
            self.forget(member)

    def forget(self, member: Member) -> None:
        """`member` is gone, or needs nothing more."""
        self._requests.forget(member)
        self._streams.pop(member, None)
        self._kept.pop(member, None)
        self.share_requests.forget(member)
        self._rooms.forget(member)
        for stream in self._streams.values():
            stream.drop_shares(member)

    def complete(self, step: int, packer: Packer, view: View | None = None) -> None:
        """The state after `step`, which was committed in `view`, is complete, and `packer` lends it."""
        self._packer, self._view, self._is_exchanging = (step, packer), view, False  # if it is, this is the only time

    def withhold(self, step: int, patience_s: float = 0.0) -> None:
        """The state after `step` may be incomplete, and stays so until another step is committed.

        `patience_s`: who has asked for it, and has a seat, is left to wait for so long.
        """
        self._withheld, self._packer = (step, patience_s), None

    def ask(self, member: Member, step: int, *, has_seat: bool, frozen: bytes = b"") -> None:
        """`member` needs the state after `step`, or, while it has no seat, after a later one; `frozen`: as in STATE?.

        Who has a seat is given one state in a view; an observer none while another is on its way to it.
        """
        stream, kept = self._streams.get(member), self._kept.get(member)
        steps = [p.step for p in stream.states() if isinstance(p.record, StateRecord)] if stream is not None else []
        steps += [kept[0].step] if kept is not None else []
        is_coming = any(not has_seat or each == step for each in steps)
        if not is_coming:
            self._requests.ask(member, StateRequest(step, has_seat, frozen))

    def request_share(self, wish: ShareRequest) -> None:
        """Another donor asks for a share, or says that it will."""
        if wish.step == SOON:
            self._rooms.expect(wish)
        else:
            self.share_requests.ask(wish)

    def ask_for_chunks(self, now: float, member: Member, step: int, chunks: Sequence[Chunk]) -> None:
        """`member` needs these of the state after `step`, of which this peer is the first donor; none: nothing more."""
        copy, me, _ = self._kept.get(member, (None, member, now))
        if copy is None or copy.step != step:
            return
        if not chunks:
            del self._kept[member]
            return
        self._kept[member] = copy, me, now
        self._put(now, member, copy.share(me, chunks))

    def serve(
        self,
        now: float,
        done: int,
        record: StateRecord,
        donors_for: Callable[[Member], Sequence[Member]] = lambda member: (),
    ) -> Iterator[tuple[Member, str]]:
        """Send the state to all waiting peers, if it may be copied now; `done`: the last committed step.

        Args:
            now: the time.
            done: the last committed step.
            record: of the state.
            donors_for: who gives a state to somebody, this peer first.

        Yields:
            Whom it cannot be sent to, and why.
        """
        is_complete = self._packer is not None and self._packer[0] == done
        withheld, patience_s = self._withheld or (None, 0.0)
        for wish, is_given in self.share_requests.due(done, is_complete=is_complete, is_withheld=withheld == done):
            self._put(now, wish.observer, self._share(wish) if is_given else declined(wish))
        if not is_complete and withheld != done:
            return
        if is_complete:
            self._make_rooms(now, done, donors_for)
        for member, (step, has_seat, frozen) in list(self.waiting.items()):
            if step != done and (has_seat or step > done):
                continue
            if is_complete and not has_seat and (self._is_exchanging or self._rooms.is_held(now)):
                continue
            if is_complete:
                try:
                    parcels = self._copy(now, member, frozen, record, donors_for(member))
                except UNPACKABLE as error:
                    del self.waiting[member]
                    yield member, f"the state cannot be sent to it: {error}"
                    continue
                self._requests.give(member, done)
                self._waits_since.pop(member, None)
                if (stream := self._streams.get(member)) is not None:
                    stream.overtake()
                for parcel in parcels:
                    self._put(now, member, parcel)
            elif has_seat and now - self._waits_since.setdefault(member, now) >= patience_s:
                del self.waiting[member]
                yield (
                    member,
                    "it came between two updates of a batch, or in an operation between a backward pass and the next",
                )

    def why_damaged(self, now: float, done: int, differs: Callable[[bytes], str]) -> str:
        """Why the state after `done`, if it is about to be copied, must not be given away; `differs` says it (R28)."""
        is_complete = self._packer is not None and self._packer[0] == done
        is_now = bool(self.share_requests.waiting) or (bool(self.waiting) and not self._rooms.is_held(now))
        is_due = is_complete and not self._has_copy(done) and is_now
        return differs(self.digest()) if is_due and self.digest is not None else ""

    def _has_copy(self, step: int) -> bool:
        return any(each == step for each, _ in self._copies)

    def _make_rooms(self, now: float, done: int, donors_for: Callable[[Member], Sequence[Member]]) -> None:
        """Prepare memory for copies that peers without a seat wait for, and for announced shares."""
        assert self._packer is not None
        observer, asked = next((item for item in self.waiting.items() if not item[1].has_seat), (None, None))
        is_due = observer is not None and self._rooms.may_begin
        if not self._lends or self._has_copy(done) or not (is_due or self._rooms.expected):
            return
        try:
            state = self._packer[1](b"" if asked is None else asked.frozen)
        except UNPACKABLE:  # who is given it is told
            return
        for wish in self._rooms.expected:
            self._rooms.begin_share(now, wish, sizes_for(replace(state, known=wish.frozen), wish))
        if is_due and observer is not None and self._rooms.begin(now, sizes_of(state)):
            self._ask_donors(state, observer, SOON, donors_for(observer))

    def _ask_donors(self, state: PackedState, observer: Member, step: int, donors: Sequence[Member]) -> bool:
        """Ask the others for shares of the state after `step`, if it is worth that; whether it is."""
        chunk_bytes = chunk_bytes_of(state, self._segment_bytes)
        is_shared = len(donors) > 1 and is_worth_sharing(state, chunk_bytes, self._least_shared_bytes)
        if is_shared:
            for index, donor in enumerate(donors[1:], 1):
                wish = ShareRequest(donors[0], observer, step, index, len(donors), chunk_bytes, state.known)
                self._send_wish(donor, wish)
        return is_shared

    def _copy(
        self, now: float, member: Member, frozen: bytes, record: StateRecord, donors: Sequence[Member]
    ) -> list[Parcel]:
        """The state, which does not change now; a copy that is still in flight to another peer is reused.

        If other donors can share it, they are asked first: they have to copy theirs before the next commit.
        """
        assert self._packer is not None
        step, pack = self._packer
        if self._view is not None:  # the members' scripts see no other before the next commit
            record = replace(record, view=self._view)
        copy = self._copies.get((step, frozen))
        state = pack(frozen) if copy is None else copy.state
        is_shared = self._ask_donors(state, member, step, donors)
        if copy is None:
            self._rooms.check(now, sizes_of(state))
            with self._rooms.taken() as room:
                chunk_bytes = chunk_bytes_of(state, self._segment_bytes)
                copy = StateCopy(step, state, chunk_bytes, is_shared=is_shared, room=room)
            self._copies[step, frozen] = copy
        if not is_shared:
            return [copy.whole(record)]
        self._kept[member] = copy, donors[0], now
        return copy.shared(record, donors)

    def _share(self, wish: ShareRequest) -> Parcel:
        assert self._packer is not None
        try:
            with self._rooms.taken(wish.observer) as room:
                state = self._packer[1](wish.frozen)
                check_memory(sizes_for(state, wish) if room is None else ())
                return share_of(state, wish, room)
        except UNPACKABLE:  # the first says so, too, if it cannot pack it either
            return declined(wish)

    def feed(
        self, now: float, feeds: Sequence[Feed], finish: Finish, commit: Commit, numerics: bytes = NO_NUMERICS
    ) -> None:
        """Send a committed step to observers; its results have not been handed out yet, and are copied.

        `numerics`: class of this peer. In a view of several, `finish` says nothing of the parameters.
        The training thread waits for the commit meanwhile, so the replica is what the step was computed with.
        """
        if not feeds:
            return
        counts = any(o.collective.is_counts for o in commit.operations)
        is_of_model = finish.state_digest or (finish.is_mixed and counts)
        record = StepRecord(
            feeds[0].previous,
            feeds[0].digest,
            finish,
            commit.view,
            counts_of(commit.receipt),
            commit.receipt.algorithms,
            commit.fingerprints,
            self.show() if is_of_model else b"",
            numerics,
            commit.path,
        )
        parcel = Parcel(finish.step, record, [copied(o.common.view(np.uint8).data) for o in commit.operations])
        for feed in feeds:
            stream = self._streams.get(feed.member)
            kept = stream.steps() if stream is not None else []
            is_short = len(kept) < MOST_FED and sum(step.num_bytes for step in kept) < self._most_fed_bytes
            is_needed = is_of_script(parcel) and bool(kept) and kept[-1].step == parcel.step - 1
            if len(kept) < FEWEST_FED or is_short or is_needed:
                self._put(now, feed.member, parcel)

    # Streams.

    def _put(self, now: float, member: Member, parcel: Parcel) -> None:
        if member not in self._streams:
            self._num_streams += 1
            self._streams[member] = Stream(self._num_streams, now, Window(self._segment_bytes))
        stream = self._streams[member]
        if not stream.parcels:
            stream.moved = now
        stream.parcels.append(parcel)
        self._pump(now, member, stream)

    def _pump(self, now: float, member: Member, stream: Stream) -> None:
        try:
            for segment in stream.due(now, self._segment_bytes):
                self._send(member, stream.number, segment)
        except (MemoryShort, FrozenDiffer) as error:  # who lacked memory has said so; another state may be asked for
            self._give_up(member, is_unlike=isinstance(error, FrozenDiffer))

    def _give_up(self, member: Member, *, is_unlike: bool = False) -> None:
        self._streams.pop(member, None)
        self._kept.pop(member, None)
        self._requests.cancel_given(member, is_unlike=is_unlike)

    def begin_exchange(self) -> None:
        """The exchange of a step began: it may commit before other donors have heard of a copy."""
        self._is_exchanging = True

    def end_exchange(self) -> None:
        """The exchange has committed or is redone; from now on a copy may make the step wait."""
        self._is_exchanging = False

    def resume_streams(self, now: float) -> None:
        """A state is whole by now."""
        self._kept = {member: (copy, me, now) for member, (copy, me, _) in self._kept.items()}
        for member, stream in list(self._streams.items()):
            self._pump(now, member, stream)

    def acked(self, now: float, taken: Taken) -> None:
        """A receiver acknowledges segments of its stream."""
        stream = self._streams.get(taken.source)
        is_news = stream is not None and stream.number == taken.stream
        if stream is None or not is_news or not stream.num_acked < taken.num_segments <= stream.num_sent:
            return
        stream.window.acked(now, taken.num_segments - stream.num_acked)
        stream.num_acked, stream.moved = taken.num_segments, now
        if (kept := self._kept.get(taken.source)) is not None:
            self._kept[taken.source] = *kept[:2], now
        self._pump(now, taken.source, stream)

    def expire(self, now: float) -> bool:
        """Drop streams whose receivers take nothing (they may ask again), and release memory without a waiting peer.

        Returns whether there is memory for the state that somebody waits for, which may be copied now.
        """
        self._rooms.expire(now, is_wanted=bool(self.waiting))
        for member, stream in list(self._streams.items()):
            if stream.num_acked < stream.num_sent and now - stream.moved > ACK_TIMEOUT_S:
                self._give_up(member)
        for member in [member for member, (_, _, at) in self._kept.items() if now - at > KEPT_S]:
            del self._kept[member]
        return bool(self.waiting) and self._rooms.is_ready(now) and not self._is_exchanging
