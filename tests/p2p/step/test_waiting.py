import numpy as np

from gossip import Core
from gossip.messages import Decide, Head
from gossip.progress import Beat, Finish, Progress, Ready
from p2p.step.open_step import OpenStep
from p2p.step.runner import MessageRunner
from p2p.step.waiting import explain_no_seat, explain_waiting
from tests.gossip.cores import NOTHING, founder, genesis, joiner, say, seated, view_of
from tests.gossip.members import A, B, C
from tests.p2p.step.group import all_reduce


def called(peer: Core, count: int) -> OpenStep:
    """The open step of `peer`, which has submitted `count` operations."""
    step = OpenStep(peer.me, segment_bytes=64)
    step.installed(view_of(peer))
    step.activated(view_of(peer), -1, MessageRunner(64))
    for _ in range(count):
        step.submit(0, 0, all_reduce(np.zeros(40, np.float32), "direct"))
    return step


def test_who_has_submitted_less_than_others_is_named_with_when_it_was_heard() -> None:
    peer = seated(B, C)
    peer.submitted(0, 3, 0)
    say(peer, B, Beat(NOTHING, Progress(-1, genesis(), None, 1)), now=0.1)
    say(peer, C, Beat(NOTHING, Progress(-1, genesis(), None, 3)), now=0.2)
    assert explain_waiting(peer, called(peer, 3), 0.6) == (
        "peer b (last heard 0.5 s ago) has called 1 operation of step 0 so far"
    )


def test_who_has_not_finished_is_named_where_others_have() -> None:
    peer = seated(B, C)
    peer.submitted(0, 1, 1)
    say(peer, B, Progress(-1, genesis(), Finish(0, b"bits", b"", 2)), now=0.1)
    say(peer, C, Beat(NOTHING, Progress(-1, genesis(), None, 1)), now=0.2)
    assert explain_waiting(peer, called(peer, 0), 0.2) == (
        "peer a (this one) has called 1 operation of step 0 so far; "
        "peer c (last heard 0.0 s ago) has called 1 operation of step 0 so far"
    )


def test_where_all_are_alike_the_view_says_why_it_is_as_it_is() -> None:
    peer = seated(B, C)
    assert explain_waiting(peer, called(peer, 0), 0.0) == "3 of 3 members of view 2 are here"
    newcomer = joiner()
    assert explain_waiting(newcomer, OpenStep(newcomer.me, segment_bytes=64), 0.0) == newcomer.reason


def test_a_barrier_says_for_whom_it_waits() -> None:
    peer = founder()
    say(peer, B, Decide(view_of(seated(B, C))), now=0.1)
    say(peer, B, Ready(False, -2, b"", None), now=0.2)
    assert explain_waiting(peer, OpenStep(peer.me, segment_bytes=64), 0.5) == (
        "view 2 begins once all of its members have come, and waits for peer b (last heard 0.3 s ago), "
        "peer c (last heard 0.4 s ago)"
    )
    assert awaited_names(seated(B, C)) == awaited_names(joiner()) == []


def test_who_was_admitted_and_has_no_state_yet_names_whom_it_has_asked() -> None:
    peer = joiner()
    view = view_of(seated(B))
    say(peer, A, Decide(view), now=0.1)
    say(peer, A, Ready(True, 4, b"digest", None), view.stamp, now=0.2)
    began = "view 2 begins once all of its members have come, and waits for "
    step = OpenStep(peer.me, segment_bytes=64)
    assert explain_waiting(peer, step, 0.7) == f"{began}the state after step 4, asked of peer a (last heard 0.5 s ago)"
    peer.state_arrived(4, b"digest", view.lineage)
    assert explain_waiting(peer, step, 0.7) == f"{began}peer b (this one)", "its script has still to load it"


def test_who_is_fed_and_has_asked_nobody_waits_for_the_state() -> None:
    peer, view = joiner(follows=True), view_of(seated(B))
    say(peer, A, Head(3, b"three"))
    peer.state_arrived(3, b"three", view.lineage)
    peer.loaded(0.05, 3, b"three")
    say(peer, A, Decide(view), now=0.1)
    say(peer, A, Ready(True, 4, b"digest", None), view.stamp, now=0.2)
    assert explain_waiting(peer, OpenStep(peer.me, segment_bytes=64), 0.3).endswith("waits for the state after step 4")


def awaited_names(peer: Core) -> list[str]:
    return [member.peer_id for member in peer.barrier_awaits(0.5)]


def test_who_waits_for_a_seat_is_told_what_to_do_and_who_waits_for_others_how_many_are_here() -> None:
    newcomer = joiner()
    assert explain_no_seat(newcomer, 30.0, "look there") == f"no seat after 30 s: {newcomer.reason}; look there"
    observer = joiner(follows=True)
    say(observer, A, Head(3, b"three"))
    assert explain_no_seat(observer, 10.0, "look there") == (
        "no seat after 10 s: a will give the state, once the next step begins there; look there"
    )
    assert explain_no_seat(founder(), 30.0, "look there") == (
        "no start after 30 s: 1 of 9 peers are here (a); start the others"
    )
