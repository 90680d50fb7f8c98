"""Donors whose state is copied by another thread: the copy is of one step, whatever happens meanwhile."""

from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from gossip import Member
from p2p.catchup.donor import ACK_TIMEOUT_S, KEPT_S
from p2p.catchup.state_copy import StateCopy, share_of
from p2p.net.parcels import PackedState, ShareRequest
from tests.p2p.catchup.test_donor import Giver, call, feed
from tests.p2p.catchup.test_several_donors import CHUNK_BYTES, REPLICATED, SIZES, STEP, TREE, Pond, memory
from tests.p2p.net.parcels import A, B, C, view_of


@dataclass
class Thread:
    """A stand-in for the copying thread, which works when the test says so."""

    jobs: list[Callable[[], None]] = field(default_factory=list)
    num_copies: int = 0

    def aside(self, copy: Callable[[], None], then: Callable[[], None]) -> Callable[[], bool]:
        done: list[bool] = []
        self.num_copies += 1
        self.jobs += [copy, then, lambda: done.append(True)]
        return lambda: bool(done)

    def work(self, number: int = 1 << 30) -> None:
        """Carry out some jobs, in order."""
        for job in [*self.jobs[:number]]:
            self.jobs.remove(job)
            job()

    def hold(self) -> None:
        """Act as a caller that is about to change the state: finish all copies that were begun, possibly no others."""
        self.work(max([0, *(index + 1 for index in range(len(self.jobs)) if len(self.jobs[index:]) % 3 == 0)]))


def lent(thread: Thread, *tensors: bytearray) -> PackedState:
    return PackedState(b"tree", [memoryview(tensor) for tensor in tensors], run_in_background=thread.aside)


def test_nothing_is_sent_before_the_copy_is_made_and_what_is_sent_is_the_copy() -> None:
    donor, thread, tensor = Giver(), Thread(), bytearray(b"3" * 250)
    donor.complete(3, lambda known: lent(thread, tensor, bytearray()), view_of(A, B))
    donor.ask(A, 3, has_seat=True)
    assert donor.give(3) == [] and donor.under_way == [] and thread.num_copies == 1
    thread.hold()
    tensor[:] = b"4" * 250  # the next update
    donor.resume_streams(0.0)
    assert donor.under_way == []
    thread.work()
    donor.resume_streams(0.0)
    donor.settle()
    ((member, parcel),) = donor.came
    assert (member, [*parcel.parts]) == (A, [b"tree", b"3" * 250, b""])


def test_one_copy_serves_all_who_ask_before_the_next_commit() -> None:
    donor, thread, tensor = Giver(), Thread(), bytearray(b"3" * 250)
    donor.complete(3, lambda known: lent(thread, tensor))
    donor.ask(A, 3, has_seat=True)
    donor.give(3)
    donor.ask(B, 3, has_seat=True)
    donor.give(3)
    thread.work()
    donor.resume_streams(0.0)
    donor.settle()
    assert thread.num_copies == 1 and [member for member, _ in donor.came] == [A, B]


def test_a_slow_copy_is_no_fault_of_who_waits_for_it() -> None:
    donor, thread, tensor = Giver(), Thread(), bytearray(b"3" * 250)
    donor.complete(3, lambda known: lent(thread, tensor))
    donor.ask(A, 3, has_seat=True)
    donor.give(3)
    late = 2 * ACK_TIMEOUT_S
    thread.work()
    donor.resume_streams(late)
    donor.expire(late)
    donor.settle(late)
    assert [member for member, _ in donor.came] == [A]


EVENTS = ["work", "told", "view", "seated", "forget", "late", "called"]


@given(st.lists(st.sampled_from([*EVENTS, "commit", "asks"]), max_size=25))
def test_whatever_happens_meanwhile_who_is_given_a_state_has_that_of_its_step(events: list[str]) -> None:
    """New views, joiners that leave, updates and further joiners, between any two jobs of the thread."""
    thread = Thread()
    came = play(thread, events, thread.hold)
    for step, bits in came:
        assert bits == bytes([step]) * 250, (step, bits)


def play(thread: Thread, events: list[str], hold: Callable[[], None]) -> list[tuple[int, bytes]]:
    """The received states: step and tensor. `hold`: called before each update."""
    donor, tensor, now, done = Giver(), bytearray(250), 0.0, 0
    donor.complete(done, lambda known: lent(thread, tensor))

    def ask(member: Member) -> None:
        donor.ask(member, done, has_seat=True)
        donor.give(done, now)

    acts: dict[str, Callable[[], object]] = {
        "work": lambda: thread.work(1),
        "told": lambda: donor.resume_streams(now),
        "view": lambda: donor.install(),
        "seated": lambda: donor.seated(view_of(B)),
        "forget": lambda: donor.forget(A),
        "called": lambda: call(donor, done + 1),
        "asks": lambda: [*map(ask, (A, B))],
        "late": lambda: donor.expire(now),
    }
    for event in ["asks", *events]:
        if event == "commit":
            hold()
            feed(donor, done + 1, A, B, now=now)
            done += 1
            tensor[:] = bytes([done]) * 250
            donor.complete(done, lambda known: lent(thread, tensor))
            donor.give(done, now)
        else:
            now += ACK_TIMEOUT_S if event == "late" else 0.0
            acts[event]()
        donor.settle(now)
    thread.work()
    donor.resume_streams(now)
    donor.settle(now)
    states = [parcel for _, parcel in donor.came if len(parcel.parts) == 2]
    return [(parcel.step, bytes(parcel.parts[1])) for parcel in states]


def test_without_the_wait_before_an_update_another_step_s_bits_are_given() -> None:
    thread = Thread()
    assert play(thread, ["commit"], lambda: None) == [(0, b"\1" * 250), (0, b"\1" * 250)]


# Several donors


def test_digests_are_made_with_the_copy_and_only_where_they_are_wanted() -> None:
    for is_shared in (True, False):
        thread = Thread()
        tensors = [memoryview(bytes(size)) for size in SIZES]
        copy = StateCopy(
            STEP, PackedState(TREE, tensors, None, REPLICATED, thread.aside), CHUNK_BYTES, is_shared=is_shared
        )
        assert not copy.is_whole() and not copy._digests
        thread.work()
        assert copy.is_whole() and bool(copy._digests) is is_shared
        assert len(copy._all()) == 16 * len(copy._chunks)


def test_another_donor_copies_its_share_and_no_more() -> None:
    thread, tensors = Thread(), memory()
    before = [bytes(tensor) for tensor in tensors]
    state = PackedState(TREE, [memoryview(tensor) for tensor in tensors], None, REPLICATED, thread.aside)
    parcel = share_of(state, ShareRequest(A, C, STEP, 1, 3, CHUNK_BYTES))
    assert parcel.is_whole is not None and not parcel.is_whole()
    thread.hold()
    for tensor in tensors:
        tensor[:] = bytes(len(tensor))
    thread.work()
    assert parcel.is_whole()
    for chunk, part in zip(parcel.chunks, parcel.parts, strict=True):
        start = chunk.segment * CHUNK_BYTES
        assert bytes(part) == before[chunk.part - 2][start : start + CHUNK_BYTES]
    assert parcel.num_bytes < sum(SIZES) / 2


def test_three_donors_give_the_bits_of_one_step_though_all_go_on_meanwhile() -> None:
    threads = {member: Thread() for member in (A, B, C)}
    pond = Pond(aside={member: thread.aside for member, thread in threads.items()})
    expected = pond.expected()
    pond.give_shares(B, C)
    for member, donor in pond.donors.items():
        threads[member].hold()
        for tensor in pond.memory[member]:
            tensor[:] = bytes(len(tensor))
        donor.complete(STEP + 1, lambda known: PackedState(TREE, []))
        threads[member].work()
        donor.resume_streams(pond.new.now)
    pond.settle()
    assert pond.offered() == expected


def test_the_first_keeps_its_copy_for_who_was_kept_waiting() -> None:
    thread = Thread()
    pond = Pond(aside={A: thread.aside})
    pond.donors[A].resume_streams(pond.new.now + KEPT_S)
    pond.donors[A].expire(pond.new.now + KEPT_S + 1)
    assert len(pond.donors[A]._kept) == 1
