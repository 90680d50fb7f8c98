"""The observer: states, and committed steps of the members, received by a peer without a seat. Belongs to the loop.

The core decides what is requested, loaded and run (gossip/observing.py); this module keeps the bytes until then.

An observer runs its training loop like a member. Once its training thread has submitted the operations of a step that
the members have committed, it receives the results of that step, so clipping, schedules and any optimizer see the same
as on members. A state is offered to the training thread, which loads it when it next waits in a step of the model: what
it has submitted does not count, so it does not matter with which parameters that was computed. If it waits for an
operation called by the script itself, whose result no state contains, the offer is withdrawn until that operation has
run. A peer that was removed in such an operation, and has loaded no state since, receives the result of the next one
that members call at the same place of their loops, and so reaches a place where it can load a state.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from gossip import Core, Member
from gossip import effects as fx

from ..errors import OperationMismatch, RemoteProtocolError, RemovedFromView, ShoalError
from ..host.prefaulted_memory import room_of
from ..net.frames import Delivery
from ..net.parcels import Assembly, Chunk, PackedState, Parcel, ParcelSegment, StateRecord, StepRecord
from ..step.call_path import CallPath
from ..step.effects import Leave, Note, StepEffect, Tell
from ..step.notices import StateOffer
from ..step.open_step import OpenStep
from ..step.submission import Submission
from ..step.transitions import Stage
from ..telemetry.records import Kind
from .multi_donor_states import MultiDonorStates
from .replica import Replica
from .rooms import LEAST_BYTES, Make, Room
from .stream import is_of_script

logger = logging.getLogger("p2p")

Effect = fx.Effect | StepEffect

MOST_SOURCES = 256
"""Most peers whose streams are accepted."""

MOST_COMPARED = 32
"""Most steps that were run, and most that are kept, which are compared to find out whether the loop has phases."""

FIND_S = 30.0
"""How long a script that was removed in an operation waits for members to reach the same place of their loops."""

NOWHERE = (
    f"this peer was removed in an operation that its script calls by itself, and for {FIND_S:g} s the members have not "
    "called it in the same place of their loops, so it has no result here"
)

EACH_PERCENT = 5
"""Progress of a state is recorded in steps of so many percent."""


@dataclass(slots=True)
class Arrival:
    """How much of the state after `step` has arrived, and the percentage recorded last."""

    step: int
    num_bytes: int = 0
    percent: int = 0


class Observer:
    """A peer on its way into a view.

    Attributes:
        check: why this replica cannot continue, if it differs from the feeder's, as shown in this step.
    """

    def __init__(
        self,
        core: Core,
        open_step: OpenStep,
        send_taken: Callable[[Member, int, int], None],
        ask_for_chunks: Callable[[Member, int, Sequence[Chunk]], None],
        make_room: Make | None = None,
    ) -> None:
        """An observer that has received nothing.

        Args:
            core: of this peer.
            open_step: of this peer.
            send_taken: takes a source, its stream and a number of segments.
            ask_for_chunks: takes the first donor of a state, its step, and chunks.
            make_room: prepares memory for a state; None: none is prepared.
        """
        self.check: Callable[[int, bytes, bool], ShoalError | None] = lambda step, shown, is_akin: None
        self._is_at: Callable[[Sequence[bytes]], bool] = lambda shown: True
        self._core = core
        self._open_step = open_step
        self._send_taken = send_taken
        self._streams: dict[Member, tuple[int, int]] = {}
        self._assemblies: dict[Member, Assembly] = {}
        self._shared = MultiDonorStates(ask_for_chunks, lambda: self._room)
        self._make_room = make_room
        self._room: Room | None = None
        self._sizes: Sequence[int] = ()
        self._states: dict[tuple[int, bytes], Parcel] = {}
        self._offered: tuple[int, bytes] | None = None
        self._is_told = self._is_of_other_run = False
        self._find_out: Callable[[PackedState, bytes], bool] = lambda state, lineage: False
        self._sought: CallPath | None = None
        self._sought_since = 0.0
        self._steps: dict[tuple[int, bytes], Parcel] = {}
        self._arrival = Arrival(-1)
        self._ran: deque[bytes] = deque(maxlen=MOST_COMPARED)
        self._fitted: tuple[Submission | None, bool] = None, False

    def use(self, replica: Replica) -> None:
        """States are those of `replica`."""
        self.check, self._is_at, self._sizes = replica.check, replica.is_at, replica.sizes
        self._find_out = replica.is_of_other_run
        self._ran.clear()

    def expect(self) -> None:
        """A state was requested: prepare memory, for the first one."""
        make, self._make_room = self._make_room, None
        if make is not None and sum(self._sizes) >= LEAST_BYTES:
            self._room = make(room_of(self._sizes))

    def _give_back(self) -> None:
        if self._room is not None:
            self._room.drop()
            self._room = None

    # What comes.

    def receive(self, now: float, delivery: Delivery) -> list[Effect]:
        """Take a segment of a parcel.

        Raises:
            RemoteProtocolError: out of order, or damaged; the parcel is lost.
        """
        source, stream, segment = delivery
        is_first = (segment.part, segment.index) == (0, 0)
        number, count = self._streams.get(source, (0, 0))
        if self._core.seated or stream < number or (stream > number and not is_first):
            return []  # nothing is needed any more, or it began before this peer listened
        self._streams.pop(source, None)
        self._streams[source] = stream, count + 1 if stream == number else 1
        if len(self._streams) > MOST_SOURCES:
            self.forget(next(iter(self._streams)))
        self._send_taken(source, *self._streams[source])
        if segment.is_share:
            return [*self._arrived(segment), *self._take_share(now, source, segment)]
        if is_first:
            self._assemblies[source] = Assembly(segment.step, is_state=segment.is_state)
        if source not in self._assemblies:
            return []
        if segment.is_state and not self._core.state_segment_arrived(now, source, segment.step):
            return []
        noted: list[Effect] = []
        if segment.is_state and is_first:
            logger.info("the state after step %d comes from %s", segment.step, source)
            noted.append(Note(Kind.STATE, segment.step))
        if segment.is_state:
            noted += self._arrived(segment)
        try:
            parcel = self._assemblies[source].add(segment)
        except RemoteProtocolError:
            del self._assemblies[source]
            raise
        if parcel is None:
            return noted
        del self._assemblies[source]
        if isinstance(parcel.record, StateRecord) and parcel.record.donors:
            return [*noted, *self._take_all(self._shared.begin(now, source, parcel))]
        return [*noted, *self._take(parcel)]

    def _arrived(self, segment: ParcelSegment) -> list[Effect]:
        """A part of a state has arrived: record each twentieth once. What arrives twice counts twice."""
        if segment.step != self._arrival.step:
            self._arrival = Arrival(segment.step)
        arrival, total = self._arrival, sum(self._sizes)
        arrival.num_bytes += len(segment.payload)
        percent = min(99, 100 * arrival.num_bytes // total) if total else 0
        if percent < arrival.percent + EACH_PERCENT:
            return []
        arrival.percent = percent - percent % EACH_PERCENT
        return [Note(Kind.COMING, arrival.step, arrival.percent, float(arrival.num_bytes))]

    def _take_share(self, now: float, source: Member, segment: ParcelSegment) -> list[Effect]:
        """Take a segment of a share, of a state whose first donor may be another member."""
        first = self._shared.first_of(source, segment)
        if first is None or not self._core.state_segment_arrived(now, first, segment.step):
            return []
        return self._take_all(self._shared.receive(now, source, first, segment))

    def _take_all(self, parcels: Sequence[Parcel]) -> list[Effect]:
        return [effect for parcel in parcels for effect in self._take(parcel)]

    def forget(self, source: Member) -> None:
        """`source` is gone: drop what it has sent in part."""
        self._streams.pop(source, None)
        self._assemblies.pop(source, None)
        self._shared.forget(source)

    def seated(self) -> None:
        """This peer has a seat: drop everything."""
        self._shared.clear()
        self._give_back()
        self._streams, self._assemblies, self._states, self._steps, self._offered = {}, {}, {}, {}, None

    def _take(self, parcel: Parcel) -> list[Effect]:
        step, record = parcel.step, parcel.record
        if isinstance(record, StateRecord):
            self._states[step, record.digest] = parcel
            whole = Note(Kind.WHOLE, step, max(1, len(record.donors)), float(parcel.num_bytes))
            return [whole, *self._core.state_arrived(step, record.digest, record.view.lineage, record.numerics)]
        assert isinstance(record, StepRecord)
        if step <= self._core.done:
            return []
        self._steps[step, record.digest] = parcel
        is_own = is_of_script(parcel)
        return [*self._core.fed(step, record.previous, record.digest, parcel.num_bytes, is_own=is_own)]

    # What the core says of it.

    def load(self, now: float, step: int, digest: bytes) -> list[Effect]:
        """Offer this state, if it has arrived, unless the training thread waits for an operation called by the script.

        A state of another run is offered in any case: no result of that run is handed out.
        """
        parcel = self._states.get((step, digest))
        if parcel is None:
            return []
        assert isinstance(parcel.record, StateRecord)
        self._offered, self._is_told = (step, digest), False
        self._is_of_other_run = self._find_out(_state_of(parcel), parcel.record.view.lineage)
        return self._offer(now)

    def _offer(self, now: float) -> list[Effect]:
        """Offer the state, unless that was done, or the training thread waits for an operation called by the script."""
        assert self._offered is not None
        if self._waits(for_model=False) and not self._is_of_other_run:
            assert self._open_step.submission is not None
            place = self._open_step.submission.place
            return self._decline(now, self._offered) if place is None or not place.is_sought else self._find(now, place)
        if self._is_told:
            return []
        self._is_told = True
        parcel = self._states[self._offered]
        record = parcel.record
        assert isinstance(record, StateRecord)
        return [Tell(StateOffer(parcel.step, record.digest, record.view, _state_of(parcel), record.is_due))]

    def _find(self, now: float, place: CallPath) -> list[Effect]:
        """Give the training thread the result for which it waits at `place`, if members have reached that place."""
        since = self._sought_since if self._sought is place else now
        self._sought, self._sought_since = place, since
        for step in sorted(self._steps):
            record = self._steps[step].record
            assert isinstance(record, StepRecord)
            if record.path == place.path and self._open_step.is_like(record):
                return [Tell(self._open_step.adopt_renumbered(record, self._steps[step].parts))]
        return [Tell(RemovedFromView(NOWHERE, is_final=True))] if now >= since + FIND_S else []

    def _waits(self, *, for_model: bool) -> bool:
        """Whether the training thread waits in a step of the model, or else for an operation called by the script."""
        submission = self._open_step.submission
        is_closed = self._open_step.stage is Stage.CLOSED and submission is not None
        return is_closed and submission is not None and bool(submission.state_digest) == for_model

    def _fits(self) -> bool:
        """Whether all steps of the model are like the submitted one: then any state fits the training thread.

        A loop of several phases has to be in the phase of its donor, which no state says. Operations of two phases may
        be the same, so their optimizers and models are compared, too.
        """
        if self._fitted[0] is not self._open_step.submission:
            records = (parcel.record for parcel in reversed(self._steps.values()))
            shown = (record for record in records if isinstance(record, StepRecord) and record.shown)
            kept = list(islice(shown, MOST_COMPARED))
            fits = bool(kept) and all(map(self._open_step.is_like, kept))
            fits = fits and self._is_at([*self._ran, *(record.shown for record in kept)])
            self._fitted = self._open_step.submission if kept else None, fits
        return self._fitted[1]

    def _decline(self, now: float, offered: tuple[int, bytes]) -> list[Effect]:
        """The training thread cannot load the state where it is; the core says when to offer it again."""
        self._offered = None
        return [*self._core.declined(now, *offered)]

    def not_loaded(self, now: float, step: int, digest: bytes, refusal: ShoalError | None) -> list[Effect]:
        """The training thread is in the middle of a batch: the state is offered again, or `refusal` ends this peer.

        Without `refusal` this peer no longer has what the state leaves out, and another one is requested.
        """
        effects = self._core.lacks(step, digest) if refusal is None else self._core.put_off(now, step, digest)
        if effects is None:
            assert refusal is not None
            return [Tell(refusal)]
        self._offered = None if self._offered == (step, digest) else self._offered
        return [*effects]

    def drop(self, step: int, digest: bytes) -> None:
        """Drop a state that is of no use."""
        self._states.pop((step, digest), None)

    def discard(self, step: int, digest: bytes) -> None:
        """Drop a step that is of no use."""
        self._steps.pop((step, digest), None)

    def loaded(self, now: float, step: int, digest: bytes) -> list[Effect]:
        """The state after `step` is loaded, or that step was run."""
        self.discard(step, digest)
        if self._offered == (step, digest):
            self._offered = None
            del self._states[step, digest]
            self._shared.clear()
            self._give_back()
        return [*self._core.loaded(now, step, digest)]

    def advance(self, now: float) -> list[Effect]:
        """Hand out the results of the step that is due, if the training thread has submitted it.

        An offered state is withdrawn if the training thread waits for an operation called by the script since.
        """
        if whole := self._shared.look(now):
            return self._take_all(whole)
        if self._offered is not None and (offered := self._offer(now)):
            return offered
        if self._waits(for_model=True) and (asked := self._core.waits(now, self._fits)) is not None:
            return [*asked]
        due = self._core.due if self._steps else None
        parcel = None if due is None else self._steps.get(due)
        if parcel is None:
            return []
        record = parcel.record
        assert isinstance(record, StepRecord)
        is_akin = record.numerics == self._core.numerics
        try:
            commit = self._open_step.adopt(record, parcel.parts)
        except OperationMismatch as error:
            unlike = self.check(parcel.step, record.shown, is_akin) if record.shown else None
            return [Tell(unlike)] if isinstance(unlike, RemovedFromView) else [Tell(error), Leave()]
        if commit is None:
            return []
        if record.shown and (unlike := self.check(parcel.step, record.shown, is_akin)) is not None:
            leaves = [] if isinstance(unlike, RemovedFromView) else [Leave()]
            return [Tell(unlike), *leaves]
        if record.shown:
            self._ran.append(record.shown)
        return [Tell(commit), *self.loaded(now, parcel.step, record.digest)]


def _state_of(parcel: Parcel) -> PackedState:
    """The state in `parcel`."""
    assert isinstance(parcel.record, StateRecord)
    tree, *tensors = parcel.parts
    return PackedState(bytes(tree), tensors, known=parcel.record.frozen)
