import numpy as np

from gossip.messages import Beat, Finish, Progress
from p2p.step.operations import Operation, Operations
from p2p.step.waiting import explain_waiting
from tests.gossip.cores import NOTHING, genesis, joiner, say, seated
from tests.gossip.members import B, C


def operations(count: int) -> Operations:
    """Of rank 0 of 3, which has submitted so many."""
    made = Operations(lambda *_: None, lambda *_: None, segment_bytes=64)
    made.install()
    made.activate(0, 3)
    for _ in range(count):
        values = np.zeros(40, np.float32)
        made.submit(0, Operation("all_reduce", values, values.copy(), values.shape, "direct"))
    return made


def test_who_has_submitted_less_than_others_is_named_with_when_it_was_heard() -> None:
    peer = seated(B, C)
    peer.submitted(0, 3, 0)
    say(peer, B, Beat(NOTHING, Progress(-1, genesis(), None, 1)), now=0.1)
    say(peer, C, Beat(NOTHING, Progress(-1, genesis(), None, 3)), now=0.2)
    assert explain_waiting(peer, operations(3), 0.6) == (
        "waits for segment 0 of 1 of operation 0 from peer b (and 11 more); "
        "peer b (last heard 0.5 s ago) has submitted 1 operations of step 0"
    )


def test_who_has_not_finished_is_named_where_others_have() -> None:
    peer = seated(B, C)
    peer.submitted(0, 1, 1)
    say(peer, B, Progress(-1, genesis(), Finish(0, b"bits", b"", 2)), now=0.1)
    say(peer, C, Beat(NOTHING, Progress(-1, genesis(), None, 1)), now=0.2)
    assert explain_waiting(peer, operations(0), 0.2) == (
        "peer a (this one) has submitted 1 operations of step 0; "
        "peer c (last heard 0.0 s ago) has submitted 1 operations of step 0"
    )


def test_where_all_are_alike_the_view_says_why_it_is_as_it_is() -> None:
    assert explain_waiting(seated(B, C), operations(0), 0.0) == "3 of 3 members of view 2 are here"
    assert explain_waiting(joiner(), operations(0), 0.0) == joiner().reason
