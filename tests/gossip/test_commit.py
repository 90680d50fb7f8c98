"""The step machine alone: rules R1 to R7 of research/step-commit.md."""

import pytest

from gossip import Member, Phase, View
from gossip.commit import StepMachine, chain
from gossip.messages import (
    Aborted,
    Activated,
    Beat,
    Committed,
    Diverged,
    Effect,
    Finish,
    Installed,
    Progress,
    Ready,
    Removed,
    Send,
    StateQuery,
)
from gossip.view import founding_view

from .members import LINEAGE, A, B, C, D, view_of

FOUNDING = founding_view(A, LINEAGE, 1)
TRIO = view_of(2, A, B, C)
PAIR = view_of(3, A, B)


def founder() -> StepMachine:
    machine = StepMachine(A)
    machine.found(FOUNDING)
    return machine


GENESIS = founder().digest
NOTHING = Ready(True, -1, GENESIS, None)


def finish(step: int, view: View = TRIO, digest: bytes = b"bits", state_digest: bytes = b"state") -> Finish:
    return Finish(step, digest, state_digest, view.number)


ZERO = finish(0)
DIGEST_0 = chain(GENESIS, ZERO)


def active(view: View = TRIO) -> StepMachine:
    """A, active in `view` with nothing done."""
    machine = founder()
    machine.install(view)
    for member in view.members[1:]:
        machine.receive(member, NOTHING)
    assert machine.phase is Phase.ACTIVE
    return machine


def finished(view: View = TRIO) -> StepMachine:
    """The same, which has finished step 0."""
    machine = active(view)
    machine.finished(0, b"bits", b"state")
    return machine


def committed() -> StepMachine:
    """The same, which has committed step 0."""
    machine = finished()
    for member in (B, C):
        machine.receive(member, Progress(-1, GENESIS, ZERO))
    assert machine.done == 0
    return machine


def to(members: tuple[Member, ...], body: Ready | Progress | Beat) -> list[Send]:
    return [Send(member, body) for member in members]


def barrier(machine: StepMachine, said: Ready, view: View = PAIR) -> list[Effect]:
    """What follows when B says this in the next view."""
    machine.install(view)
    return machine.receive(B, said)


def test_a_founder_is_seated_and_active_at_once() -> None:
    machine = StepMachine(A)
    assert machine.found(FOUNDING) == [Installed(FOUNDING), Activated(FOUNDING, -1)]
    assert machine.seated
    assert (machine.done, machine.phase) == (-1, Phase.ACTIVE)


def test_lineages_have_different_chains() -> None:
    other = StepMachine(A)
    other.found(founding_view(A, b"another", 1))
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
    assert (machine.done, machine.digest) == (0, DIGEST_0)


def test_r2_what_others_finished_before_counts() -> None:
    machine = active()
    assert machine.receive(B, Progress(-1, GENESIS, ZERO)) == []
    assert machine.receive(C, Progress(-1, GENESIS, ZERO)) == []
    assert machine.finished(0, b"bits", b"state")[-1] == Committed(ZERO, TRIO)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (Progress(-1, GENESIS, finish(0, digest=b"other")), "results of step 0 differ: 62697473 at a, 6f74686572 at b"),
        (
            Progress(-1, GENESIS, finish(0, state_digest=b"other")),
            "parameters of step 0 differ: 7374617465 at a, 6f74686572 at b",
        ),
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
    assert barrier(machine, Ready(True, -1, GENESIS, ZERO)) == [Activated(PAIR, 0)]
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
    machine = committed()
    assert machine.beat()[0] == Send(B, Beat(NOTHING, Progress(0, DIGEST_0, None)))
    machine.install(TRIO)
    machine.receive(B, Ready(True, 0, DIGEST_0, None))
    machine.receive(B, Ready(True, 1, b"never", None))
    assert machine.receive(C, Ready(True, 0, DIGEST_0, None)) == [Activated(TRIO, 0)]


def test_r4_ready_repeated_after_the_barrier_changes_nothing() -> None:
    assert active().receive(B, NOTHING) == []


# R5


def test_r5_what_every_seated_member_has_finished_is_committed_at_the_barrier() -> None:
    assert barrier(finished(), Ready(True, -1, GENESIS, ZERO)) == [Committed(ZERO, TRIO), Activated(PAIR, 0)]


def test_r5_what_one_member_has_committed_the_others_commit_at_the_barrier() -> None:
    assert barrier(finished(), Ready(True, 0, DIGEST_0, None)) == [Committed(ZERO, TRIO), Activated(PAIR, 0)]


def test_r5_what_one_seated_member_has_not_finished_is_dropped() -> None:
    machine = finished()
    assert barrier(machine, NOTHING) == [Activated(PAIR, -1)]
    assert machine.finish is None
    assert machine.finished(0, b"again", b"state") == [Send(B, Progress(-1, GENESIS, finish(0, PAIR, b"again")))]


def test_r5_the_next_step_that_others_finished_is_not_ours() -> None:
    said = Ready(True, 0, DIGEST_0, finish(1))
    assert barrier(finished(), said) == [Committed(ZERO, TRIO), Activated(PAIR, 0)]


def test_r5_what_was_finished_in_different_views_is_dropped() -> None:
    assert barrier(finished(), Ready(True, -1, GENESIS, finish(0, FOUNDING))) == [Activated(PAIR, -1)]


def test_r5_what_was_finished_with_different_digests_is_dropped_and_loud() -> None:
    assert barrier(finished(), Ready(True, -1, GENESIS, finish(0, digest=b"other"))) == [
        Diverged(0, "step 0 was finished with different bits: a: 62697473, b: 6f74686572"),
        Activated(PAIR, -1),
    ]


def test_r5_another_past_is_loud() -> None:
    machine = committed()
    assert barrier(machine, Ready(True, -1, b"other", finish(0, digest=b"other"))) == [Activated(PAIR, 0)]
    machine = finished()
    effects = barrier(machine, Ready(True, 0, b"other", None))
    assert [type(effect) for effect in effects] == [Committed, Diverged, Activated]


def test_r5_a_barrier_that_never_completes_forgets_nothing() -> None:
    machine = finished()
    machine.install(view_of(3, A, B, C))
    machine.receive(C, Ready(True, -1, GENESIS, ZERO))
    last = view_of(4, A, B)
    assert barrier(machine, Ready(True, -1, GENESIS, ZERO), last) == [Committed(ZERO, TRIO), Activated(last, 0)]


def test_r5_the_unseated_have_no_say_in_the_level() -> None:
    machine = finished()
    machine.install(TRIO)
    machine.receive(B, Ready(True, -1, GENESIS, ZERO))
    assert machine.receive(C, Ready(False, -1, b"", None)) == [Committed(ZERO, TRIO)]
    assert machine.phase is Phase.INSTALLING


# R6


def joiner() -> StepMachine:
    machine = StepMachine(C)
    assert machine.install(TRIO) == [Installed(TRIO), *to((A, B), Ready(False, -1, b"", None))]
    machine.receive(A, Ready(True, 0, DIGEST_0, None))
    machine.receive(B, Ready(True, -1, GENESIS, ZERO))
    return machine


def test_r6_a_joiner_takes_the_state_and_is_seated_when_all_are_at_it() -> None:
    machine = joiner()
    assert machine.wanted_state() == (0, DIGEST_0, A)
    assert machine.query() == [Send(A, StateQuery(0))]
    assert machine.loaded(0, DIGEST_0) == [
        *to((A, B), Ready(False, 0, DIGEST_0, None)),
        Activated(TRIO, 0),
    ]
    assert machine.seated
    assert machine.wanted_state() is None
    assert machine.query() == []


def test_r6_a_state_that_is_not_wanted_changes_nothing() -> None:
    machine = joiner()
    assert machine.loaded(1, DIGEST_0) == []
    assert machine.loaded(0, b"other") == []
    assert active().loaded(0, DIGEST_0) == []
    assert StepMachine(C).loaded(0, DIGEST_0) == []
    assert machine.wanted_state() == (0, DIGEST_0, A)


def test_r6_a_state_serves_the_next_view_if_it_is_still_the_last() -> None:
    machine, last = StepMachine(C), view_of(3, A, C)
    machine.install(view_of(2, A, C, D))
    machine.receive(A, Ready(True, 0, DIGEST_0, None))
    machine.receive(D, Ready(False, -1, b"", None))
    machine.loaded(0, DIGEST_0)
    assert (machine.phase, machine.seated) == (Phase.INSTALLING, False)
    assert machine.install(last) == [Installed(last), Send(A, Ready(False, 0, DIGEST_0, None))]
    assert machine.receive(A, Ready(True, 0, DIGEST_0, None)) == [Activated(last, 0)]


def test_r6_the_seated_wait_for_the_joiner() -> None:
    machine = committed()
    machine.install(TRIO)
    assert machine.receive(B, Ready(True, 0, DIGEST_0, None)) == []
    assert machine.receive(C, Ready(False, -1, b"", None)) == []
    assert machine.receive(C, Ready(False, 0, DIGEST_0, None)) == [Activated(TRIO, 0)]


def test_r12_without_a_seated_member_nothing_starts_and_nobody_waits() -> None:
    machine = StepMachine(B)
    machine.install(view_of(4, B, C))
    reason = "nobody in view 4 has the state: who had it has left, or died"
    assert machine.receive(C, Ready(False, -1, b"", None)) == [Removed(reason)]
    assert machine.phase is Phase.INSTALLING


# R7, and what is given up


def test_r7_the_step_after_the_level_starts_in_the_new_view() -> None:
    assert barrier(active(), NOTHING)[-1] == Activated(PAIR, -1)


def test_a_step_that_another_gave_up_is_aborted_at_the_next_barrier() -> None:
    said = Ready(True, -1, GENESIS, None, TRIO.number, "shapes differ")
    assert barrier(active(), said) == [Aborted(0, "shapes differ"), Activated(PAIR, -1)]


def test_an_abort_that_is_said_again_gives_up_nothing_again() -> None:
    machine = active()
    said = Ready(True, -1, GENESIS, None, TRIO.number, "shapes differ")
    assert barrier(machine, said) == [Aborted(0, "shapes differ"), Activated(PAIR, -1)]
    assert barrier(machine, said) == [Activated(PAIR, -1)]


def test_who_gave_a_step_up_says_so_until_the_next_barrier_and_knows_it_already() -> None:
    machine = active()
    machine.abort(0, "shapes differ")
    assert machine.install(TRIO)[1] == Send(B, Ready(True, -1, GENESIS, None, TRIO.number, "shapes differ"))
    assert machine.install(PAIR)[1] == Send(B, Ready(True, -1, GENESIS, None, TRIO.number, "shapes differ"))
    assert machine.receive(B, NOTHING) == [Activated(PAIR, -1)]
    assert machine.install(PAIR)[1] == Send(B, NOTHING)


def test_a_step_that_is_finished_or_over_cannot_be_aborted() -> None:
    machine = finished()
    machine.abort(0, "too late")
    machine.abort(1, "too early")
    assert machine.install(PAIR)[1] == Send(B, Ready(True, -1, GENESIS, ZERO))
