"""A step of which results are used before its commit: it commits, or all give it up."""

from gossip.effects import Aborted, Activated, Committed, Send
from gossip.messages import Progress, Ready

from .machines import GENESIS, NOTHING, PAIR, TRIO, TRIO_LATER, ZERO, active, barrier
from .members import B, C


def test_a_step_of_which_results_are_used_is_given_up_by_all_when_a_view_comes_before_its_commit() -> None:
    machine = active()
    machine.handed_out()
    said = Ready(True, -1, GENESIS, None, TRIO.number, "")
    assert machine.install(PAIR)[1] == Send(B, said)
    assert machine.receive(B, NOTHING) == [Aborted(0, ""), Activated(PAIR, -1)]
    assert barrier(active(), said) == [Aborted(0, ""), Activated(PAIR, -1)]


def test_the_same_members_do_a_step_over_of_which_results_are_used_unless_one_has_withdrawn_from_it() -> None:
    machine = active()
    machine.handed_out()
    assert machine.install(TRIO_LATER)[1] == Send(B, NOTHING)
    machine.receive(B, NOTHING)
    assert machine.receive(C, NOTHING) == [Activated(TRIO_LATER, -1)]
    assert machine.install(PAIR)[1] == Send(B, Ready(True, -1, GENESIS, None, TRIO_LATER.number, ""))
    machine = active()
    machine.interrupt()
    assert machine.install(TRIO_LATER)[1] == Send(B, Ready(True, -1, GENESIS, None, TRIO.number, ""))
    machine.receive(B, NOTHING)
    assert machine.receive(C, NOTHING) == [Aborted(0, ""), Activated(TRIO_LATER, -1)]


def test_a_step_that_all_have_finished_commits_though_results_of_it_were_used() -> None:
    machine = active()
    machine.handed_out()
    machine.finished(0, ZERO.digest, ZERO.state_digest)
    assert barrier(machine, Ready(True, -1, GENESIS, ZERO, TRIO.number, "")) == [
        Committed(ZERO, TRIO),
        Activated(PAIR, 0),
    ]
    assert machine.install(TRIO)[1] == Send(B, Ready(True, 0, machine.digest, None))


def test_what_was_used_of_a_committed_step_does_not_concern_the_next() -> None:
    machine = active()
    machine.handed_out()
    machine.finished(0, ZERO.digest, ZERO.state_digest)
    for member in (B, C):
        machine.receive(member, Progress(-1, GENESIS, ZERO))
    assert machine.done == 0
    assert machine.install(PAIR)[1] == Send(B, Ready(True, 0, machine.digest, None))


def test_a_mismatch_is_the_reason_even_where_results_were_used() -> None:
    machine = active()
    machine.handed_out()
    said = Ready(True, -1, GENESIS, None, TRIO.number, "shapes differ")
    assert barrier(machine, said) == [Aborted(0, "shapes differ"), Activated(PAIR, -1)]
    machine = active()
    machine.handed_out()
    machine.abort(0, "shapes differ")
    assert machine.install(PAIR)[1] == Send(B, said)
    assert machine.receive(B, NOTHING) == [Activated(PAIR, -1)]


def test_who_has_heard_that_a_step_was_given_up_passes_it_on() -> None:
    """Who said it may die, and the barrier at which it did may be incomplete at others."""
    machine = active()
    said = Ready(True, -1, GENESIS, None, TRIO.number, "")
    assert barrier(machine, said) == [Aborted(0, ""), Activated(PAIR, -1)]
    assert machine.install(TRIO)[1] == Send(B, said)
    machine.receive(B, NOTHING)
    assert machine.receive(C, NOTHING) == [Activated(TRIO, -1)]


def test_what_was_used_of_a_step_that_was_given_up_does_not_interrupt_it_again() -> None:
    """Whoever calls it anew has used nothing of it yet."""
    said = Ready(True, -1, GENESIS, None, TRIO.number, "")
    heard, author = active(), active()
    for machine in (heard, author):
        machine.handed_out()
    assert barrier(heard, said) == [Aborted(0, ""), Activated(PAIR, -1)]
    assert heard.install(TRIO)[1] == Send(B, said)
    author.abort(0, "shapes differ")
    author.install(TRIO_LATER)
    assert author.install(PAIR)[1] == Send(B, Ready(True, -1, GENESIS, None, TRIO.number, "shapes differ"))
