"""Real peers: element types, reductions, and disagreement about them."""

import pytest

from tests.cases import some_of
from tests.live.swarm import Swarm

pytestmark = [pytest.mark.torch, pytest.mark.light]

REDUCTIONS = """
import numpy as np
import torch
import p2p

NAMES = "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 bool".split()
CALLS = [("sum", None), ("mean", "direct"), ("mean", "ring"), ("min", "one-shot"), ("max", "tree")]

with p2p.join(arena_bytes=ARENA_BYTES) as peer:
    print("here", peer.peer_id)
    peer.wait_view()
    rank, n = peer.rank, peer.world_size
    for name in NAMES:
        dtype = getattr(torch, name)
        for op, algorithm in CALLS:
            if op == "mean" and not dtype.is_floating_point:
                continue
            for shape in ((), (0, 3), (1,), (n - 1,), (101, 7), (50_000,)):
                size = int(np.prod(shape))
                parts = [(torch.arange(size) % 5 + r).to(dtype).reshape(shape) for r in range(n)]
                around = torch.full((*shape, 2), 1, dtype=dtype)
                tensor = around[..., 0]
                tensor.copy_(parts[rank])
                peer.all_reduce(tensor, op=op, algorithm=algorithm)
                wide = torch.stack(parts).to(torch.float64)
                wanted = {"sum": wide.sum(0), "mean": wide.mean(0), "min": wide.amin(0), "max": wide.amax(0)}[op]
                assert torch.equal(tensor, wanted.to(dtype)), (name, op, algorithm, shape)
                assert (around[..., 1] == 1).all()
        lent, out = peer.empty(40_000, dtype=dtype), peer.empty(200, 200, dtype=dtype)
        lent.fill_(1 if rank else 0)
        peer.all_reduce(lent.view(200, 200), op="max", out=out)
        assert (out == (n > 1)).all() and (lent == (rank > 0)).all(), name
        peer.all_reduce(lent[:7], op="max")
        assert (lent[:7] == (n > 1)).all() and (lent[7:] == (rank > 0)).all(), name
    for name in ("float16", "float32", "uint8"):
        array = (np.arange(10) + rank).astype(name)
        peer.all_reduce(array, op="max")
        assert (array == np.arange(10) + n - 1).all()
    noise = torch.randn(70_000, generator=torch.Generator().manual_seed(rank)).bfloat16()
    for op in ("sum", "mean", "min", "max"):
        results = []
        for algorithm in ("one-shot", "direct", "ring", "tree"):
            copy = noise.clone()
            copy[:9] = float("nan") if rank == n - 1 else float("-inf")
            peer.all_reduce(copy, op=op, algorithm=algorithm)
            results.append(copy.view(torch.int16))
        assert torch.equal(results[0], results[1])
        assert op in ("sum", "mean") or all(torch.equal(results[0], each) for each in results)
        assert copy[:9].isnan().all() and not copy[9:].isnan().any()
        print("bits", op, results[0].sum().item(), results[2].sum().item(), results[3].sum().item())
    print("done", peer.last_step)
"""


@pytest.mark.parametrize(("count", "arena_bytes"), some_of([(1, 1 << 30), (3, 1 << 30), (3, 0)], 0))
def test_every_type_and_reduction_gives_all_peers_the_same_right_result(
    swarm: Swarm, count: int, arena_bytes: int
) -> None:
    peers = swarm.start_all(count, REDUCTIONS.replace("ARENA_BYTES", str(arena_bytes)))
    assert [peer.end() for peer in peers] == [0] * count, "\n".join(peer.report() for peer in peers)
    assert len({tuple(line for line in peer.stdout if line.startswith("bits")) for peer in peers}) == 1


def test_peers_that_share_no_memory_and_peers_that_do_meet(swarm: Swarm) -> None:
    """Then no peer uses shared memory."""
    peers = [
        swarm.start(REDUCTIONS.replace("ARENA_BYTES", str(arena_bytes)), min_peers=3)
        for arena_bytes in (1 << 30, 0, 1 << 30)
    ]
    assert [peer.end() for peer in peers] == [0, 0, 0], "\n".join(peer.report() for peer in peers)


FLUSHED = """
import sys
import numpy as np
import torch
import p2p

when = sys.stdin.readline().strip()
if when == "before":
    torch.set_flush_denormal(True)  # its loop's thread has that from it
with p2p.join() as peer:
    print("here", peer.peer_id)
    peer.wait_view()
    if when == "behind":
        torch.set_flush_denormal(True)
    bits = np.arange(1 << 20, (1 << 20) + 3000).astype(np.uint32)
    for op, wanted in (("sum", 3 * bits), ("mean", bits), ("min", bits)):
        for given in ({}, {"commit": False}, {"async_op": True}):
            near_zero = bits.view(np.float32).copy()
            peer.all_reduce(near_zero, op=op, **given)
            peer.wait()
            assert (near_zero.view(np.uint32) == wanted).all(), (when, op, given)
    peer.barrier()
    assert (np.full(3, 2e-45, np.float32) + np.float32(0) > 0).all() == (when == "never"), "it is the script's again"
    print("done")
"""


def test_peers_that_take_numbers_near_zero_for_zero_have_the_same_sums_as_those_that_do_not(swarm: Swarm) -> None:
    peers = [swarm.start(FLUSHED, min_peers=3) for _ in range(3)]
    for peer, when in zip(peers, ("before", "behind", "never"), strict=True):
        peer.tell(when)
    assert [peer.end() for peer in peers] == [0] * 3, "\n".join(peer.report() for peer in peers)


DISAGREEMENT = """
import numpy as np
import torch
import p2p

with p2p.join() as peer:
    print("here", peer.peer_id)
    peer.wait_view()
    for turn in range(6):
        odd = peer.rank == turn // 2 % 2
        try:
            if turn % 2:
                peer.all_reduce(torch.ones(9), op="min" if odd else "mean")
            else:
                peer.all_reduce(torch.ones(9, dtype=torch.bfloat16 if odd else torch.float16))
        except p2p.OperationMismatch as error:
            print("mismatch", turn, error)
        good = np.ones(7, np.int32)
        peer.all_reduce(good)
        assert (good == 2).all()
    print("steps", peer.last_step)
"""


def test_another_reduction_or_another_type_raises_on_both_founders_and_names_both_sides(swarm: Swarm) -> None:
    peers = swarm.start_all(2, DISAGREEMENT)
    assert [peer.end() for peer in peers] == [0, 0], "\n".join(peer.report() for peer in peers)
    for peer in peers:
        errors = [line for line in peer.stdout if line.startswith("mismatch")]
        assert [line.split()[1] for line in errors] == [str(turn) for turn in range(6)]
        for turn, line in enumerate(errors):
            sides = ("min of float32", "mean of float32") if turn % 2 else ("sum of bfloat16", "sum of float16")
            assert all(f"all_reduce {side} [9]" in line for side in sides), line
        assert peer.stdout[-1] == "steps 6"
