"""The step machine alone: rules R1 to R7 of PROTOCOL.md."""

import pytest
from hypothesis import given, settings

from gossip import Member, Phase, Seat
from gossip.commit import StepMachine
from gossip.effects import Activated, Committed, Diverged, Installed, Removed, Send
from gossip.levels import chain
from gossip.progress import LAST_STEP, Beat, Finish, Progress, Ready
from gossip.view import founding_view

from .machines import (
    DIGEST_0,
    FOUNDING,
    GENESIS,
    NOTHING,
    PAIR,
    TRIO,
    UNSEATED,
    ZERO,
    active,
    barrier,
    finish,
    finished,
    founder,
)
from .members import A, B, C, D, view_of
from .swarms import History, Swarm, histories


def committed() -> StepMachine:
    """The same machine, after it has committed step 0."""
    machine = finished()
    for member in (B, C):
        machine.receive(member, Progress(-1, GENESIS, ZERO))
    assert machine.done == 0
    return machine


def to(members: tuple[Member, ...], body: Ready | Progress | Beat) -> list[Send]:
    return [Send(member, body) for member in members]


def test_a_founder_is_seated_and_active_at_once() -> None:
    machine = StepMachine(A)
    assert machine.found(FOUNDING) == [Installed(FOUNDING), Activated(FOUNDING, -1, maps_all=True)]
    assert machine.seated
    assert (machine.done, machine.phase) == (-1, Phase.ACTIVE)


def test_lineages_have_different_chains() -> None:
    other = StepMachine(A)
    other.found(founding_view(Seat(A, 1), b"another", 1))
    assert other.digest != GENESIS


def test_who_is_alone_commits_what_it_finishes() -> None:
    machine = founder()
    alone = finish(0, FOUNDING)
    assert machine.finished(0, b"bits", b"state") == [Committed(alone, FOUNDING)]
    assert machine.digest == chain(GENESIS, alone)


# R1


def test_r1_who_finishes_a_step_says_so_to_every_member() -> None:
    assert active().finished(0, b"bits", b"state") == to((B, C), Progress(-1, GENESIS, ZERO))


def test_r1_every_beat_repeats_what_is_finished_and_after_commit_that_it_is_done() -> None:
    assert finished().beat() == to((B, C), Beat(NOTHING, Progress(-1, GENESIS, ZERO)))
    assert committed().beat() == to((B, C), Beat(NOTHING, Progress(0, DIGEST_0, None)))


def test_local_steps_of_a_round_are_said_with_beats_until_it_is_committed() -> None:
    machine = active()
    machine.inner_steps = 3
    assert machine.beat() == to((B, C), Beat(NOTHING, Progress(-1, GENESIS, None, inner_steps=3)))
    for number in (5, 4):  # a beat that was overtaken changes nothing
        machine.receive(B, Beat(NOTHING, Progress(-1, GENESIS, None, inner_steps=number)))
    assert machine.inner_steps_of_others() == {B: 5}
    machine.finished(0, b"bits", b"state")
    for member in (B, C):
        machine.receive(member, Progress(-1, GENESIS, ZERO))
    assert machine.done == 0
    assert machine.beat() == to((B, C), Beat(NOTHING, Progress(0, DIGEST_0, None)))
    assert machine.inner_steps_of_others() == {}


def test_r1_who_says_that_it_is_done_has_finished() -> None:
    machine = finished()
    assert machine.receive(B, Beat(NOTHING, Progress(0, DIGEST_0, None))) == []
    assert machine.receive(C, Progress(0, DIGEST_0, finish(1))) == [Committed(ZERO, TRIO)]


def test_nothing_is_repeated_before_there_is_a_view() -> None:
    assert StepMachine(A).beat() == []


# R2 and R3


def test_r2_a_step_commits_when_all_have_finished_it() -> None:
    machine = finished()
    assert machine.receive(B, Progress(-1, GENESIS, ZERO)) == []
    assert machine.receive(B, Progress(-1, GENESIS, ZERO)) == []
    assert machine.receive(C, Progress(-1, GENESIS, ZERO)) == [Committed(ZERO, TRIO)]
    assert (machine.done, machine.digest, machine.previous) == (0, DIGEST_0, GENESIS)


def test_r2_what_others_finished_before_counts() -> None:
    machine = active()
    assert machine.receive(B, Progress(-1, GENESIS, ZERO)) == []
    assert machine.receive(C, Progress(-1, GENESIS, ZERO)) == []
    assert machine.finished(0, b"bits", b"state")[-1] == Committed(ZERO, TRIO)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (Progress(-1, GENESIS, finish(0, digest=b"other")), "results of step 0 differ: 62697473 at a, 6f74686572 at b"),
        (Progress(0, b"other", None), "step 0 has another digest at b than at a, which has finished it"),
    ],
)
def test_r2_different_digests_are_loud_and_nothing_commits(said: Progress, reason: str) -> None:
    machine = finished()
    machine.receive(C, Progress(-1, GENESIS, ZERO))
    assert machine.receive(B, said) == [Diverged(0, reason)]
    assert machine.done == -1


def test_r2_what_was_finished_in_an_older_view_does_not_count() -> None:
    machine = finished()
    machine.receive(C, Progress(-1, GENESIS, ZERO))
    assert machine.receive(B, Progress(-1, GENESIS, finish(0, FOUNDING))) == []
    assert machine.receive(B, Progress(-1, GENESIS, ZERO)) == [Committed(ZERO, TRIO)]


def test_r3_the_next_step_starts_only_after_commit() -> None:
    machine = finished()
    with pytest.raises(AssertionError, match="step 1 finished after -1"):
        machine.finished(1, b"bits", b"state")
    with pytest.raises(AssertionError, match="step 0 finished after -1"):
        machine.finished(0, b"bits", b"state")


def test_r3_what_is_committed_stays_committed_in_the_next_view() -> None:
    machine = committed()
    assert barrier(machine, Ready(True, -1, GENESIS, ZERO)) == [Activated(PAIR, 0, founded_in=2)]
    assert machine.digest == DIGEST_0


# R4


def test_r4_a_new_view_ends_the_older_one_and_says_ready_to_every_member() -> None:
    machine = finished()
    assert machine.install(PAIR) == [Installed(PAIR), Send(B, Ready(True, -1, GENESIS, ZERO))]
    assert machine.phase is Phase.INSTALLING
    assert machine.receive(B, Progress(-1, GENESIS, ZERO)) == []
    with pytest.raises(AssertionError, match="step 0 finished in INSTALLING"):
        machine.finished(0, b"bits", b"state")


def test_r4_what_ready_says_is_fixed_when_the_view_is_installed() -> None:
    machine = finished()
    machine.install(TRIO)
    machine.receive(B, Ready(True, -1, GENESIS, ZERO))
    machine.receive(B, NOTHING)
    assert machine.receive(C, Ready(True, 0, DIGEST_0, None)) == [
        Committed(ZERO, TRIO),
        Activated(TRIO, 0, founded_in=2),
    ]
    assert machine.beat()[0] == Send(B, Beat(Ready(True, -1, GENESIS, ZERO), Progress(0, DIGEST_0, None)))


def test_r4_ready_repeated_after_the_barrier_changes_nothing() -> None:
    assert active().receive(B, NOTHING) == []


@pytest.mark.parametrize("done", [-2, LAST_STEP, 0], ids=["before nothing", "beyond all runs", "finished again"])
def test_what_no_member_can_say_means_nothing(done: int) -> None:
    said = ZERO if done == 0 else None
    machine = active()
    assert machine.receive(B, Progress(done, DIGEST_0, said)) == []
    machine.receive(C, Progress(-1, GENESIS, ZERO))
    machine.finished(0, b"bits", b"state")
    assert machine.done == -1  # B has not said that it has finished
    machine = founder()
    machine.install(PAIR)
    for unsound in (Ready(True, done, GENESIS, said), Beat(Ready(True, done, GENESIS, said), doing())):
        assert machine.receive(B, unsound) == []
    assert machine.receive(B, NOTHING) == [Activated(PAIR, -1)]


# R5


def test_r5_what_every_seated_member_has_finished_is_committed_at_the_barrier() -> None:
    assert barrier(finished(), Ready(True, -1, GENESIS, ZERO)) == [
        Committed(ZERO, TRIO),
        Activated(PAIR, 0, founded_in=2),
    ]


def test_r5_what_one_member_has_committed_the_others_commit_at_the_barrier() -> None:
    assert barrier(finished(), Ready(True, 0, DIGEST_0, None)) == [
        Committed(ZERO, TRIO),
        Activated(PAIR, 0, founded_in=2),
    ]


def test_r5_what_one_seated_member_has_not_finished_is_dropped() -> None:
    machine = finished()
    assert barrier(machine, NOTHING) == [Activated(PAIR, -1)]
    assert machine.finish is None
    assert machine.finished(0, b"again", b"state") == [Send(B, Progress(-1, GENESIS, finish(0, PAIR, b"again")))]


def test_r5_the_next_step_that_others_finished_is_not_ours() -> None:
    said = Ready(True, 0, DIGEST_0, finish(1))
    assert barrier(finished(), said) == [Committed(ZERO, TRIO), Activated(PAIR, 0, founded_in=2)]


def test_r5_what_was_finished_in_different_views_is_dropped() -> None:
    assert barrier(finished(), Ready(True, -1, GENESIS, finish(0, FOUNDING))) == [Activated(PAIR, -1)]


def test_r5_what_was_finished_with_different_digests_is_dropped_and_loud() -> None:
    assert barrier(finished(), Ready(True, -1, GENESIS, finish(0, digest=b"other"))) == [
        Diverged(0, "step 0 was finished with different bits, of its results: a: 62697473, b: 6f74686572"),
        Activated(PAIR, -1),
    ]


def test_r5_another_past_is_loud() -> None:
    machine = committed()
    assert barrier(machine, Ready(True, -1, b"other", finish(0, digest=b"other"))) == [Activated(PAIR, 0, founded_in=2)]
    machine = finished()
    effects = barrier(machine, Ready(True, 0, b"other", None))
    assert [type(effect) for effect in effects] == [Committed, Diverged, Activated]


def test_r5_a_barrier_that_never_completes_forgets_nothing() -> None:
    machine = finished()
    machine.install(view_of(3, A, B, C))
    machine.receive(C, Ready(True, -1, GENESIS, ZERO))
    last = view_of(4, A, B)
    assert barrier(machine, Ready(True, -1, GENESIS, ZERO), last) == [
        Committed(ZERO, TRIO),
        Activated(last, 0, founded_in=2),
    ]


def test_r5_the_unseated_have_no_say_in_the_level() -> None:
    machine = finished()
    machine.install(TRIO)
    machine.receive(B, Ready(True, -1, GENESIS, ZERO))
    assert machine.receive(C, UNSEATED) == [Committed(ZERO, TRIO)]
    assert machine.phase is Phase.INSTALLING


# R6


def test_r6_the_seated_wait_for_the_joiner() -> None:
    machine = committed()
    machine.install(TRIO)
    assert machine.receive(B, Ready(True, 0, DIGEST_0, None)) == []
    assert machine.receive(C, UNSEATED) == []
    assert machine.receive(C, Ready(False, 0, DIGEST_0, None)) == [Activated(TRIO, 0, founded_in=2)]


def test_r12_without_a_seated_member_nothing_starts_and_nobody_waits() -> None:
    machine = StepMachine(B)
    machine.install(view_of(4, B, C))
    reason = "no member of view 4 has the state: those that had it have left, or died"
    assert machine.receive(C, UNSEATED) == [Removed(reason)]
    assert machine.phase is Phase.INSTALLING


# R7


def test_r7_the_step_after_the_level_starts_in_the_new_view() -> None:
    assert barrier(active(), NOTHING)[-1] == Activated(PAIR, -1)


# Stuck operations


def submitted(num_operations: int) -> StepMachine:
    """A, after it has submitted this many operations of step 0."""
    machine = active()
    machine.submitted = num_operations
    return machine


def doing(done: int = -1, num_operations: int = 0, said: Finish | None = None) -> Progress:
    return Progress(done, GENESIS if done < 0 else DIGEST_0, said, num_operations)


def test_an_operation_that_all_have_submitted_is_stuck_here() -> None:
    machine = submitted(2)
    assert machine.stuck_at() is None
    machine.receive(B, doing(num_operations=2))
    assert machine.stuck_at() is None
    machine.receive(C, Beat(NOTHING, doing(num_operations=1)))
    assert machine.stuck_at() is None
    machine.receive(C, Beat(NOTHING, doing(num_operations=3)))
    assert machine.stuck_at() == (0, 2)


@pytest.mark.parametrize("ahead", [doing(said=ZERO), doing(done=0), doing(done=0, num_operations=1)])
def test_who_has_finished_the_step_has_submitted_all_of_it(ahead: Progress) -> None:
    machine = submitted(2)
    machine.receive(B, ahead)
    machine.receive(C, ahead)
    assert machine.stuck_at() == (0, 2)


def test_who_is_a_step_behind_has_submitted_nothing_of_this_one() -> None:
    machine = committed()
    machine.submitted = 1
    machine.receive(B, doing(done=0, num_operations=1))
    assert machine.stuck_at() is None
    machine.receive(C, doing(done=0, num_operations=1))
    assert machine.stuck_at() == (1, 1)


def test_nothing_is_stuck_before_operations_are_submitted_nor_after_they_are_complete() -> None:
    machine = active()
    for member in (B, C):
        machine.receive(member, doing(num_operations=1))
    assert machine.stuck_at() is None
    machine.submitted = 1
    assert machine.stuck_at() == (0, 1)
    machine.finished(0, b"bits", b"state")
    assert machine.stuck_at() is None


def test_who_computes_on_is_not_stuck_while_all_that_it_submitted_is_complete() -> None:
    machine = submitted(2)
    for member in (B, C):
        machine.receive(member, doing(num_operations=5))
    machine.complete = 1
    assert machine.stuck_at() == (0, 2)
    machine.complete = 2
    assert machine.stuck_at() is None


def test_it_is_known_who_has_submitted_how_much_of_the_open_step() -> None:
    machine = committed()
    machine.submitted = 3
    machine.receive(B, doing(done=0, num_operations=2))
    assert [machine.num_submitted(member) for member in (A, B, C)] == [3, 2, 0]
    machine.receive(C, doing(done=1))
    machine.receive(B, doing(done=0, said=Finish(1, b"bits", b"state", 2)))
    assert [machine.num_submitted(member) for member in (B, C)] == [None, None]
    machine.receive(C, doing(done=1))
    machine.finished(1, b"bits", b"state")
    assert machine.num_submitted(A) is None
    assert active().num_submitted(B) == 0


def test_nothing_is_stuck_in_a_view_that_is_being_installed_and_its_counts_begin_anew() -> None:
    machine = submitted(1)
    machine.receive(B, doing(num_operations=1))
    machine.install(PAIR)
    assert (machine.stuck_at(), machine.submitted) == (None, 0)
    machine.submitted = 1
    assert machine.stuck_at() is None
    machine.receive(B, NOTHING)
    assert machine.phase is Phase.ACTIVE
    assert machine.stuck_at() is None
    machine.receive(B, doing(num_operations=1))
    assert machine.stuck_at() == (0, 1)


def test_a_committed_step_takes_its_operations_with_it() -> None:
    machine = submitted(2)
    for member in (B, C):
        machine.receive(member, doing(said=ZERO))
    machine.finished(0, b"bits", b"state")
    assert (machine.done, machine.submitted) == (0, 0)


def test_a_beat_says_how_many_operations_are_submitted() -> None:
    assert submitted(2).beat() == to((B, C), Beat(NOTHING, Progress(-1, GENESIS, None, 2)))


def test_a_beat_that_was_overtaken_takes_nothing_back() -> None:
    machine = submitted(2)
    machine.receive(C, doing(num_operations=2))
    for newer in (doing(num_operations=2), doing(said=ZERO), doing(done=0)):
        machine.receive(B, newer)
        machine.receive(B, doing(num_operations=1))
        assert machine.stuck_at() == (0, 2)


# Members with the state


def test_members_have_the_state_until_they_say_that_they_have_not() -> None:
    machine = StepMachine(C)
    machine.install(view_of(2, A, B, C, D))
    assert machine.possibly_seated() == [A, B, D]
    machine.receive(B, NOTHING)
    machine.receive(D, UNSEATED)
    assert machine.possibly_seated() == [A, B]


# Laws


@given(histories("view", "install", "deliver", "load", "finish", "beat"))
@settings(max_examples=100, deadline=None)
def test_a_committed_step_is_one_step_at_all_and_no_survivor_lacks_it(events: History) -> None:
    swarm = Swarm()
    swarm.live_through(events)
    swarm.come_to_rest()
    steps: dict[int, set[Finish]] = {}
    for finishes in swarm.committed.values():
        first = finishes[0].step
        assert [finish.step for finish in finishes] == [*range(first, first + len(finishes))]
        for said in finishes:
            steps.setdefault(said.step, set()).add(said)
    assert all(len(same) == 1 for same in steps.values())
    starts: dict[int, set[tuple[int, bytes]]] = {}
    for (number, _), start in swarm.activated.items():
        starts.setdefault(number, set()).add(start)
    assert all(len(same) == 1 for same in starts.values())
    if not swarm.is_lost:
        last = [swarm.machines[member] for member in swarm.views[-1].members]
        assert {machine.phase for machine in last} == {Phase.ACTIVE}
        assert all(machine.done >= max(steps, default=-1) for machine in last)
