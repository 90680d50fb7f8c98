"""The first seat of one peer, by the whole core: it founds, or asks for a seat."""

import pytest

from gossip import NO_VIEW, Core, Foundation, Member, Phase, Policy
from gossip.acceptor import BLANK
from gossip.effects import (
    Activated,
    Committed,
    Installed,
    Refused,
    Removed,
    Send,
    WriteRecord,
)
from gossip.given_up import LONGEST_REASON
from gossip.messages import (
    AcceptorRecord,
    Decide,
    Difference,
    Head,
    Join,
    LineageAnswer,
    LineageQuery,
    Ping,
    Refuse,
)
from gossip.progress import Beat, Finish, Progress, Ready, StateQuery

from .cores import (
    NOTHING,
    RUN,
    SAME,
    after,
    bodies,
    core,
    first_view,
    founder,
    genesis,
    joiner,
    meet,
    only,
    run,
    say,
    seated,
    view_with,
)
from .members import LINEAGE, A, B, C, D, claim

SEEDS = ["control a", "control b"]

# Founding.


def test_a_founder_is_active_alone_and_step_0_waits_for_the_founding_members() -> None:
    peer, view = core(), first_view(2)
    assert peer.found(0.0, LINEAGE, 2, RUN, Policy.MAJORITY) == [Installed(view), Activated(view, -1, maps_all=True)]
    assert (peer.stamp, peer.view, peer.phase, peer.done) == (view.stamp, view, Phase.ACTIVE, -1)
    assert peer.reason == "1 of 1 members of view 1 are here"


def test_a_founder_for_one_commits_step_0_at_once() -> None:
    effects = core().found(0.0, LINEAGE, 1, RUN, Policy.MAJORITY)
    assert only(Committed, effects) == [Committed(Finish(0, b"", b"", 1), first_view(1))]


def test_r13_under_live_a_founder_writes_its_view_before_anything_else() -> None:
    view = first_view(policy=Policy.LIVE)
    effects = core().found(0.0, LINEAGE, 9, RUN, Policy.LIVE)
    assert effects[0] == WriteRecord(AcceptorRecord(view, BLANK.record.promised, None))
    assert only(Installed, effects) == [Installed(view)]


def test_step_0_is_finished_by_itself_when_the_founding_members_are_there() -> None:
    peer = founder(2)
    say(peer, B, Decide(view_with(A, B, founding_size=2)))
    zero = Finish(0, b"", b"", 2)
    assert bodies(Progress, say(peer, B, NOTHING)) == [(B, Progress(-1, genesis(), zero))]
    assert bodies(Progress, peer.tick(0.25)) == []  # once; beats repeat it
    assert only(Committed, say(peer, B, Beat(NOTHING, Progress(-1, genesis(), zero)))) != []
    assert peer.done == 0


def seed(me: Member) -> Core:
    """`me` knows the seeds, of which A is the first, and will ask for a seat."""
    peer = core(me)
    peer.found_from_seeds(0.0, Foundation(SEEDS, LINEAGE, 2, Policy.LIVE))
    return peer


def test_the_first_seed_founds_when_no_other_knows_a_swarm() -> None:
    peer = seed(A)
    meet(peer, [B])
    assert (B, LineageQuery()) in bodies(LineageQuery, peer.ask_for_seat(0.0, RUN))
    assert only(Installed, peer.tick(0.5)) == []
    assert peer.reason == "waiting 10 s more for control b to say whether a swarm exists"
    say(peer, B, LineageAnswer(b""))
    assert only(Installed, peer.tick(1.0)) == [Installed(first_view(2, Policy.LIVE))]


def test_the_first_seed_founds_when_another_cannot_be_reached() -> None:
    peer = seed(A)
    peer.ask_for_seat(0.0, RUN)
    assert only(Installed, run(peer, 0.0, 9.5, 0.25)) == []
    assert len(only(Installed, run(peer, 9.5, 10.5, 0.25))) == 1


def test_g15_the_first_seed_does_not_found_what_anybody_knows() -> None:
    peer = seed(A)
    meet(peer, [C])
    peer.ask_for_seat(0.0, RUN)
    say(peer, C, LineageAnswer(b"\xfe"))
    assert only(Installed, run(peer, 0.0, 20.0, 0.25)) == []
    assert peer.reason == "the swarm exists: lineage fe"


def test_g15_whatever_a_member_says_the_first_seed_knows_that_there_is_a_swarm() -> None:
    peer = core()
    gossip, _ = core(D).introduction()
    say(peer, D, gossip, view_with(A, D).stamp)
    peer.found_from_seeds(0.0, Foundation(["control a"], LINEAGE, 1, Policy.LIVE))
    peer.ask_for_seat(0.0, RUN)
    assert only(Installed, run(peer, 0.0, 8.0, 0.25)) == []
    assert peer.reason == f"the swarm exists: lineage {view_with(A, D).lineage.hex()}"


def test_g15_while_it_was_stopped_the_first_seed_has_not_listened() -> None:
    peer = core()
    peer.found_from_seeds(0.0, Foundation(["control a"], LINEAGE, 1, Policy.LIVE))
    peer.ask_for_seat(0.0, RUN)
    assert only(Installed, run(peer, 0.0, 1.0)) == []
    assert only(Installed, run(peer, 5.0, 7.9)) == []
    assert len(only(Installed, run(peer, 7.9, 8.6))) == 1


def test_who_is_not_the_first_seed_waits_for_it() -> None:
    peer = seed(B)
    peer.ask_for_seat(0.0, RUN)
    assert only(Installed, run(peer, 0.0, 20.0, 0.25)) == []
    assert peer.reason == "waiting for a seat; seed control a founds"


def test_nobody_founds_before_it_asks_for_a_seat() -> None:
    peer = core()
    peer.found_from_seeds(0.0, Foundation(["control a"], LINEAGE, 1, Policy.LIVE))
    assert only(Installed, run(peer, 0.0, 4.0)) == []
    peer.ask_for_seat(4.0, RUN)
    assert len(only(Installed, run(peer, 4.0, 5.0))) == 1, "it has listened all along"


def test_g15_the_first_seed_founds_as_soon_as_it_may() -> None:
    peer = core()
    assert only(Installed, run(peer, 0.0, 0.9)) == []
    peer.found_from_seeds(0.9, Foundation(["control a"], LINEAGE, 1, Policy.LIVE))
    peer.ask_for_seat(0.9, RUN)
    assert only(Installed, run(peer, 0.9, 2.9)) == []
    assert peer.next_deadline() <= 3.0
    assert len(only(Installed, peer.tick(3.0))) == 1


def test_seeds_have_to_be_distinct() -> None:
    with pytest.raises(ValueError, match="seeds must be distinct addresses"):
        core().found_from_seeds(0.0, Foundation(["a", "a"], LINEAGE, 2, Policy.LIVE))


def test_whoever_asks_is_told_the_lineage() -> None:
    assert say(founder(), B, LineageQuery(), NO_VIEW) == [Send(B, LineageAnswer(LINEAGE))]
    assert say(core(B), A, LineageQuery()) == [Send(A, LineageAnswer(b""))]


# Asking for a seat.


def test_r13_who_asks_for_a_seat_first_writes_a_blank_record() -> None:
    assert core(B).ask_for_seat(0.0, RUN) == [BLANK]


def test_r13_who_has_a_seat_asks_for_none_and_keeps_its_record() -> None:
    assert seated(B, policy=Policy.LIVE).ask_for_seat(1.0, RUN) == []


def test_a_joiner_asks_everybody_alive_and_whoever_it_meets_later() -> None:
    peer = core(B)
    assert (peer.stamp, peer.reason) == (NO_VIEW, "not in a view yet")
    meet(peer, [A])
    assert peer.ask_for_seat(1.0, RUN) == [BLANK, Send(A, Join(SAME))]
    assert bodies(Join, say(peer, C, Ping(1, (claim(C),)), now=1.0)) == [(C, Join(SAME))]
    assert bodies(Join, peer.meet(1.0, claim(D))) == [(D, Join(SAME))]
    assert bodies(Join, peer.tick(1.4)) == []
    assert bodies(Join, peer.tick(1.5)) == [(A, Join(SAME)), (C, Join(SAME)), (D, Join(SAME))]
    assert bodies(Join, peer.tick(1.75)) == []
    assert len(bodies(Join, peer.tick(2.0))) == 3


def test_a_joiner_that_hears_of_a_later_view_asks_everybody_again_at_once() -> None:
    peer, view = joiner(), view_with(A, C)
    meet(peer, [C])
    assert say(peer, A, Head(-1, b"", 2, 2), view.stamp) == [
        Send(A, Join(SAME, view_number=2)),
        Send(C, Join(SAME)),
    ]
    assert say(peer, C, Head(-1, b"", 2, 2), view.stamp) == [Send(C, Join(SAME, view_number=2))]
    assert bodies(Join, peer.tick(0.5)) == [(member, Join(SAME, view_number=2)) for member in (A, C)]


def test_r8_a_joiner_that_had_a_seat_and_never_heard_of_it_ends() -> None:
    """A joiner that hears of its seat late continues, until it hears the rest."""
    peer, late = joiner(), joiner()
    seated_it, went_on = view_with(A, B), after(view_with(A, B), A)
    for each in (peer, late):
        say(each, A, Head(-1, b"", 1, 1), first_view().stamp)
        for now in (1.0, 2.0):
            assert only(Removed, say(each, A, Head(-1, b"", 3, 3), went_on.stamp, now=now)) == []
    (removed,) = only(Removed, say(peer, A, Head(-1, b"", 3, 3), went_on.stamp, now=3.0))
    assert removed == Removed("it may have had a seat after view 1, and has none in view 3")
    assert (peer.ended, peer.reason) == (True, removed.reason)
    assert only(Installed, say(late, A, Decide(seated_it), went_on.stamp, now=3.0)) == [Installed(seated_it)]
    assert say(late, A, Head(-1, b"", 3, 3), went_on.stamp, now=3.0) == []
    assert only(Removed, say(late, A, Decide(went_on), went_on.stamp, now=3.0)) != []


def test_who_has_asked_for_nothing_waits_in_silence() -> None:
    peer = core(B)
    meet(peer, [A])
    assert bodies(Join, run(peer, 0.0, 5.0)) == []
    assert say(peer, A, Decide(view_with(A, B)), now=5.0) == []
    assert peer.view is None


def test_a_refusal_reaches_the_host_of_who_has_asked_and_has_no_seat() -> None:
    refusal = Refuse(True, (Difference("model", b"their tensor"),))
    assert say(joiner(), A, refusal) == [Refused(refusal)]
    assert say(founder(), B, refusal, NO_VIEW) == []
    assert say(core(B), A, refusal) == []


def test_r6_who_is_not_given_the_state_is_told_why_by_whom_it_has_asked() -> None:
    refusal = founder().no_state_for(B, "no memory" * 1000)
    assert refusal == Send(B, Refuse(True, (), ("no memory" * 1000)[:LONGEST_REASON]))
    peer, view = joiner(), view_with(A, B)
    assert say(peer, A, refusal.body, NO_VIEW) == []
    say(peer, A, Decide(view))
    say(peer, A, Ready(True, 4, b"digest", None))
    assert say(peer, C, refusal.body) == []
    (removed,) = say(peer, A, Refuse(True, (), "no memory left"))
    assert (removed, peer.ended) == (Removed(f"{A} continues without this peer: no memory left"), True)


def test_r6_who_has_its_state_has_its_seat_whatever_is_said_of_that() -> None:
    peer = joiner()
    say(peer, A, Decide(view_with(A, B)))
    say(peer, A, Ready(True, 4, b"digest", None))
    peer.loaded(1.1, 4, b"digest")
    assert peer.seated and say(peer, A, founder().no_state_for(B, "no memory").body) == []


def test_r6_a_joiner_asks_for_the_state_at_once_and_again_until_it_is_loaded() -> None:
    peer, view = joiner(), view_with(A, B)
    assert peer._steps.wanted_state() is None
    assert only(Installed, say(peer, A, Decide(view))) == [Installed(view)]
    assert bodies(StateQuery, say(peer, A, Ready(True, 4, b"digest", None))) == [(A, StateQuery(4))]
    assert peer._steps.wanted_state() == (4, b"digest", A)
    assert bodies(StateQuery, peer.tick(0.5)) == [(A, StateQuery(4))]
    assert not peer.seated
    assert only(Activated, peer.loaded(1.1, 4, b"digest")) == [Activated(view, 4)]
    assert peer.seated
    assert (peer.done, peer.phase, peer._steps.wanted_state()) == (4, Phase.ACTIVE, None)
    assert bodies(StateQuery, peer.tick(2.0)) == []
