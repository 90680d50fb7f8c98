"""Parting in the open step: members that have to go, members that are gone, and the step of the others (R17)."""

from dataclasses import replace

import pytest

from gossip import Seat, View
from gossip.commit import StepMachine
from gossip.effects import Activated, Committed, Diverged, Explain, Left, Outvoted, Removed, Send
from gossip.given_up import Cause, GivenUp
from gossip.messages import Decide, Leave
from gossip.progress import Abort, Beat, Finish, Progress, Ready

from .cores import after, bodies, genesis, joiner, only, say, seated
from .cores import view_of as view_at
from .machines import GENESIS, NOTHING, PAIR, TRIO, ZERO, active, barrier, finish, finished
from .members import A, B, C, D, view_of

LAST = view_of(4, A)
OTHER = finish(0, PAIR, state_digest=b"other")
DIFFER = "parameters of step 0 differ: 7374617465 at a, 6f74686572 at b"
GONE = f"{DIFFER}, which has gone"
ABORT = Abort(0, 1, "all_reduce")


def diverged(view: View, reason: str) -> GivenUp:
    return GivenUp(0, view.number, Cause.DIVERGED, reason, view.number)


def with_other(machine: StepMachine, said: Finish = OTHER) -> StepMachine:
    """B has finished the step with parameters other than A's."""
    machine.receive(B, Progress(-1, GENESIS, said))
    return machine


def joined(*joiners: Seat) -> View:
    return replace(LAST, seats=(Seat(A, 1), *joiners))


# No side stays


def test_founders_that_differ_say_so_until_the_others_know_and_void_what_they_have_finished() -> None:
    machine = finished(PAIR)
    assert machine.receive(B, Progress(-1, GENESIS, OTHER)) == [Diverged(0, DIFFER)]
    assert machine.given_up == diverged(PAIR, DIFFER)
    assert machine.install(LAST)[-1] == Activated(LAST, -1, maps_all=True), (
        "nothing is committed, and its script was told"
    )


def test_who_hears_of_it_raises_at_the_next_barrier() -> None:
    machine = finished(PAIR)
    machine.hear(diverged(PAIR, DIFFER))
    assert machine.install(LAST)[-2:] == [Diverged(0, DIFFER), Activated(LAST, -1, maps_all=True)]


def test_a_barrier_in_which_founders_differ_tells_all() -> None:
    said = Ready(True, -1, GENESIS, finish(0, state_digest=b"other"))
    reason = "step 0 was finished with different bits, of its parameters: a: 7374617465, b: 6f74686572"
    machine = finished()
    assert barrier(machine, said) == [Diverged(0, reason), Activated(PAIR, -1)]
    assert machine.given_up == diverged(PAIR, reason)


def test_in_a_barrier_a_joiner_has_no_say() -> None:
    """A joiner could not have finished the step, and has the parameters of one of the others."""
    machine, view = finished(), replace(PAIR, number=4, seats=(Seat(A, 1), Seat(B, 1), Seat(D, 4)))
    machine.install(view)
    machine.receive(D, Ready(False, -1, b"", None))
    (effect,) = machine.receive(B, Ready(True, -1, GENESIS, finish(0, state_digest=b"other")))
    assert isinstance(effect, Diverged)


# Departed members that had finished with other parameters


def test_a_founder_whose_parameters_differed_when_it_went_is_remembered_when_the_step_was_finished() -> None:
    machine = finished(view_of(2, A, B, C))
    with_other(machine, finish(0, state_digest=b"other"))
    effects = machine.install(LAST)
    assert only(Diverged, effects) == [Diverged(0, GONE)] and only(Committed, effects) == []


def test_a_founder_whose_parameters_differed_when_it_went_is_remembered_until_the_step_is_finished() -> None:
    machine = with_other(active(PAIR))
    machine.install(LAST)
    assert machine.contradict(b"other") == [] and machine.why_contradicted(b"state") == GONE
    assert machine.contradict(b"state") == [Diverged(0, GONE)]


def test_who_outnumbers_the_founders_that_have_gone_goes_on() -> None:
    machine = finished()
    with_other(machine, finish(0, state_digest=b"other"))
    later = view_of(3, A, C)
    machine.install(later)
    assert machine.receive(C, Ready(True, -1, GENESIS, ZERO)) == [
        Committed(ZERO, TRIO),
        Activated(later, 0, founded_in=2),
    ]
    assert machine.parting.departed == {}


def test_who_goes_on_with_a_joiner_goes_on() -> None:
    machine = with_other(active(PAIR))
    view = joined(Seat(D, 4))
    machine.install(view)
    machine.receive(D, Ready(False, -1, GENESIS, None, founded_in=3))
    assert machine.why_contradicted(b"state") == ""


def test_who_had_to_go_is_not_remembered() -> None:
    machine = with_other(finished(), finish(0, state_digest=b"other"))
    assert machine.part_from(B, 0) != []
    machine.install(LAST)
    assert machine.parting.departed == {} and machine.finish is None


@pytest.mark.parametrize("said", [Progress(-1, GENESIS, None), Progress(0, GENESIS, finish(1, PAIR))])
def test_who_has_not_finished_the_step_when_it_goes_differs_from_nobody(said: Progress) -> None:
    machine = active(PAIR)
    machine.receive(B, said)
    machine.install(LAST)
    assert machine.parting.departed == {}


def test_what_is_finished_after_somebody_had_to_go_does_not_count_either() -> None:
    machine = active()
    assert machine.part_from(C, 0) == [
        Explain("c differs in step 0 from the members that stay, which redo it without that member")
    ]
    machine.finished(0, b"bits", b"state")
    for member in (B, C):
        machine.receive(member, Progress(-1, GENESIS, ZERO))
    assert machine.done == -1 and barrier(machine, NOTHING) == [Activated(PAIR, -1)]


# Messages of cores


def test_who_has_to_go_for_its_parameters_votes_until_the_others_go_on_and_is_removed_then() -> None:
    peer = seated(B, C)
    view = view_at(peer)
    for member in (B, C):
        say(peer, member, Progress(-1, genesis(), finish(0, view, state_digest=b"other")))
    effects = peer.finished(0.0, 0, b"bits", b"state")
    assert effects[-1] == Outvoted(0) and not peer.ended
    leave = Leave(0, finish=finish(0, view))
    assert bodies(Leave, peer.leave(0.0, 0)) == [(B, leave), (C, leave)]
    reason = "the parameters of step 0 at a differ from those of b, c, which continue without it"
    assert only(Removed, say(peer, B, Decide(after(view, B, C)))) == [Removed(reason)]
    assert peer.ended


def test_a_damaged_member_goes_with_a_step_that_it_has_not_finished() -> None:
    peer = seated(B, C)
    assert only(Outvoted, peer.damaged(0.0, "its memory has changed")) == [Outvoted(0, is_damaged=True)]
    assert not peer.has_to_go and bodies(Leave, peer.leave(0.0, 0)) == [(B, Leave(0)), (C, Leave(0))]
    assert peer.has_to_go
    assert only(Removed, say(peer, B, Decide(after(view_at(peer), B, C)))) == [Removed("its memory has changed")]


def test_a_damaged_member_goes_with_the_next_step_if_it_has_finished_the_open_one() -> None:
    peer = seated(B, C)
    view = view_at(peer)
    peer.finished(0.0, 0, b"bits", b"state")
    assert only(Outvoted, peer.damaged(0.0, "its memory has changed")) == []
    said = Progress(-1, genesis(), finish(0, view))
    assert only(Outvoted, say(peer, B, said)) == []
    effects = say(peer, C, said)
    assert only(Outvoted, effects) == [Outvoted(1, is_damaged=True)] and peer.done == 0


def test_a_damaged_member_goes_with_a_finished_step_that_is_redone() -> None:
    machine = finished()
    assert machine.damaged("its memory has changed") == []
    assert only(Outvoted, barrier(machine, NOTHING)) == [Outvoted(0, is_damaged=True)]


def test_whose_script_leaves_is_not_removed() -> None:
    peer = seated(B, C)
    for member in (B, C):
        say(peer, member, Progress(-1, genesis(), finish(0, view_at(peer), state_digest=b"other")))
    peer.finished(0.0, 0, b"bits", b"state")
    peer.leave(0.0, 0)
    peer.leave(0.1)
    assert len(only(Left, say(peer, B, Decide(after(view_at(peer), B, C))))) == 1


def test_who_has_to_go_for_its_calls_leaves_and_what_it_has_finished_is_void() -> None:
    peer = seated(B, C)
    peer.finished(0.0, 0, b"bits", b"state")
    assert [leave.outvoted for _, leave in bodies(Leave, peer.leave(0.0, 0))] == [0, 0]
    (_, said), *_ = bodies(Ready, say(peer, B, Decide(after(view_at(peer), A, B, C))))
    assert said.finish is None


def test_what_is_called_is_said_again_with_every_beat_until_the_view_or_the_step_is_over() -> None:
    peer = seated(B, C)
    said = [(B, ABORT), (C, ABORT)]
    assert bodies(Abort, peer.send_abort(ABORT)) == said
    assert bodies(Abort, peer.tick(0.25)) == bodies(Abort, peer.tick(0.5)) == said
    say(peer, B, Decide(after(view_at(peer), A, B, C)))
    assert bodies(Abort, peer.tick(0.75)) == []
    assert peer.send_abort(replace(ABORT, step=1)) == joiner().send_abort(ABORT) == []


def test_leave_says_what_its_sender_has_finished_and_with_which_parameters() -> None:
    peer = seated(B)
    number = view_at(peer).number
    say(peer, B, Leave(finish=finish(0, view_at(peer), state_digest=b"other")))
    assert peer.may_finish(0, number, b"state")
    effects = peer.finished(0.0, 0, b"bits", b"state")
    assert effects[-1] == Diverged(0, DIFFER)
    assert bodies(Leave, peer.leave(0.0))[0][1].given_up == diverged(view_at(peer), DIFFER)


def test_a_step_may_not_be_finished_if_a_founder_that_has_gone_contradicts() -> None:
    peer = seated(B)
    say(peer, B, Leave(finish=finish(0, view_at(peer), state_digest=b"other")))
    say(peer, B, Decide(view := after(view_at(peer), A)))
    number = view.number
    assert peer.may_finish(0, number, b"other") and not peer.may_finish(0, number, b"state")
    assert peer.contradiction(0, number - 1, b"state") == joiner().contradiction(0, 1, b"state") == []
    assert peer.contradiction(1, number, b"state") == peer.contradiction(0, number, b"other") == []
    assert peer.contradiction(0, number, b"state") == [Diverged(0, GONE)]


def test_leave_of_another_view_says_nothing_of_this_one() -> None:
    peer = seated(B, C)
    before = view_at(peer)
    say(peer, B, Decide(after(before, A, B, C)))
    say(peer, B, Leave(0, finish=finish(0, before, state_digest=b"other")), before.stamp)
    assert not peer._steps.parting.is_void and peer._steps._progress == {}


# Founders


@pytest.mark.parametrize("said", [Ready(True, 0, b"zero", None, founded_in=2), Ready(True, -1, b"-1", ZERO)])
def test_a_joiner_learns_of_the_founders_in_its_first_barrier(said: Ready) -> None:
    machine, view = StepMachine(C), view_of(5, A, C)
    machine.install(view)
    machine.receive(A, said)
    wanted = machine.wanted_state()
    assert wanted is not None
    assert machine.loaded(wanted[0], wanted[1])[-1] == Activated(view, 0, founded_in=2)
    sends = [effect for effect in machine.install(view_of(6, A, C)) if isinstance(effect, Send)]
    assert [send.body.founded_in for send in sends if isinstance(send.body, Ready)] == [2]


def test_beats_say_nothing_of_calls_that_nobody_disputes() -> None:
    machine = active()
    assert {type(effect.body) for effect in machine.beat() if isinstance(effect, Send)} == {Beat}
