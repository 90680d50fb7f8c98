"""Effects for the record of a view: its proposal, and why members of the view before are not in it."""

from gossip import Policy, State
from gossip.acceptor import NO_BALLOT
from gossip.effects import (
    Installed,
    Proposed,
    WriteRecord,
)
from gossip.messages import (
    Accept,
    AcceptorRecord,
    Ballot,
    Decide,
    Leave,
    Promise,
)

from .cores import (
    after,
    bodies,
    first_view,
    only,
    run,
    say,
    seated,
    view_of,
)
from .members import A, B, C, D, E


def test_what_is_proposed_is_said_for_the_record_once_for_each_ballot() -> None:
    peer = seated(B, C)
    view = after(view_of(peer), A, B)
    peer.declare_dead(0.0, C, "gone")
    assert only(Proposed, peer.tick(0.0)) == []  # no member has promised anything yet
    assert only(Proposed, say(peer, B, Promise(Ballot(1, 0), None))) == [Proposed(view)]
    repeated = run(peer, 0.0, 0.3)
    assert only(Proposed, repeated) == [] and bodies(Accept, repeated)
    alone = seated(B, policy=Policy.LIVE)
    effects = alone.declare_dead(1.0, B, "SIGKILL", AcceptorRecord(first_view(policy=Policy.LIVE), NO_BALLOT, None))
    effects += alone.tick(1.0)
    kinds = [type(effect) for effect in effects if isinstance(effect, Proposed | WriteRecord | Installed)]
    assert kinds.index(Proposed) < kinds.index(Installed) and kinds.count(Proposed) == 1


def test_an_installed_view_says_why_members_of_the_one_before_are_in_it_no_more() -> None:
    peer = seated(B, C, D)
    peer.declare_dead(0.0, B, "SIGKILL")
    say(peer, C, Leave())
    (installed,) = only(Installed, say(peer, D, Decide(after(view_of(peer), A))))
    assert installed.gone == ((B, State.DEAD), (C, State.LEFT), (D, State.LOST))
    (installed,) = only(Installed, say(peer, D, Decide(after(view_of(peer), A, E))))
    assert installed.gone == ()
