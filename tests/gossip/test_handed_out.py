"""A step whose results are used before its commit: it commits, or all members give it up (R15 of PROTOCOL.md)."""

from dataclasses import replace

from gossip import View
from gossip.commit import StepMachine
from gossip.effects import Aborted, Activated, Committed, Send
from gossip.given_up import Cause, GivenUp
from gossip.progress import Finish, Progress, Ready

from .machines import GENESIS, NOTHING, PAIR, TRIO, TRIO_LATER, ZERO, active, barrier, given_up
from .members import A, B, C, view_of

REASON = "its results were in use before its commit, and members have joined or left"
IN_USE = given_up(Cause.IN_USE, reason=REASON)
TOLD = replace(IN_USE, void_until=TRIO.number)
LATER = view_of(4, A, B)


def saying(said: GivenUp | None, finished: Finish | None = None) -> Ready:
    return Ready(True, -1, GENESIS, finished, said)


def using() -> StepMachine:
    """A, active in a view of three, after it has handed out a result of step 0."""
    machine = active()
    machine.mark_in_use()
    return machine


def said_to_b(machine: StepMachine, view: View) -> Send:
    sends = [effect for effect in machine.install(view) if isinstance(effect, Send)]
    return next(send for send in sends if send.target == B)


def test_a_step_of_which_results_are_used_is_given_up_by_all_when_a_view_comes_before_its_commit() -> None:
    machine = using()
    assert said_to_b(machine, PAIR) == Send(B, saying(IN_USE))
    assert machine.receive(B, NOTHING) == [Aborted(TOLD), Activated(PAIR, -1)]
    assert barrier(active(), saying(IN_USE)) == [Aborted(TOLD), Activated(PAIR, -1)]


def test_the_same_members_do_a_step_over_of_which_results_are_used() -> None:
    machine = using()
    assert said_to_b(machine, TRIO_LATER) == Send(B, NOTHING)
    machine.receive(B, NOTHING)
    assert machine.receive(C, NOTHING) == [Activated(TRIO_LATER, -1)]
    later = replace(IN_USE, view_number=TRIO_LATER.number)
    assert said_to_b(machine, LATER) == Send(B, saying(later))


def test_the_same_members_give_a_step_up_of_which_results_are_used_if_one_has_withdrawn_from_it() -> None:
    machine = using()
    machine.give_up(0, Cause.VOIDED, "", is_told=False)
    assert said_to_b(machine, TRIO_LATER) == Send(B, saying(given_up(Cause.VOIDED)))
    machine.receive(B, NOTHING)
    assert machine.receive(C, NOTHING) == [Aborted(given_up(Cause.VOIDED)), Activated(TRIO_LATER, -1)]


def test_a_step_that_all_have_finished_commits_though_results_of_it_were_used() -> None:
    machine = using()
    machine.finished(0, ZERO.digest, ZERO.state_digest)
    assert barrier(machine, saying(IN_USE, ZERO)) == [Committed(ZERO, TRIO), Activated(PAIR, 0, founded_in=2)]
    assert said_to_b(machine, LATER) == Send(B, Ready(True, 0, machine.digest, None, founded_in=2))


def test_what_was_used_of_a_committed_step_does_not_concern_the_next() -> None:
    machine = using()
    machine.finished(0, ZERO.digest, ZERO.state_digest)
    for member in (B, C):
        machine.receive(member, Progress(-1, GENESIS, ZERO))
    assert machine.done == 0
    assert said_to_b(machine, PAIR) == Send(B, Ready(True, 0, machine.digest, None, founded_in=2))


def test_a_mismatch_is_the_reason_even_where_results_were_used() -> None:
    mismatch = given_up(Cause.MISMATCH, reason="shapes differ")
    assert barrier(using(), saying(mismatch)) == [Aborted(mismatch), Activated(PAIR, -1)]
    machine = using()
    machine.give_up(0, Cause.MISMATCH, "shapes differ", is_told=True)
    assert said_to_b(machine, PAIR) == Send(B, saying(mismatch))
    assert machine.receive(B, saying(IN_USE)) == [Activated(PAIR, -1)]


def test_who_has_heard_that_a_step_was_given_up_passes_it_on() -> None:
    """The member that said it may die, and its barrier may be incomplete at others."""
    machine = active()
    assert barrier(machine, saying(IN_USE)) == [Aborted(TOLD), Activated(PAIR, -1)]
    assert said_to_b(machine, LATER) == Send(B, saying(TOLD))
    assert machine.receive(B, NOTHING) == [Activated(LATER, -1)]


def test_what_was_used_of_a_step_that_was_given_up_does_not_interrupt_it_again() -> None:
    """A member that repeats the step has not used its new results yet."""
    heard, author = using(), using()
    assert barrier(heard, saying(IN_USE)) == [Aborted(TOLD), Activated(PAIR, -1)]
    assert said_to_b(heard, view_of(4, A, B, C)) == Send(B, saying(TOLD))
    author.give_up(0, Cause.MISMATCH, "shapes differ", is_told=True)
    author.install(TRIO_LATER)
    assert said_to_b(author, LATER) == Send(B, saying(given_up(Cause.MISMATCH, reason="shapes differ")))
