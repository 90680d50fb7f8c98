"""Members whose parameters differ from those of most: R2 of PROTOCOL.md."""

from gossip.effects import Activated, Diverged, Explain, Outvoted, Send
from gossip.progress import Progress, Ready

from .machines import DIGEST_0, GENESIS, PAIR, TRIO_LATER, ZERO, active, barrier, finish, finished
from .members import A, B, C, D, view_of

OUTVOTED = Explain("c differs in step 0 from the members that stay, which redo it without that member")
OTHER = Progress(-1, GENESIS, finish(0, state_digest=b"other"))


def test_r2_different_parameters_are_loud_where_nobody_is_outvoted() -> None:
    machine = active(PAIR)
    machine.finished(0, b"bits", b"state")
    said = Progress(-1, GENESIS, finish(0, PAIR, state_digest=b"other"))
    reason = "parameters of step 0 differ: 7374617465 at a, 6f74686572 at b"
    assert machine.receive(B, said) == [Diverged(0, reason)]
    assert machine.done == -1


def test_r2_who_has_other_parameters_than_most_is_named_and_the_step_is_done_over_without_it() -> None:
    machine = finished()
    assert machine.receive(C, OTHER) == []
    assert machine.receive(B, Progress(-1, GENESIS, ZERO)) == [OUTVOTED]
    assert machine.part_from(C, 0) == []
    assert machine.receive(B, Progress(-1, GENESIS, ZERO)) == []  # said once
    assert barrier(machine, Ready(True, -1, GENESIS, ZERO)) == [Activated(PAIR, -1)]
    assert machine.finished(0, b"again", b"state")[-1] == Send(B, Progress(-1, GENESIS, finish(0, PAIR, b"again")))


def test_r2_who_has_other_parameters_than_most_leaves() -> None:
    machine = active()
    machine.receive(B, OTHER)
    machine.receive(C, OTHER)
    assert machine.finished(0, b"bits", b"state")[-1] == Outvoted(0)
    assert machine.parting.why == "the parameters of step 0 at a differ from those of b, c, which continue without it"


def test_r2_who_says_that_it_is_outvoted_is_believed() -> None:
    machine = finished()
    assert machine.part_from(C, 1) == [] and machine.part_from(C, -1) == []
    assert machine.part_from(C, 0) == [OUTVOTED]
    assert machine.receive(B, Progress(-1, GENESIS, ZERO)) == machine.receive(C, OTHER) == []
    assert barrier(machine, Ready(True, -1, GENESIS, ZERO)) == [Activated(PAIR, -1)]
    assert machine.part_from(B, 1) == []


def test_r2_three_different_parameters_are_loud() -> None:
    machine = finished()
    machine.receive(C, Progress(-1, GENESIS, finish(0, state_digest=b"third")))
    (effect,) = machine.receive(B, OTHER)
    assert isinstance(effect, Diverged)


def test_r2_nobody_is_judged_before_all_have_finished() -> None:
    machine = finished()
    assert machine.receive(B, OTHER) == []
    assert machine.receive(C, Progress(-1, GENESIS, ZERO)) != []


def test_r2_a_member_that_has_committed_has_no_vote() -> None:
    machine = finished()
    machine.receive(B, Progress(0, DIGEST_0, None))
    (effect,) = machine.receive(C, OTHER)
    assert isinstance(effect, Diverged), "which cannot be: nobody commits what C finished otherwise"


def test_r5_parameters_of_which_most_agree_are_judged_when_the_step_is_done_over() -> None:
    machine, other = finished(view_of(2, A, B, C, D)), finish(0, state_digest=b"other")
    machine.install(TRIO_LATER)
    machine.receive(B, Ready(True, -1, GENESIS, ZERO))
    assert machine.receive(C, Ready(True, -1, GENESIS, other)) == [Activated(TRIO_LATER, -1)]
