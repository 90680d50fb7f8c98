"""Standing: queries of a core's host, and of displays, about the peer itself and others."""

from dataclasses import replace
from random import Random

from gossip import Phase, State
from gossip import messages as m
from gossip.progress import Beat, Finish, Progress, Ready
from gossip.swim import Swim
from gossip.swim_config import SwimConfig

from .cores import NOTHING, RUN, bodies, core, founder, genesis, joiner, meet, say, seated, view_with
from .members import A2, A, B, C, claim

CLASS = b"class" + bytes(3)


def test_where_a_member_is_and_whether_it_has_the_state() -> None:
    peer = seated(B)
    assert peer.host_of(B) == claim(B).contact.host and peer.host_of(C) == ""
    assert peer.has_state(B) and not peer.has_state(C)
    say(peer, B, m.Leave())
    assert not peer.has_state(B), "it does not stay"


def test_for_whom_a_barrier_waits() -> None:
    peer = founder()
    meet(peer, [B, C])
    say(peer, B, m.Decide(view_with(A, B, C)), now=1.0)
    assert peer.phase is Phase.INSTALLING
    assert set(peer.barrier_awaits(1.0)) == {B, C} and not peer.has_state(B)
    say(peer, B, NOTHING, now=1.0)
    assert set(peer.barrier_awaits(1.0)) == {C} and peer.has_state(B)
    say(peer, C, NOTHING, now=1.0)
    assert peer.barrier_awaits(1.0) == {}


def test_how_far_the_others_are_in_a_round() -> None:
    peer = seated(B, C)
    peer.advanced(0, 3)
    peer.advanced(7, 9)  # of another one
    assert {beat.progress.inner_steps for _, beat in bodies(Beat, peer.tick(10.0))} == {3}
    for member, finish in ((B, None), (C, Finish(0, b"bits", b"state", 2))):
        say(peer, member, Beat(NOTHING, Progress(-1, genesis(), finish, inner_steps=5)))
    assert peer.inner_steps_of_others() == {B: 5}, "the other one has finished it"


def test_the_state_that_a_peer_holds_and_its_class() -> None:
    peer = joiner(follows=True)
    assert peer.held_step == -1 and peer.numerics == bytes(8)
    peer.loaded(0.0, 4, b"digest 4")
    assert peer.held_step == 4
    alone = core()
    alone.ask_for_seat(0.0, replace(RUN, numerics=CLASS))
    assert alone.numerics[:4] == CLASS[:4] and alone.numerics[4:] != bytes(4), "it comes in with hardware of its own"


def test_what_is_believed_of_a_member_and_of_one_that_came_before_it() -> None:
    swim = Swim(claim(B), rng=Random(1), config=SwimConfig(), now=0.0)
    assert swim.state_of(A) is State.LOST
    swim.apply_claim(0.0, claim(A2))
    assert (swim.state_of(A2), swim.state_of(A)) == (State.ALIVE, State.DEAD)
    assert swim.state_of(replace(A2, incarnation=3)) is State.LOST


def test_a_state_is_awaited_from_its_question_until_it_has_come() -> None:
    peer, view = joiner(), view_with(A, B)
    say(peer, A, m.Decide(view))
    assert peer.awaited_state() is None
    say(peer, A, Ready(True, 4, b"digest", None), view.stamp)
    assert peer.awaited_state() == (4, (A,))
    peer.state_arrived(4, b"digest", view.lineage)
    assert peer.awaited_state() is None
