"""Members that no connection reaches, and members of which only the link answers: rule G11 of PROTOCOL.md."""

from gossip import Claim, State
from gossip.effects import Explain, Send
from gossip.messages import Report, ReportKind
from gossip.swim_config import SwimConfig
from gossip.unopened_links import UnopenedLinks
from gossip.view import NOWHERE

from .cores import NOTHING, say, seated
from .members import B, C


def test_a_link_that_does_not_open_is_given_up_after_a_while_and_one_that_opens_in_between_is_not() -> None:
    ways, both, why = UnopenedLinks(3.0), {B: "shut", C: "closed"}, "for 3 s: is a firewall or a NAT in between?"
    assert ways.update(0.0, both) == {}
    assert ways.update(2.0, {B: "shut"}) == {}
    assert ways.update(2.9, both) == {}
    assert ways.update(3.0, both) == {B: f"shut, {why}"}
    assert ways.update(6.0, both) == {B: f"shut, {why}", C: f"closed, {why}"}


def test_who_cannot_be_reached_is_reported_to_all_with_the_reason() -> None:
    peer = seated(B, C)
    links = {B: "no connection to tcp://b:1 can be opened"}
    assert peer.unopened(0.0, links) == []
    for tick in range(1, 10):
        peer.tick(tick / 4)
        assert peer.unopened(tick / 4, links) == []
    effects = peer.unopened(2.5, links)
    reason = f"{B} may be dead: {links[B]}, for 2.5 s: is a firewall or a NAT in between?"
    assert Explain(reason) in effects
    said = [effect for effect in effects if isinstance(effect, Send) and isinstance(effect.body, Report)]
    assert [(each.target, each.body) for each in said] == [(each, Report(ReportKind.REFUSED, B)) for each in (B, C)]


def test_r14_while_this_process_is_stopped_no_link_is_given_up() -> None:
    peer = seated(B, C)
    links = {B: "no connection to tcp://b:1 can be opened"}
    peer.tick(0.0)
    assert peer.unopened(0.0, links) == []
    effects = peer.unopened(60.0, links)  # the first look after a stop, before any tick
    assert Explain("this process was stopped for a while") in effects
    assert peer.reason == "3 of 3 members of view 2 are here"
    for tick in range(1, 10):
        peer.tick(60.0 + tick / 4)
        assert peer.unopened(60.0 + tick / 4, links) == []
    assert peer.unopened(62.5, links) != []


def test_r14_an_attempt_that_ended_while_this_process_was_stopped_is_no_refusal() -> None:
    peer = seated(B, C)
    peer.tick(0.0)
    assert Explain("this process was stopped for a while") in peer.link_refused(60.0, B, "a new link was refused")
    for now in (60.0 + tick / 4 for tick in range(10)):
        for member in (B, C):
            say(peer, member, NOTHING, now=now)
        peer.tick(now)
        assert peer.link_refused(now, B, "a new link was refused") == []
    assert peer.reason == "3 of 3 members of view 2 are here"
    assert peer.link_refused(62.5, B, "a new link was refused") != []
    assert peer.reason == "2 of 3 members of view 2 are here; without b"


def test_an_answering_link_counts_for_a_while_after_the_last_frame() -> None:
    peer = seated(B, C)
    peer.meet(0.0, Claim(B, State.ALIVE, NOWHERE))
    mute_s = SwimConfig().mute_s
    peer.link_answered(mute_s - 1, B)
    assert peer.member_progress(mute_s - 1, B)[1] == 0.0
    peer.link_answered(mute_s + 1, B)
    assert peer.member_progress(mute_s + 1, B)[1] == 2.0
