"""Real peers: broadcasts, gathers and shares, their outcome when a member is killed, and calls that differ."""

import signal

import pytest

from tests.cases import some_of
from tests.live.swarm import Swarm
from tests.live.test_swarm import agreed_receipts

pytestmark = [pytest.mark.torch, pytest.mark.light]

ARENAS = pytest.mark.parametrize("arena_bytes", [1 << 30, 0], ids=["memory", "sockets"])

RESULTS = """
import sys
import numpy as np
import torch
import p2p
from tests.p2p.staging.standin import StandIn

SIZES = (0, 1, 1000, 300_000)

def all_of(make, size):
    return [make(size, r) for r in range(n)]

def as_array(size, r):
    return (np.arange(size) % 100 + r).astype(np.float32)

def as_tensor(size, r):
    if size % 4:
        return torch.full((2, 3), float(r))
    return torch.from_numpy(as_array(size, r)).bfloat16().reshape(size // 4, 4)

def same(found, wanted):
    numbers = [torch.as_tensor(each).double() for each in (found, wanted)]
    return type(found) is type(wanted) and found.dtype == wanted.dtype and torch.equal(*numbers)

def check(make, size, **how):
    inputs = all_of(make, size)
    mine, root = inputs[rank], (size + 1) % n
    flat = [each.reshape(-1) for each in inputs]

    def broadcast():
        tensor = make(size, rank)
        waiting = peer.broadcast(tensor, root=root, algorithm=how.get("broadcast"), **given)
        return waiting, lambda _: same(tensor, inputs[root])

    def gather():
        waiting = peer.all_gather(make(size, rank), algorithm=how.get("gather"), **given)
        return waiting, lambda rows: len(rows) == n and all(map(same, rows, inputs))

    def scatter():
        waiting = peer.reduce_scatter(make(size, rank), op="max", algorithm=how.get("scatter"), **given)
        def is_right(result):
            share, where = result
            assert abs(len(share) - len(flat[0]) / n) < 1
            return same(share, flat[n - 1][where])
        return waiting, is_right

    for operation in (broadcast, gather, scatter):
        for given in ({}, {"commit": False}, {"async_op": True}):
            result, is_right = operation()
            if isinstance(result, p2p.Handle):
                result = result.wait()
            assert is_right(result), (operation, given, size, how)
    given = {}
    with peer.step(samples=1):
        waiting = [operation() for operation in (broadcast, gather, scatter)]
        try:
            waiting[1][0].wait()
        except p2p.ShoalError as error:
            assert "block is open" in str(error), error
        else:
            raise AssertionError
    for handle, is_right in waiting:
        assert is_right(handle and handle.wait()), (size, how)

with p2p.join(arena_bytes=int(sys.argv[1])) as peer:
    print("here", peer.peer_id)
    peer.wait_view()
    rank, n = peer.rank, peer.world_size
    for size in SIZES:
        check(as_array, size)
    for size in SIZES[1:]:
        check(as_tensor, size, broadcast="binary-tree", gather="ring", scatter="ring")
    device, of_host = StandIn(rank), peer._session.device_of
    peer._session.device_of = device.device_of
    for size in SIZES[:3]:
        check(as_tensor, size, broadcast="ring", gather="one-shot", scatter="direct")
    device.drain()
    peer._session.device_of = of_host
    sent, out = np.arange(5), np.zeros(5, np.int64)
    peer.broadcast(sent + rank, root=peer.peer_id if n == 1 else peer.view.members[-1].peer_id, out=out)
    assert out.tolist() == (sent + n - 1).tolist()
    before = peer.last_step
    for call, given, said in (
        (peer.broadcast, {"root": n}, f"0 to {n - 1}, or a peer_id, is {n}"),
        (peer.broadcast, {"root": "nobody"}, "is 'nobody'; members: "),
        (peer.broadcast, {"root": 0.5}, "float"),
        (peer.broadcast, {"algorithm": "tree"}, "algorithm must be one of one-shot, binary-tree, ring, is 'tree'"),
        (peer.all_gather, {"algorithm": "direct"}, "algorithm must be one of one-shot, ring, is 'direct'"),
        (peer.reduce_scatter, {"op": "product"}, "product"),
        (peer.all_gather, {"async_op": True, "commit": False}, "pass one"),
    ):
        try:
            call(sent, **given)
        except (TypeError, ValueError) as error:
            assert said in str(error), error
        else:
            raise AssertionError(said)
    peer.barrier()
    print("done", peer.last_step - before)
"""


@pytest.mark.parametrize(("count", "arena_bytes"), [(1, 1 << 30), (3, 1 << 30), (3, 0)])
def test_all_have_what_was_promised_however_it_is_asked_for(swarm: Swarm, count: int, arena_bytes: int) -> None:
    peers = swarm.start_all(count, RESULTS, str(arena_bytes))
    assert [peer.end() for peer in peers] == [0] * count, "\n".join(peer.report() for peer in peers)
    assert {peer.stdout[-1] for peer in peers} == {"done 1"}
    agreed_receipts(swarm, peers)


KILLED = """
import sys
import numpy as np
import p2p

with p2p.join(arena_bytes=int(sys.argv[1])) as peer:
    print("here", peer.peer_id)
    peer.wait_view()
    rank, victim = peer.rank, int(sys.argv[3])
    mine = np.arange(30) + 100 * rank
    print("rank", rank)
    if rank == victim:
        sys.stdin.readline()  # is killed here: the others wait for it
    if sys.argv[2] == "broadcast":
        try:
            peer.broadcast(mine, root=1)
            print("result", *mine[:3])
        except p2p.RootLost as error:
            assert mine[0] == 100 * rank and peer.world_size == 2
            assert "broadcast from peer" in str(error) and f"step {peer.last_step} moved none" in str(error)
            assert peer.receipt.algorithms == ("nothing",)
            peer.broadcast(mine, root=1)
            print("again", *mine[:3], "of", peer.world_size)
    elif sys.argv[2] == "beside":
        moved, rows = peer.broadcast(mine[2:], async_op=True), peer.all_gather(mine[:2], async_op=True)
        for ends_it in (rows.wait, moved.wait):
            try:
                ends_it()
                raise AssertionError("nothing was moved")
            except p2p.RootLost:
                pass
        print("result", rows.wait().tolist(), "of", peer.world_size)
    elif sys.argv[2] == "gather":
        rows = peer.all_gather(mine[:2])
        print("result", rows.tolist(), "of", peer.world_size)
    else:
        share, where = peer.reduce_scatter(mine)
        assert (share == (peer.world_size * np.arange(30) + 100 * sum(range(3)) - 100 * victim)[where]).all()
        assert where == slice(15 * peer.rank, 15 * peer.rank + 15), where
        print("result", len(share), "of", peer.world_size)
    peer.barrier()
"""


KILLS = [
    ("broadcast", 0, "result 100 101 102"),
    ("broadcast", 1, "again 200 201 202 of 2"),
    ("gather", 1, "result [[0, 1], [200, 201]] of 2"),
    ("beside", 0, "result [[100, 101], [200, 201]] of 2"),
    ("scatter", 1, "result 15 of 2"),
]


@pytest.mark.parametrize(
    ("kind", "victim", "expected", "arena_bytes"),
    some_of([(*each, arena_bytes) for each in KILLS for arena_bytes in (1 << 30, 0)], 0, 3, 4, 6, 9),
)
def test_after_a_kill_it_is_done_again_by_those_who_are_left(
    swarm: Swarm, arena_bytes: int, kind: str, victim: int, expected: str
) -> None:
    peers = swarm.start_all(3, KILLED, str(arena_bytes), kind, str(victim))
    ranked = sorted(peers, key=lambda peer: peer.expect("rank"))
    dead = ranked.pop(victim)
    dead.kill()
    assert dead.end() == -signal.SIGKILL
    assert [peer.end() for peer in ranked] == [0, 0], "\n".join(peer.report() for peer in ranked)
    assert [peer.stdout[-1] for peer in ranked] == [expected] * 2
    agreed_receipts(swarm, ranked)


OTHERS = """
import sys
import numpy as np
import p2p

with p2p.join() as peer:
    print("here", peer.peer_id)
    peer.wait_view()
    try:
        if peer.rank < 2:
            peer.broadcast(np.zeros(3), root=0)
        elif sys.argv[1] == "root":
            peer.broadcast(np.zeros(3), root=1)
        else:
            peer.all_gather(np.zeros(3))
        print("members", peer.world_size)
    except p2p.OperationMismatch as error:
        assert error.is_alone
        print("told", error)
"""


@pytest.mark.parametrize("what", ["root", "operation"])
def test_who_calls_something_else_goes_alone_and_hears_both(swarm: Swarm, what: str) -> None:
    peers = swarm.start_all(3, OTHERS, what)
    assert [peer.end() for peer in peers] == [0] * 3, "\n".join(peer.report() for peer in peers)
    (told,) = [line for peer in peers for line in peer.stdout if line.startswith("told")]
    assert "broadcast from peer" in told and told.count(" of float64 [3]") == 2, told
    assert sum("members 2" in peer.stdout for peer in peers) == 2
