"""An observer: the production protocol and open step, with simulated messages of the others."""

import random
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from gossip import Claim, Contact, Core, CoreConfig, Envelope, Member, Phase, Run, RunDescription, State, View
from gossip import effects as fx
from gossip import messages as m
from gossip.fed_steps import FEWEST_KEPT, MOST_FED_BYTES
from gossip.progress import Ready, StateQuery
from p2p.catchup.observer import FIND_S, MOST_SOURCES, Effect, Observer
from p2p.catchup.replica import Replica
from p2p.errors import JoinRefused, OperationMismatch, RemoteProtocolError, RemovedFromView, ShoalError
from p2p.net.frames import Delivery
from p2p.net.parcels import Chunk, PackedState, Parcel, ParcelSegment, StepRecord, cut
from p2p.step import effects as sx
from p2p.step.call_path import CallPath
from p2p.step.collective import AllGather, AllReduce
from p2p.step.effects import Note
from p2p.step.notices import Commit, Notice, StateOffer
from p2p.step.open_step import OpenStep
from p2p.step.operation import Operation
from p2p.step.receipts import Contribution
from p2p.telemetry.records import Kind
from tests.p2p.net.parcels import A, B, digest, fed, state, view_of

ME = Member("f" * 16, 1)
SEGMENT_BYTES = 1000
RUN = Run(RunDescription(True), {})


def claim(member: Member) -> Claim:
    return Claim(member, State.ALIVE, Contact(member.peer_id, member.peer_id, 1, 1))


class Newcomer:
    """A peer that has met A, which has committed up to step `head`, and asks it for the state."""

    def __init__(self) -> None:
        self.now = 0.0
        self.told: list[Notice] = []
        self.noted: list[Note] = []
        self.taken: list[tuple[Member, int, int]] = []
        self.asked: list[tuple[Member, int]] = []
        self.asked_chunks: list[tuple[Member, int, Sequence[Chunk]]] = []
        self.missed: list[int] = []
        self.left = False
        self.core = Core(claim(ME), rng=random.Random(1), config=CoreConfig(), now=0.0)
        self.open_step = OpenStep(ME, segment_bytes=SEGMENT_BYTES)
        self.observer = Observer(
            self.core,
            self.open_step,
            lambda *taken: self.taken.append(taken),
            lambda *chunks: self.asked_chunks.append(chunks),
        )
        self.carry_out(self.core.meet(0.0, claim(A)))
        self.carry_out(self.core.ask_for_seat(0.0, RUN, follows=True))

    def carry_out(self, effects: Iterable[Effect]) -> None:
        """Carry out effects in order, then those that follow from them."""
        waiting = deque(effects)
        while waiting:
            match waiting.popleft():
                case fx.Send(target, StateQuery(step)):
                    self.asked.append((target, step))
                case fx.Apply():
                    waiting += self.observer.advance(self.now)
                case fx.Load(step, digest):
                    waiting += self.observer.load(self.now, step, digest)
                case fx.DropState(step, digest):
                    self.observer.drop(step, digest)
                case fx.DropStep(step, digest):
                    self.observer.discard(step, digest)
                case fx.ResultUnavailable(step):
                    self.missed.append(step)
                case sx.Tell(notice):
                    self.told.append(notice)
                case sx.Note() as note:
                    self.noted.append(note)
                case sx.Leave():
                    self.left = True

    @property
    def num_bytes(self) -> int:
        """Bytes of the parcels that the observer keeps."""
        kept = [*self.observer._states.values(), *self.observer._steps.values()]
        return sum(parcel.num_bytes for parcel in kept)

    def hear_head(self, step: int, source: Member = A) -> None:
        self.carry_out(self.core.receive(self.now, Envelope(source, view_of(A).stamp, m.Head(step, digest(step)))))

    def take(self, segment: ParcelSegment, source: Member = A, stream: int = 1) -> None:
        self.carry_out(self.observer.receive(self.now, Delivery(source, stream, segment)))

    def deliver(self, *parcels: Parcel, source: Member = A, stream: int = 1) -> None:
        for parcel in parcels:
            for segment in cut(parcel, SEGMENT_BYTES):
                self.take(segment, source, stream)
        self.carry_out(self.observer.advance(self.now))

    def submit(
        self, step: int, *operations: Operation, parameters: bytes = b"p" * 16, place: CallPath | None = None
    ) -> None:
        attempt = self.core.done + 1
        for operation in operations:
            self.carry_out(self.open_step.submit(step, attempt, operation))
        self.carry_out(self.open_step.close(attempt, parameters, 0, place))
        self.carry_out(self.observer.advance(self.now))

    def call(self, step: int) -> None:
        """Let the script call an operation of its own, outside of a step of the model."""
        self.submit(step, total(), parameters=b"")

    def load(self, state_digest: bytes | None = None) -> StateOffer:
        offer = self.told.pop()
        assert isinstance(offer, StateOffer)
        self.open_step.loaded(offer.step, state_digest)
        self.carry_out(self.observer.loaded(self.now, offer.step, offer.chain))
        self.carry_out(self.observer.advance(self.now))
        return offer

    def falls_behind(self, step: int, *, asks: bool = True) -> None:
        """Let it hear of A's progress twice; it asks for the state, if `asks`."""
        for _ in range(2):
            self.now += 1.5
            self.hear_head(step)
        assert (self.asked[-1] == (A, step)) == asks

    def enters(self, step: int) -> None:
        """Admit it to a view in which A has committed `step`."""
        view = view_of(A, ME, number=2)
        for body in (m.Decide(view), Ready(True, step, digest(step), None)):
            self.carry_out(self.core.receive(self.now, Envelope(A, view.stamp, body)))

    def at(self, step: int) -> None:
        """Let it load the state after `step`."""
        self.hear_head(step)
        self.deliver(state(step))
        self.load()


@pytest.fixture
def observer() -> Newcomer:
    return Newcomer()


def total(value: float = 1.0) -> Operation:
    values = np.full(4, value, np.float32)
    return Operation(AllReduce(), values, np.zeros_like(values), values.shape)


def counts() -> Operation:
    values = np.array([7, 3, 3], np.int64)
    return Operation(AllGather(is_counts=True), values, values, values.shape, "one-shot")


def fingerprints(step: int, *operations: Operation) -> list[bytes]:
    return [operation.fingerprint(SEGMENT_BYTES, index, step) for index, operation in enumerate(operations)]


def sums(step: int, observer: Newcomer, value: float = 5.0) -> Parcel:
    """A fed step of one sum, as committed by A."""
    return fed(step, np.full(4, value, np.float32).tobytes(), fingerprints=fingerprints(step, total()))


# States


def test_a_state_is_asked_for_and_offered_with_the_view_of_its_donor(observer: Newcomer) -> None:
    observer.hear_head(5)
    assert observer.asked == [(A, 5)]
    observer.deliver(state(6, b"tree", b"tensor"))
    offer = observer.load()
    assert (offer.step, offer.chain, offer.view) == (6, digest(6), view_of(A))
    assert (offer.state.tree, [*offer.state.tensors]) == (b"tree", [b"tensor"])
    assert (observer.core.done, observer.core.digest) == (6, digest(6))


def test_each_segment_is_acknowledged_with_their_number(observer: Newcomer) -> None:
    observer.hear_head(5)
    observer.deliver(state(5, bytes(1500)))
    assert observer.taken == [(A, 1, 1), (A, 1, 2), (A, 1, 3)]
    observer.deliver(fed(6), stream=2)
    assert observer.taken[3:] == [(A, 2, 1)]


def test_a_state_from_whom_it_did_not_ask_is_dropped(observer: Newcomer) -> None:
    observer.hear_head(5)
    observer.deliver(state(5), source=B)
    assert observer.told == [] and len(observer.taken) == 2
    observer.deliver(state(5))
    assert observer.load().step == 5


def test_an_older_state_is_dropped(observer: Newcomer) -> None:
    observer.at(5)
    observer.falls_behind(9)
    observer.deliver(state(4), state(5))
    assert observer.told == [] and observer.num_bytes == 0


def test_the_first_segment_of_a_state_is_noted(observer: Newcomer) -> None:
    observer.hear_head(5)
    first, second, _ = cut(state(5, bytes(1500)), SEGMENT_BYTES)
    observer.take(first)
    observer.take(second)
    assert observer.noted == [Note(Kind.STATE, 5)]


def test_how_much_of_a_state_has_come_is_noted_for_each_twentieth(observer: Newcomer) -> None:
    observer.observer.use(
        Replica(traits={}, pack=lambda: PackedState(b"", []), load=lambda state: None, compare=str, sizes=(100_000,))
    )
    observer.hear_head(5)
    observer.deliver(state(5, b"tree", bytes(100_000)))
    coming = [note for note in observer.noted if note.kind == Kind.COMING]
    assert [note.size for note in coming] == list(range(5, 100, 5))
    assert all(note.detail == 5 and 1000 * note.size <= note.value < 1000 * note.size + 2000 for note in coming)


def test_nobody_is_asked_while_a_state_comes_unless_its_donor_is_gone(observer: Newcomer) -> None:
    observer.hear_head(5)
    observer.take(next(cut(state(5, bytes(1500)), SEGMENT_BYTES)))
    observer.now = 1.5
    observer.hear_head(5, source=B)
    assert observer.asked == [(A, 5)]
    observer.carry_out(observer.core.declare_dead(observer.now, A, "gone"))
    observer.observer.forget(A)
    observer.now = 3.0
    observer.hear_head(5, source=B)
    assert observer.asked == [(A, 5), (B, 5)]


def test_a_later_state_waits_until_the_one_before_is_loaded(observer: Newcomer) -> None:
    observer.hear_head(5)
    observer.deliver(state(5), state(8), state(7))
    assert observer.load().step == 5
    assert observer.load().step == 7, "the last that came"
    assert observer.told == [] and observer.num_bytes == 0


def test_a_state_of_another_lineage_than_the_view_is_dropped(observer: Newcomer) -> None:
    observer.enters(5)
    assert not observer.core.seated and observer.asked == [(A, 5)]
    other: View = replace(view_of(A), lineage=bytes(16))
    observer.deliver(state(5, view=other))
    assert observer.told == []
    observer.deliver(state(5))
    assert observer.load().step == 5
    assert observer.core.phase is Phase.ACTIVE


def test_of_many_that_send_parts_of_something_the_latest_are_remembered(observer: Newcomer) -> None:
    segment, *_ = cut(Parcel(0, fed(0, b"").record, [np.zeros(2 * SEGMENT_BYTES, np.uint8).data]), SEGMENT_BYTES)
    for number in range(2 * MOST_SOURCES):
        observer.take(segment, Member(f"{number:016x}", 1))
    kept = observer.observer
    assert len(kept._streams) == MOST_SOURCES and kept._assemblies.keys() <= kept._streams.keys()


def test_the_rest_of_a_stream_that_began_before_is_dropped(observer: Newcomer) -> None:
    observer.hear_head(5)
    for segment in list(cut(state(5, bytes(1500)), SEGMENT_BYTES))[1:]:
        observer.take(segment)
    assert observer.taken == [] and observer.told == []


def test_a_damaged_parcel_is_lost_and_the_next_one_taken(observer: Newcomer) -> None:
    observer.hear_head(5)
    segments = list(cut(state(5, bytes(1500)), SEGMENT_BYTES))
    observer.take(segments[0])
    with pytest.raises(RemoteProtocolError, match="damaged"):
        observer.take(replace(segments[1], payload=b"other"))
    observer.take(segments[2])
    assert observer.told == []
    observer.deliver(state(6))
    assert observer.load().step == 6


# Steps


def test_a_fed_step_is_handed_out_when_the_same_operations_are_submitted(observer: Newcomer) -> None:
    observer.at(5)
    observer.deliver(sums(6, observer), sums(7, observer, 6.0))
    assert observer.told == []
    operation = total()
    observer.submit(6, operation)
    (commit,) = observer.told
    assert isinstance(commit, Commit) and commit.operations == [operation] and commit.view == view_of(A)
    assert (commit.receipt.step, commit.receipt.algorithms) == (6, ("ring",))
    assert commit.receipt.contributions == (Contribution(A.peer_id, 1, (), 0, 0),)
    assert (operation.result == 5.0).all() and (operation.input == 1.0).all()
    assert observer.core.done == 6
    observer.submit(7, total())
    assert observer.core.done == 7


def test_a_step_that_was_submitted_before_it_came_is_handed_out_then(observer: Newcomer) -> None:
    observer.at(5)
    gathered = counts()
    observer.submit(6, gathered, total())
    result = np.arange(6, dtype=np.int64)
    names = fingerprints(6, counts(), total())
    observer.deliver(fed(6, result.tobytes(), np.full(4, 2.0, np.float32).tobytes(), fingerprints=names))
    assert observer.core.done == 6 and gathered.result.tolist() == [0, 1, 2, 3, 4, 5]


def test_the_first_step_is_empty_and_handed_out_by_itself(observer: Newcomer) -> None:
    observer.hear_head(-1)
    observer.deliver(state(-1))
    observer.load()
    observer.deliver(fed(0))
    (commit,) = observer.told
    assert isinstance(commit, Commit) and commit.operations == [] and observer.core.done == 0


def test_other_operations_than_the_members_end_this_peer_alone(observer: Newcomer) -> None:
    observer.at(5)
    observer.deliver(sums(6, observer))
    observer.submit(6, total(), total())
    (error,) = observer.told
    assert isinstance(error, OperationMismatch) and error.is_alone and observer.left
    assert "step 6 is all_reduce sum of float32 [4] by size, all_reduce" in str(error)


def test_a_state_that_comes_in_the_middle_of_a_step_makes_it_the_next_step_which_counts_nothing(
    observer: Newcomer,
) -> None:
    observer.at(5)
    gathered, summed = counts(), total()
    observer.submit(6, gathered, summed)
    observer.falls_behind(8)
    names = fingerprints(9, counts(), total())
    step_9 = fed(9, bytes(48), np.full(4, 9.0, np.float32).tobytes(), fingerprints=names)
    observer.deliver(state(8), step_9)
    assert observer.load(b"q" * 16).step == 8
    (commit,) = observer.told
    assert isinstance(commit, Commit) and commit.receipt.step == 9 and observer.core.done == 9
    assert gathered.input.tolist() == [-1, 0, 0, 0, 0, 0] and (summed.result == 9.0).all()


def test_no_step_is_handed_out_while_a_state_is_to_be_loaded(observer: Newcomer) -> None:
    observer.at(5)
    observer.falls_behind(8)
    observer.deliver(state(8), sums(6, observer))
    observer.submit(6, total())
    assert [type(arrival) for arrival in observer.told] == [StateOffer]
    observer.load(b"q" * 16)
    assert observer.told == [] and observer.core.done == 8


def test_steps_that_wait_are_bounded_by_their_bytes(observer: Newcomer) -> None:
    observer.at(5)
    large = Parcel(0, fed(0, b"").record, [np.zeros(MOST_FED_BYTES // 4, np.uint8).data])
    for step in range(6, 6 + FEWEST_KEPT + 3):
        observer.carry_out(observer.observer._take(replace(fed(step, b""), parts=large.parts)))
    assert [step for step, _ in observer.observer._steps] == [6, 7, 8, 9, 13, 14, 15, 16]


def test_an_operation_of_the_script_is_kept_where_what_it_follows_is(observer: Newcomer) -> None:
    observer.at(5)
    own = fed(7, np.zeros(MOST_FED_BYTES, np.uint8).tobytes())
    assert isinstance(own.record, StepRecord)
    own = replace(own, record=replace(own.record, finish=replace(own.record.finish, state_digest=b"")))
    observer.carry_out(observer.observer._take(fed(6, b"")))
    observer.carry_out(observer.observer._take(own))
    for step in range(8, 8 + FEWEST_KEPT):
        observer.carry_out(observer.observer._take(fed(step, b"")))
    assert {6, 7} < {step for step, _ in observer.observer._steps}


def test_who_has_a_seat_takes_nothing_more(observer: Newcomer) -> None:
    view = view_of(A, ME, number=2)
    observer.at(5)
    observer.carry_out(observer.core.receive(0.0, Envelope(A, view.stamp, m.Decide(view))))
    observer.carry_out(observer.core.receive(0.0, Envelope(A, view.stamp, Ready(True, 5, digest(5), None))))
    assert observer.core.phase is Phase.ACTIVE
    num_taken = len(observer.taken)
    observer.deliver(state(9), sums(6, observer))
    assert observer.told == [] and len(observer.taken) == num_taken


# Progress of the feeder


@pytest.mark.parametrize(
    ("error", "leaves"), [(JoinRefused("lr is 1 here"), True), (RemovedFromView("elsewhere"), False)]
)
def test_who_is_not_like_its_feeder_is_told_so_instead_of_the_step(
    observer: Newcomer, error: ShoalError, leaves: bool
) -> None:
    asked = []

    def check(step: int, shown: bytes, is_akin: bool) -> ShoalError | None:
        assert is_akin
        asked.append((step, shown))
        return error if shown == b"other" else None

    observer.observer.check = check
    observer.at(5)
    for step, shown in ((6, b""), (7, b"like"), (8, b"other")):
        parcel = sums(step, observer)
        assert isinstance(parcel.record, StepRecord)
        observer.submit(step, total())
        observer.deliver(replace(parcel, record=replace(parcel.record, shown=shown)))
    assert asked == [(7, b"like"), (8, b"other")], "a step of no model shows nothing"
    assert [type(notice) for notice in observer.told] == [Commit, Commit, type(error)]
    assert (observer.core.done, observer.left) == (7, leaves)


# Operations of the script's own


def test_r9_who_waits_for_an_operation_of_its_own_is_offered_the_state_after_it(observer: Newcomer) -> None:
    observer.at(5)
    observer.call(6)
    observer.falls_behind(9)
    observer.deliver(state(8))
    assert observer.told == []
    observer.deliver(sums(6, observer))
    commit, offer = observer.told
    assert isinstance(commit, Commit) and commit.receipt.step == 6
    assert isinstance(offer, StateOffer) and offer.step == 8
    assert observer.load().step == 8 and observer.num_bytes == 0


def test_r9_a_state_that_was_offered_before_such_an_operation_is_offered_again(observer: Newcomer) -> None:
    """The script computes while the state arrives, and its next call is not a step of the model."""
    observer.at(5)
    observer.falls_behind(9)
    observer.deliver(state(8), sums(6, observer))
    first = observer.told.pop()
    assert isinstance(first, StateOffer)
    observer.call(6)
    commit, second = observer.told
    assert isinstance(commit, Commit) and isinstance(second, StateOffer)
    assert (commit.receipt.step, second.step) == (6, first.step)
    assert observer.load().step == 8 and observer.num_bytes == 0


def test_r9_an_operation_that_was_left_out_is_missed(observer: Newcomer) -> None:
    observer.at(5)
    observer.call(6)
    observer.falls_behind(9)
    observer.deliver(state(8))
    assert observer.missed == []
    observer.now += 1.0
    observer.hear_head(9)
    assert observer.missed == [6] and observer.told == []


def called(step: int, path: bytes, value: float) -> Parcel:
    """A fed operation of the script's own, called at `path`, with this result."""
    parcel = fed(step, np.full(4, value, np.float32).tobytes(), fingerprints=fingerprints(step, total()))
    assert isinstance(parcel.record, StepRecord)
    return replace(parcel, record=replace(parcel.record, path=path))


def test_r9_who_was_removed_in_such_an_operation_has_the_result_of_the_next_one_there_and_then_the_state(
    observer: Newcomer,
) -> None:
    observer.hear_head(8)
    observer.submit(6, operation := total(), parameters=b"", place=CallPath(b"here", is_sought=True))
    observer.deliver(state(8), called(9, b"there", 2.0))
    assert observer.told == [], "it is another operation, of the same type and size"
    observer.deliver(called(10, b"here", 3.0), called(11, b"here", 4.0))
    (commit,) = observer.told
    assert isinstance(commit, Commit) and (commit.receipt.step, commit.path) == (10, b"here")
    assert operation.result.tolist() == [3.0] * 4 and observer.core.done < 0, "no state is here yet"
    observer.told.clear()
    observer.carry_out(observer.observer.advance(observer.now))
    assert observer.load().step == 8
    assert observer.told == [] and observer.core.done == 8, "it goes on from there"


def test_a_state_of_another_run_is_shown_and_no_result_of_that_run_handed_out(observer: Newcomer) -> None:
    traits = {"model": b"layout"}
    of_other = Replica(
        traits=traits,
        pack=lambda: PackedState(b"", []),
        load=lambda state: None,
        compare=str,
        is_of_other_run=lambda state, lineage: (state.tree, lineage) == (b"tree", view_of(A).lineage),
    )
    observer.observer.use(of_other)
    observer.hear_head(8)
    observer.submit(6, total(), parameters=b"", place=CallPath(b"here", is_sought=True))
    observer.deliver(called(8, b"here", 2.0), state(8), called(9, b"here", 2.0))
    (offer,) = observer.told
    assert isinstance(offer, StateOffer) and offer.step == 8


def test_r9_who_was_removed_where_the_members_do_not_come_ends(observer: Newcomer) -> None:
    observer.hear_head(8)
    observer.submit(6, total(), parameters=b"", place=CallPath(b"here", is_sought=True))
    observer.deliver(state(8), called(9, b"there", 2.0))
    observer.now += FIND_S
    observer.carry_out(observer.observer.advance(observer.now))
    (removed,) = observer.told
    assert isinstance(removed, RemovedFromView) and removed.is_final and f"for {FIND_S:g} s" in removed.reason


def test_r9_who_was_not_removed_has_no_result_of_another_step(observer: Newcomer) -> None:
    observer.hear_head(8)
    observer.submit(6, total(), parameters=b"", place=CallPath(b"here"))
    observer.deliver(state(8), called(9, b"here", 2.0))
    assert observer.told == []


def test_r9_what_is_called_otherwise_at_that_place_is_not_its_result(observer: Newcomer) -> None:
    """Like a sum over the rest of an epoch, with the same line and the same calls."""
    observer.hear_head(8)
    observer.submit(6, total(), parameters=b"", place=CallPath(b"here", is_sought=True))
    other = called(9, b"here", 2.0)
    assert isinstance(other.record, StepRecord)
    observer.deliver(state(8), replace(other, record=replace(other.record, fingerprints=(bytes(16),))))
    assert observer.told == []


def test_r9_members_have_as_long_to_come_to_each_place(observer: Newcomer) -> None:
    observer.hear_head(8)
    observer.submit(6, total(), parameters=b"", place=CallPath(b"here", is_sought=True))
    observer.deliver(state(8))
    observer.now += FIND_S - 1.0
    observer.deliver(called(9, b"here", 2.0))
    assert isinstance(observer.told.pop(), Commit)
    observer.carry_out(observer.open_step.submit(10, 10, total()))
    observer.carry_out(observer.open_step.close(10, b"", 0, CallPath(b"next", is_sought=True)))
    observer.carry_out(observer.observer.advance(observer.now))
    observer.now += FIND_S - 1.0
    observer.carry_out(observer.observer.advance(observer.now))
    assert observer.told == []


@pytest.mark.parametrize("is_here", [True, False])
def test_r9_a_state_that_comes_in_the_middle_of_a_batch_is_offered_again_behind_the_next_step_if_that_is_here(
    observer: Newcomer, is_here: bool
) -> None:
    observer.at(5)
    observer.falls_behind(9)
    observer.deliver(state(8), *([sums(6, observer)] if is_here else []))
    offer = observer.told.pop()
    assert isinstance(offer, StateOffer)
    observer.submit(6, total())
    assert observer.told == [], "the state comes first"
    refusal = JoinRefused("in the middle of a batch")
    observer.carry_out(observer.observer.not_loaded(observer.now, offer.step, offer.chain, refusal))
    if not is_here:
        assert observer.told == [refusal]
        return
    commit, again = observer.told
    assert isinstance(commit, Commit) and isinstance(again, StateOffer)
    assert (commit.receipt.step, again.step) == (6, 8)
    assert observer.load().step == 8 and observer.num_bytes == 0


@pytest.mark.parametrize(
    ("error", "told"),
    [(RemovedFromView("elsewhere"), RemovedFromView), (JoinRefused("lr is 1 here"), OperationMismatch), (None, None)],
)
def test_who_calls_something_else_comes_back_if_it_is_elsewhere_in_its_loop(
    observer: Newcomer, error: ShoalError | None, told: type[ShoalError] | None
) -> None:
    observer.observer.check = lambda step, shown, is_akin: error
    observer.at(5)
    parcel = sums(6, observer)
    assert isinstance(parcel.record, StepRecord)
    observer.deliver(replace(parcel, record=replace(parcel.record, shown=b"other")))
    observer.submit(6, total(), total())
    (notice,) = observer.told
    assert type(notice) is (told or OperationMismatch)
    assert observer.left == (told is not RemovedFromView)


def test_a_state_that_comes_twice_is_kept_while_the_script_loads_it() -> None:
    newcomer = Newcomer()
    newcomer.carry_out(newcomer.core.meet(0.0, claim(B)))
    newcomer.hear_head(7)
    newcomer.core._observing._asked.ask(newcomer.now, B)  # since A was silent
    newcomer.deliver(state(7), source=A)
    newcomer.deliver(state(7), source=B)
    newcomer.deliver(state(8), source=B, stream=2)
    newcomer.load()
    assert [step for step, _ in newcomer.observer._states] == [8]
