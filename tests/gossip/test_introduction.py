"""Introduction to a peer known only by address: the messages to it, and its answer with all that it knows."""

from dataclasses import replace

from gossip import Claim, Foundation, Policy, State
from gossip.effects import Discovered, Send
from gossip.messages import LineageQuery, SyncReply

from .cores import RUN, bodies, core, meet, only, say
from .members import LINEAGE, A, B, C, claim


def test_whoever_is_called_answers_with_everybody_it_knows_itself_included() -> None:
    caller, called = core(C), core(A)
    meet(called, [B])
    gossip, sync = caller.introduction()
    assert only(Discovered, say(called, C, gossip)) == [Discovered(claim(C))]
    (answer,) = [body for to, body in bodies(SyncReply, say(called, C, sync)) if to == C]
    met = only(Discovered, say(caller, A, answer))
    assert {effect.claim.member for effect in met} == {A, B}


def test_a_second_call_is_answered_like_the_first() -> None:
    caller, called = core(C), core(A)
    for _ in range(2):
        gossip, sync = caller.introduction()
        say(called, C, gossip)
        assert [to for to, body in bodies(SyncReply, say(called, C, sync))] == [C]


def test_a_seed_is_known_by_its_address_for_other_hosts_if_it_has_one() -> None:
    remote = replace(claim(B).contact, remote_control="tcp://b:1")
    peer = core(A)
    seeds = [claim(A).contact.control, "tcp://b:1", claim(C).contact.control]
    peer.found_from_seeds(0.0, Foundation(seeds, LINEAGE, 1, Policy.LIVE))
    peer.meet(0.0, Claim(B, State.ALIVE, remote))
    peer.meet(0.0, claim(C))
    asked = [effect.target for effect in only(Send, peer.ask_for_seat(0.0, RUN)) if effect.body == LineageQuery()]
    assert asked == [B, C]
