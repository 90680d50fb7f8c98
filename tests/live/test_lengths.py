"""Real peers that call different numbers of operations in one step."""

import pytest

from tests.live.swarm import Swarm

LENGTHS = """
import sys
import numpy as np
import p2p

with p2p.join(arena_bytes=int(sys.argv[1])) as peer:
    print("here", peer.peer_id)
    peer.wait_view()
    before = peer.last_step
    for turn in range(4):
        is_odd, others = (2, 1) if turn % 2 else (1, 2)
        number = is_odd if peer.rank == turn // 2 else others
        ones = [np.ones(3) for _ in range(number)]
        try:
            with peer.step():
                for one in ones:
                    peer.all_reduce(one, algorithm=sys.argv[2])
        except p2p.OperationMismatch as error:
            print("mismatch", error)
        assert all((one == 1).all() for one in ones)
        peer.all_reduce(ones[0])
        assert (ones[0] == 2).all()
    print("steps", peer.last_step - before)
"""


@pytest.mark.light
@pytest.mark.parametrize("algorithm", ["one-shot", "ring"])
@pytest.mark.parametrize("arena_bytes", [1 << 30, 0], ids=["memory", "sockets"])
def test_an_operation_that_only_one_founder_calls_raises_on_both(
    swarm: Swarm, arena_bytes: int, algorithm: str
) -> None:
    peers = swarm.start_all(2, LENGTHS, str(arena_bytes), algorithm)
    assert [peer.end() for peer in peers] == [0, 0], "\n".join(peer.report() for peer in peers)
    for peer in peers:
        errors = [line for line in peer.stdout if line.startswith("mismatch operation 2 of step")]
        assert len(errors) == 4, peer.report()
        for line in errors:
            assert f"all_reduce sum of float64 [3] by {algorithm} at peer" in line, line
            assert "nothing, since the step ends before it, at peer" in line, line
        assert peer.stdout[-1] == "steps 4"
