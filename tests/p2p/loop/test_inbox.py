from p2p.errors import OperationMismatch, QuorumLost, RemovedFromView
from p2p.loop.inbox import Inbox
from p2p.step.notices import Admitted, Notice, Withdrawn
from tests.gossip.members import A, B, view_of

VIEW = view_of(2, A)


def heard(inbox: Inbox) -> list[Notice]:
    found = []
    while not inbox.notices.empty():
        found.append(inbox.notices.get_nowait())
    return found


def test_notices_come_in_the_order_in_which_they_were_told() -> None:
    inbox = Inbox()
    notices: list[Notice] = [Admitted(VIEW, 3), Withdrawn(4), OperationMismatch("shapes differ")]
    for notice in notices:
        inbox.tell(notice)
    assert heard(inbox) == notices and inbox.failure is None


def test_who_is_out_unheard_is_said_to_be_silent_only_if_it_was_so_here() -> None:
    inbox = Inbox()
    inbox.explain_out(A, 2.71, is_dead=False)
    inbox.explain_out(A, 0.2, is_dead=False)
    assert [words for _, words in inbox.explained] == [
        f"{A} is out: silent for 2.7 s",
        f"{A} is out: it has left, or not all others could hear it",
    ]


def test_who_is_dead_as_others_alone_have_seen_is_said_to_be_so() -> None:
    inbox = Inbox()
    inbox.explain(f"{A} is dead: its process has ended")
    inbox.explain_out(A, 0.0, is_dead=True)
    inbox.explain_out(B, 0.0, is_dead=True)
    assert [words for _, words in inbox.explained] == [
        f"{A} is dead: its process has ended",
        f"{B} is out: dead, as others have seen",
    ]


def test_of_what_ends_a_peer_only_the_first_is_told() -> None:
    inbox, first = Inbox(), RemovedFromView("the others go on")
    for notice in (first, QuorumLost("nobody is left"), Withdrawn(4)):
        inbox.tell(notice)
    assert heard(inbox) == [first, Withdrawn(4)] and inbox.failure is first


def test_a_crash_is_told_as_often_as_somebody_waits_also_behind_what_ended_the_peer() -> None:
    inbox, first, error = Inbox(), RemovedFromView("the others go on"), ValueError("of the loop")
    inbox.tell(first)
    inbox.tell_crash(error)
    assert inbox.next(0.0) is first is inbox.failure
    assert inbox.crash is not None and inbox.crash.__cause__ is error
    assert [inbox.next(0.0) for _ in range(3)] == [inbox.crash] * 3
