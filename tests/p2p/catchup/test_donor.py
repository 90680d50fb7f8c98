from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossip import Member
from gossip.effects import Feed
from gossip.fed_steps import MOST_FED
from gossip.progress import Finish
from p2p.catchup.donor import ACK_TIMEOUT_S, FEWEST_FED, Donor
from p2p.catchup.window import FIRST as WINDOW
from p2p.device import MemoryShort
from p2p.net.frames import Taken
from p2p.net.parcels import Assembly, PackedState, Parcel, ParcelSegment, ShareRequest, StateRecord, StepRecord
from p2p.step.collective import AllReduce
from p2p.step.notices import Commit
from p2p.step.operation import Operation
from p2p.step.receipts import write_receipt
from tests.p2p.net.parcels import A, B, C, digest, state, view_of
from tests.p2p.step.group import submission_of

SEGMENT_BYTES = 100
MOST_FED_BYTES = 100_000


class Giver(Donor):
    """A donor whose segments arrive immediately; members that are `deaf` do not acknowledge."""

    def __init__(self) -> None:
        super().__init__(
            self._deliver,
            lambda donor, wish: self.wished.append((donor, wish)),
            segment_bytes=SEGMENT_BYTES,
            most_fed_bytes=MOST_FED_BYTES,
        )
        self.wished: list[tuple[Member, ShareRequest]] = []
        self.deaf: set[Member] = set()
        self.under_way: list[tuple[Member, int, ParcelSegment]] = []
        self.came: list[tuple[Member, Parcel]] = []
        self.refused: list[tuple[Member, str]] = []
        self._counts: dict[tuple[Member, int], int] = {}
        self._assemblies: dict[Member, Assembly] = {}

    def _deliver(self, target: Member, stream: int, segment: ParcelSegment) -> None:
        self.under_way.append((target, stream, replace(segment, payload=bytes(segment.payload))))

    def settle(self, now: float = 0.0) -> None:
        """Deliver all segments, except those to deaf members."""
        while ready := [entry for entry in self.under_way if entry[0] not in self.deaf]:
            target, stream, segment = ready[0]
            self.under_way.remove(ready[0])
            if (segment.part, segment.index) == (0, 0):
                self._assemblies[target] = Assembly(segment.step, is_state=segment.is_state)
            if (parcel := self._assemblies[target].add(segment)) is not None:
                self.came.append((target, parcel))
            count = self._counts[target, stream] = self._counts.get((target, stream), 0) + 1
            self.acked(now, Taken(target, stream, count))

    def give(self, done: int, now: float = 0.0) -> list[tuple[Member, int]]:
        """Serve waiting members when `done` is committed; returns the members and the steps of their states."""
        before = len(self.came)
        self.refused += self.serve(now, done, StateRecord(digest(done), view_of(A)))
        self.settle(now)
        return [(member, parcel.step) for member, parcel in self.came[before:]]


def packed(text: bytes, *tensors: bytes) -> PackedState:
    return PackedState(text, tensors)


PARAMETERS = b"p" * 16


def commit(step: int, *results: np.ndarray, parameters: bytes = PARAMETERS) -> tuple[Finish, Commit]:
    finish = Finish(step, b"r" * 16, parameters, 1)
    receipt = write_receipt(finish, view_of(A), np.array([[5, 6, 6]]), ("ring",))
    operations = [Operation(AllReduce(), result, result, result.shape) for result in results]
    return finish, Commit(receipt, view_of(A), operations, tuple(bytes([i] * 16) for i in range(len(results))))


def feed(
    donor: Giver, step: int, *members: Member, size: int = 10, now: float = 0.0, parameters: bytes = PARAMETERS
) -> None:
    feeds = [Feed(member, step, digest(step - 1), digest(step)) for member in members]
    donor.feed(now, feeds, *commit(step, np.full(size, step % 100, np.uint8), parameters=parameters))


def call(donor: Giver, *steps: int, size: int = 10) -> None:
    """Feed B operations of the scripts' own."""
    for step in steps:
        feed(donor, step, B, size=size, parameters=b"")


# States


def test_a_state_is_given_when_it_is_asked_for_and_complete() -> None:
    donor = Giver()
    donor.ask(A, 3, has_seat=True)
    assert donor.give(3) == []
    donor.complete(3, lambda known: packed(b"3", b"tensor"))
    donor.ask(B, 3, has_seat=True)
    donor.ask(C, 4, has_seat=True)
    assert donor.give(3) == [(A, 3), (B, 3)]
    (_, parcel), _ = donor.came
    assert (parcel.record, [*parcel.parts]) == (state(3).record, [b"3", b"tensor"])


def test_a_state_that_is_being_copied_is_sent_when_it_is_whole_and_nobody_waits_for_that() -> None:
    donor, memory = Giver(), bytearray(6)
    donor.complete(3, lambda known: PackedState(b"3", [memoryview(memory)], lambda: memory == b"tensor"))
    donor.ask(A, 3, has_seat=True)
    assert donor.give(3) == [] and donor.under_way == []
    feed(donor, 4, A, now=2 * ACK_TIMEOUT_S)
    donor.expire(3 * ACK_TIMEOUT_S)
    donor.resume_streams(0.0)
    assert donor.under_way == []
    memory[:] = b"tensor"
    donor.resume_streams(0.0)
    donor.settle()
    assert [(member, parcel.step, type(parcel.record)) for member, parcel in donor.came] == [
        (A, 3, StateRecord),
        (A, 4, StepRecord),
    ]
    assert bytes(donor.came[0][1].parts[1]) == b"tensor"


@pytest.mark.parametrize("has_seat", [True, False])
def test_a_state_for_which_there_is_no_memory_is_not_sent_and_may_be_asked_for_again(has_seat: bool) -> None:
    donor, is_short = Giver(), True

    def is_whole() -> bool:
        if is_short:
            raise MemoryShort(6, 5)
        return True

    donor.complete(3, lambda known: PackedState(b"3", [memoryview(b"tensor")], is_whole))
    donor.ask(A, 3, has_seat=has_seat)
    assert donor.give(3) == []
    donor.resume_streams(0.0)
    is_short = False
    donor.complete(3, lambda known: PackedState(b"3", [memoryview(b"tensor")], is_whole))
    donor.ask(A, 3, has_seat=has_seat)
    assert donor.give(3) == [(A, 3)] and bytes(donor.came[0][1].parts[1]) == b"tensor"


def test_a_state_names_the_view_of_its_step_and_not_the_one_that_is_installed_since() -> None:
    """The members' scripts see the later view after the next commit, and a joiner's script must not see it earlier."""
    donor = Giver()
    donor.complete(3, lambda known: packed(b"3"), view_of(A, B))
    donor.ask(B, 3, has_seat=True)
    assert donor.give(3) == [(B, 3)]
    ((_, parcel),) = donor.came
    assert parcel.record == StateRecord(digest(3), view_of(A, B)) != state(3).record


def test_a_state_that_a_later_step_has_changed_is_given_to_an_observer_only() -> None:
    donor = Giver()
    donor.complete(3, lambda known: packed(b"3"))
    donor.ask(A, 3, has_seat=True)
    donor.ask(B, 4, has_seat=True)
    donor.ask(C, 3, has_seat=False)
    assert donor.give(4) == []
    donor.complete(4, lambda known: packed(b"4"))
    assert donor.give(4) == [(B, 4), (C, 4)]


def test_a_member_is_given_a_state_once_in_a_view() -> None:
    donor = Giver()
    donor.complete(3, lambda known: packed(b"3"))
    donor.ask(A, 3, has_seat=True)
    assert donor.give(3) == [(A, 3)]
    donor.ask(A, 3, has_seat=True)
    assert donor.give(3) == []
    donor.install()
    assert donor.give(3) == []
    donor.ask(A, 3, has_seat=True)
    assert donor.give(3) == [(A, 3)]


def test_a_member_whose_state_was_lost_on_its_way_is_given_it_again_in_the_same_view() -> None:
    donor = Giver()
    donor.deaf = {A}
    donor.complete(3, lambda known: packed(b"3"))
    donor.ask(A, 3, has_seat=True)
    assert donor.give(3) == []
    donor.expire(ACK_TIMEOUT_S + 0.1)
    donor.under_way, donor.deaf = [], set()
    donor.ask(A, 3, has_seat=True)
    assert donor.give(3) == [(A, 3)]


def test_an_observer_that_asks_while_a_state_is_on_its_way_is_given_no_other() -> None:
    donor = Giver()
    donor.deaf = {B}
    donor.complete(3, lambda known: packed(b"3", bytes(2000)))
    donor.ask(B, 3, has_seat=False)
    assert donor.give(3) == []
    donor.ask(B, 3, has_seat=False)
    donor.complete(4, lambda known: packed(b"4"))
    assert donor.give(4) == []
    donor.deaf = set()
    assert donor.give(4) == [(B, 3)]
    donor.ask(B, 4, has_seat=False)
    assert donor.give(4) == [(B, 4)]


def test_who_has_a_seat_meanwhile_is_given_the_state_that_its_barrier_needs() -> None:
    donor = Giver()
    donor.deaf = {B}
    donor.complete(3, lambda known: packed(b"3", bytes(2000)))
    donor.ask(B, 3, has_seat=False)
    donor.give(3)
    donor.ask(B, 4, has_seat=True)
    donor.complete(4, lambda known: packed(b"4"))
    donor.give(4)
    donor.deaf = set()
    assert donor.give(4) == [(B, 3), (B, 4)]


def test_one_copy_serves_all_who_wait_and_later_changes_do_not_reach_it() -> None:
    memory = bytearray(b"3" * 3000)
    num_copies = 0

    def pack(known: bytes) -> PackedState:
        nonlocal num_copies
        num_copies += 1
        return PackedState(b"", [memoryview(memory)])

    donor = Giver()
    donor.deaf = {A, B}
    donor.complete(3, pack)
    for member in (A, B):
        donor.ask(member, 3, has_seat=False)
    assert donor.give(3) == []
    memory[:] = b"4" * 3000
    donor.deaf = set()
    assert donor.give(4) == [(A, 3), (B, 3)]
    assert [parcel.parts[1] for _, parcel in donor.came] == [b"3" * 3000] * 2
    assert num_copies == 1


def test_a_state_that_cannot_be_packed_is_named_with_the_reason() -> None:
    def pack(known: bytes) -> PackedState:
        raise TypeError("parts[0].when: datetime is not allowed")

    donor = Giver()
    donor.complete(3, pack)
    donor.ask(A, 3, has_seat=False)
    assert donor.give(3) == []
    assert donor.refused == [(A, "the state cannot be sent to it: parts[0].when: datetime is not allowed")]


def test_nobody_in_a_barrier_waits_for_a_state_that_may_stay_incomplete_and_an_observer_does() -> None:
    donor = Giver()
    donor.complete(2, lambda known: packed(b"2"))
    donor.withhold(3)
    donor.ask(A, 3, has_seat=True)
    donor.ask(B, 3, has_seat=False)
    assert donor.give(3) == []
    ((member, reason),) = donor.refused
    assert (member, "between a backward pass and the next" in reason) == (A, True)
    donor.complete(4, lambda known: packed(b"4"))
    assert donor.give(4) == [(B, 4)]


def test_who_asks_between_two_updates_of_a_batch_is_left_to_wait_for_what_is_fed_for_a_while() -> None:
    donor = Giver()
    donor.withhold(3, 1.0)
    for now, num_refused in ((5.0, 0), (5.9, 0), (6.0, 1)):
        donor.ask(A, 3, has_seat=True)
        assert donor.give(3, now) == [] and len(donor.refused) == num_refused
    donor.install()
    donor.ask(A, 3, has_seat=True)
    assert donor.give(3, 7.0) == [] and len(donor.refused) == 1, "in another view it begins to wait anew"


def test_who_was_given_a_state_and_asks_again_is_left_to_wait_as_long_again() -> None:
    donor = Giver()
    donor.withhold(3, 1.0)
    donor.ask(A, 3, has_seat=True)
    assert donor.give(3, 5.0) == []
    donor.complete(3, lambda known: packed(b"3"))
    assert donor.give(3, 5.5) == [(A, 3)]
    donor._requests.cancel_given(A, is_unlike=False)
    donor.ask(A, 3, has_seat=True)
    donor.withhold(3, 1.0)
    assert donor.give(3, 6.5) == [] and donor.refused == []


# Steps


def test_a_step_is_fed_with_the_results_as_they_were() -> None:
    donor = Giver()
    result = np.arange(5, dtype=np.float32)
    finish, committed = commit(4, result, np.zeros(0, np.int64))
    donor.feed(0.0, [Feed(B, 4, digest(3), digest(4)), Feed(C, 4, digest(3), digest(4))], finish, committed)
    result[:] = 0
    donor.settle()
    assert [member for member, _ in donor.came] == [B, C]
    for _, parcel in donor.came:
        assert [*parcel.parts] == [np.arange(5, dtype=np.float32).tobytes(), b""]
        assert parcel.record == StepRecord(
            digest(3), digest(4), finish, view_of(A), ((5, 6, 6),), ("ring",), (bytes(16), bytes([1] * 16))
        )


def test_a_step_of_a_model_shows_what_the_replica_is_like() -> None:
    donor = Giver()
    donor.show = lambda: b"lr 0.1"
    finish, committed = commit(4, np.zeros(1))
    for each in (replace(finish, state_digest=b""), finish):
        donor.feed(0.0, [Feed(B, 4, digest(3), digest(4))], each, committed)
    donor.settle()
    records = [parcel.record for _, parcel in donor.came]
    assert [record.shown for record in records if isinstance(record, StepRecord)] == [b"", b"lr 0.1"]


def test_r9_a_step_says_where_the_script_has_called_it() -> None:
    donor = Giver()
    finish, committed = commit(4, np.zeros(1), parameters=b"")
    donor.feed(0.0, [Feed(B, 4, digest(3), digest(4))], finish, replace(committed, path=b"here"))
    donor.settle()
    ((_, parcel),) = donor.came
    assert isinstance(parcel.record, StepRecord) and parcel.record.path == b"here"


def test_nothing_is_copied_for_nobody() -> None:
    donor = Giver()
    feed(donor, 4)
    donor.settle()
    assert donor.came == []


def test_what_follows_a_state_comes_after_it() -> None:
    donor = Giver()
    donor.complete(3, lambda known: packed(b"3", bytes(5000)))
    donor.ask(B, 3, has_seat=False)
    donor.deaf = {B}
    donor.give(3)
    feed(donor, 4, B)
    feed(donor, 5, B)
    donor.deaf = set()
    donor.settle()
    assert [parcel.step for _, parcel in donor.came] == [3, 4, 5]


def test_steps_that_wait_are_bounded_by_their_bytes() -> None:
    donor = Giver()
    donor.deaf = {B}
    donor.complete(0, lambda known: packed(b"", bytes(2 * WINDOW * SEGMENT_BYTES)))
    donor.ask(B, 0, has_seat=False)
    donor.give(0)
    large = MOST_FED_BYTES // 2
    for step in range(1, FEWEST_FED + 3):
        feed(donor, step, B, size=large)
    (stream,) = donor._streams.values()
    assert [parcel.step for parcel in stream.steps()] == [1, 2, 3, 4]


def test_r9_what_is_left_out_begins_with_a_step_of_the_model() -> None:
    """A script can load a state there; for an operation of its own it needs the result."""
    donor = Giver()
    donor.deaf = {B}
    large = MOST_FED_BYTES // 2
    for step in range(FEWEST_FED):
        feed(donor, step, B, size=large)
    call(donor, FEWEST_FED, FEWEST_FED + 1, size=large)
    feed(donor, FEWEST_FED + 2, B, size=large)
    call(donor, FEWEST_FED + 3, size=large)
    (stream,) = donor._streams.values()
    assert [parcel.step for parcel in stream.steps()] == [*range(FEWEST_FED + 2)]


def test_r9_a_state_overtakes_no_operation_of_a_script_before_a_step_of_the_model() -> None:
    donor = Giver()
    donor.deaf = {B}
    feed(donor, 1, B, size=2 * WINDOW * SEGMENT_BYTES)
    call(donor, 2, 3)
    feed(donor, 4, B)
    call(donor, 5)
    donor.complete(5, lambda known: packed(b"state"))
    donor.ask(B, 5, has_seat=False)
    donor.give(5)
    donor.deaf = set()
    donor.settle()
    assert [(parcel.step, isinstance(parcel.record, StateRecord)) for _, parcel in donor.came] == [
        (1, False),
        (2, False),
        (3, False),
        (5, True),
    ]


def test_steps_that_wait_are_bounded_by_their_number() -> None:
    donor = Giver()
    donor.deaf = {B}
    for step in range(WINDOW + MOST_FED + 10):
        feed(donor, step, B)
    (stream,) = donor._streams.values()
    assert len(stream.steps()) == MOST_FED


def test_a_state_overtakes_the_steps_that_nothing_was_sent_of() -> None:
    """Otherwise an observer that is far behind would receive steps that it no longer needs."""
    donor = Giver()
    donor.deaf = {B}
    for step in range(20):
        feed(donor, step, B, size=WINDOW * SEGMENT_BYTES)
    donor.complete(19, lambda known: packed(b"state"))
    donor.ask(B, 19, has_seat=False)
    donor.give(19)
    feed(donor, 20, B)
    donor.deaf = set()
    donor.settle()
    assert [(member, parcel.step, isinstance(parcel.record, StateRecord)) for member, parcel in donor.came] == [
        (B, 0, False),
        (B, 19, True),
        (B, 20, False),
    ]


@given(st.lists(st.integers(1, 2000), min_size=1, max_size=8), st.integers(0, 30))
@settings(deadline=None)
def test_only_a_window_is_under_way_to_one_peer(sizes: list[int], num_taken: int) -> None:
    donor = Giver()
    for step, size in enumerate(sizes):
        feed(donor, step, B, size=size)
        assert len(donor.under_way) <= WINDOW
    count = min(num_taken, len(donor.under_way))
    donor.acked(0.0, Taken(B, 1, count))
    assert len(donor.under_way) - count <= WINDOW + 1, "it grows by one where nothing waits"
    for wrong in (Taken(B, 2, 1), Taken(C, 1, 1), Taken(B, 1, 10**6), Taken(B, 1, count)):
        before = len(donor.under_way)
        donor.acked(0.0, wrong)
        assert len(donor.under_way) == before


def test_who_takes_nothing_is_sent_nothing_more_until_it_asks_again() -> None:
    donor = Giver()
    donor.deaf = {B}
    feed(donor, 1, B, size=5000)
    donor.expire(ACK_TIMEOUT_S)
    assert len(donor._streams) == 1
    donor.expire(ACK_TIMEOUT_S + 0.1)
    assert len(donor.under_way) == WINDOW and not donor._streams
    donor.under_way, donor.deaf = [], set()
    feed(donor, 2, B)
    donor.settle()
    assert donor.came[0][1].step == 2


def test_who_took_everything_long_ago_is_not_given_up() -> None:
    donor = Giver()
    feed(donor, 1, B)
    donor.settle()
    feed(donor, 2, B, now=2 * ACK_TIMEOUT_S)
    donor.expire(2 * ACK_TIMEOUT_S)
    donor.settle()
    assert [parcel.step for _, parcel in donor.came] == [1, 2]


def test_who_is_gone_or_seated_is_sent_nothing_more() -> None:
    donor = Giver()
    donor.deaf = {A, B, C}
    for member in (A, B, C):
        donor.ask(member, 9, has_seat=False)
        feed(donor, 1, member, size=5000)
    donor.seated(view_of(A, B))
    donor.forget(C)
    donor.deaf = set()
    donor.settle()
    donor.complete(9, lambda known: packed(b"9"))
    assert donor.give(9) == [] and donor.came == []


def test_what_has_changed_since_a_step_was_computed_with_it_is_found_once_somebody_is_to_be_given_it() -> None:
    donor, digests = Giver(), [b"then" * 4]
    submission = submission_of(1, state_digest=digests[0])
    differs = submission.why_damaged
    donor.complete(0, lambda known: packed(b"state", b"abc"))
    donor.digest = lambda: digests[0]
    donor.ask(B, 0, has_seat=False)
    assert donor.why_damaged(0.0, 0, differs) == ""
    digests[0] = b"now!" * 4
    assert donor.why_damaged(0.0, 1, differs) == "", "another step is committed, so the state is another one"
    why = donor.why_damaged(0.0, 0, differs)
    assert "since step 1 was computed" in why and (b"then" * 4).hex() in why and (b"now!" * 4).hex() in why
    donor.digest = None
    assert donor.why_damaged(0.0, 0, differs) == ""
    donor.digest = lambda: digests[0]
    donor.forget(B)
    assert donor.why_damaged(0.0, 0, differs) == "", "nobody asks"
    assert submission.why_damaged(b"then" * 4) == ""
