"""Real peers: results that are returned before their commit, and view changes in between."""

import signal
from itertools import product

import pytest

from tests.cases import some_of
from tests.live.swarm import Swarm, name, stop
from tests.live.test_swarm import agreed_receipts

ARENAS = pytest.mark.parametrize("arena_bytes", [1 << 30, 0], ids=["memory", "sockets"])

WAYS = "barrier", "step", "asynchronous", "committed", "uncommitted"

RESULTS = """
import numpy as np
import p2p

with p2p.join(arena_bytes=ARENA_BYTES) as peer:
    print("here", peer.peer_id)
    peer.wait_view()
    rank, n = peer.rank, peer.world_size
    of_ranks = n * (n - 1) // 2
    for algorithm in (None, "one-shot", "direct", "ring", "tree"):
        before = peer.last_step
        for size in (0, 1, n - 1, 1000, 300_000):
            ramp = np.arange(size, dtype=np.float32) % 1000
            tensor = ramp + rank
            peer.all_reduce(tensor, algorithm=algorithm, commit=False)
            assert (tensor == ramp * n + of_ranks).all(), (algorithm, size)
            tensor[:] = -1  # nobody reads it any more
            out, whole = np.empty(size, np.int64), np.full(size, rank)
            peer.all_reduce(whole, algorithm=algorithm, op="max", out=out, commit=False)
            assert (out == n - 1).all() and (whole == rank).all(), (algorithm, size)
            out[:] = whole[:] = -1
            around = np.full((size, 2), 1.0)
            around[:, 0] = rank
            peer.all_reduce(around[:, 0], algorithm=algorithm, op="min", commit=False)
            assert (around[:, 0] == 0).all() and (around[:, 1] == 1).all(), (algorithm, size)
            around[:] = -1
        assert peer.last_step == before
        total = np.ones(3, np.int64)
        peer.all_reduce(total, algorithm=algorithm)
        assert (total == n).all() and peer.last_step == before + 1
    before = peer.last_step
    one = np.ones(1)
    peer.all_reduce(one, commit=False)
    with peer.step(samples=3 + rank):
        peer.all_reduce(one)
        try:
            peer.all_reduce(one, commit=False)
        except p2p.ShoalError as error:
            assert "leave `async_op` and `commit` out" in str(error), error
        else:
            raise AssertionError
    assert one == n**2 and [entry.num_samples for entry in peer.receipt.contributions] == [3 + r for r in range(n)]
    peer.all_reduce(one, commit=False)
    peer.all_reduce(one, async_op=True).wait()
    assert one == n**4 and peer.last_step == before + 2
    try:
        peer.all_reduce(one, commit=False, async_op=True)
    except ValueError as error:
        assert "pass one" in str(error), error
    else:
        raise AssertionError
    peer.all_reduce(one, op="max", commit=False)
    peer.barrier()
    print("done", peer.last_step - before)
"""


@pytest.mark.parametrize(("count", "arena_bytes"), some_of([(1, 1 << 30), (2, 1 << 30), (4, 1 << 30), (3, 0)], 1, 3))
def test_results_are_right_before_the_commit_and_tensors_are_free(swarm: Swarm, count: int, arena_bytes: int) -> None:
    peers = swarm.start_all(count, RESULTS.replace("ARENA_BYTES", str(arena_bytes)))
    assert [peer.end() for peer in peers] == [0] * count, "\n".join(peer.report() for peer in peers)
    assert {peer.stdout[-1] for peer in peers} == {"done 3"}
    agreed_receipts(swarm, peers)


LONG = """
import numpy as np
import p2p

with p2p.join() as peer:
    print("here", peer.peer_id)
    peer.wait_view()
    before = peer.last_step
    for turn in range(260):
        one = np.ones(1)
        peer.all_reduce(one, commit=False)
        assert one == 2 and peer.last_step == before + (turn >= 256)
    peer.barrier()
    print("done", peer.last_step - before)
"""


def test_a_step_that_is_full_is_committed(swarm: Swarm) -> None:
    peers = swarm.start_all(2, LONG)
    assert [peer.end() for peer in peers] == [0, 0], "\n".join(peer.report() for peer in peers)
    assert {peer.stdout[-1] for peer in peers} == {"done 2"}
    agreed_receipts(swarm, peers)


INTERRUPTED = """
import sys
import numpy as np
import p2p

def add(**how):
    one = np.ones(5, np.int32)
    peer.all_reduce(one, **how)
    return int(one[0])

def go_on(how):
    if how == "barrier":
        peer.barrier()
    elif how == "step":
        with peer.step():
            add()
    elif how == "asynchronous":
        peer.all_reduce(np.ones(5, np.int32), async_op=True).wait()
    elif how == "committed":
        add()
    else:
        add(commit=False)

with p2p.join(arena_bytes=int(sys.argv[1])) as peer:
    print("here", peer.peer_id)
    peer.wait_view()
    peer.barrier()
    before, rank = peer.last_step, peer.rank
    print("rank", rank)
    sums = [add(commit=False) for _ in range(2)]
    print("sums", *sums)
    if rank != 1:
        sys.stdin.readline()  # 1 goes on, 0 has what it has and computes, 2 is killed
    try:
        go_on(sys.argv[2])
    except p2p.OperationInterrupted as error:
        print("interrupted", peer.last_step - before, error)
    sums = [add(commit=False) for _ in range(3)]
    peer.barrier()
    print("sums", *sums, "step", peer.last_step - before)
"""


@pytest.mark.parametrize(("how", "arena_bytes"), some_of([*product(WAYS, (1 << 30, 0))], 0, 3, 4, 7, 8))
def test_who_waits_and_who_had_returned_are_interrupted_both_and_begin_anew_together(
    swarm: Swarm, arena_bytes: int, how: str
) -> None:
    peers = swarm.start_all(3, INTERRUPTED, str(arena_bytes), how)
    for peer in peers:
        peer.expect("sums 3 3")
    returned, waiting, victim = sorted(peers, key=lambda peer: peer.expect("rank"))
    victim.kill()
    assert victim.end() == -signal.SIGKILL
    line = waiting.expect("interrupted 0")
    assert "view" in line and "call again what was called since step 1" in line
    returned.tell("go")
    assert [peer.end() for peer in (returned, waiting)] == [0, 0], returned.report() + waiting.report()
    for peer in (returned, waiting):
        assert [line.split()[0] for line in peer.stdout[-3:]] == ["sums", "interrupted", "sums"]
        assert peer.stdout[-1] == "sums 2 2 2 step 1"
    agreed_receipts(swarm, [returned, waiting])


STREAM = """
import select, sys
import numpy as np
import p2p

def command():
    ready, _, _ = select.select([sys.stdin], [], [], 0.002)
    return sys.stdin.readline().strip() if ready else ""

with p2p.join(arena_bytes=int(sys.argv[1])) as peer:
    print("here", peer.peer_id)
    peer.wait_view()
    word, is_over = "", False
    while not is_over and word != "leave":
        try:
            sums = []
            for size in (1, 100, 200_000):
                ones = np.ones(size, np.float32)
                peer.all_reduce(ones, commit=False)
                sums.append(int(ones[-1]))
            wish = np.array([word == "stop", 1], np.int64)
            peer.all_reduce(wish)
        except p2p.OperationInterrupted as error:
            print("interrupted", error)
            continue
        assert {*sums, int(wish[1])} == {peer.world_size}, (sums, wish, peer.world_size)
        is_over = wish[0] > 0
        print("step", peer.last_step, peer.rank, peer.world_size)
        print("members", peer.world_size)
        word = word or command()
"""
"""A result that was returned before a commit is of the view that committed it, or was interrupted."""


@ARENAS
def test_whoever_comes_and_goes_a_committed_step_has_the_results_that_were_handed_out(
    swarm: Swarm, arena_bytes: int
) -> None:
    victim, *others = swarm.start_all(4, STREAM, str(arena_bytes))
    victim.expect_step(20)
    victim.kill()
    assert victim.end() == -signal.SIGKILL
    for peer in others:
        peer.expect_line("members 3", after="members 4")
    others[0].tell("leave")
    assert others[0].end() == 0, others[0].report()
    for peer in others[1:]:
        peer.expect_line("members 2", after="members 3")
    joiner = swarm.start(STREAM, str(arena_bytes))
    for peer in others[1:]:
        peer.expect_line("members 3", after="members 2")
    members = [*others[1:], joiner]
    stop(members)
    agreed_receipts(swarm, others[1:])
    files = swarm.receipt_files()
    assert files[name(members[0])].endswith(files[name(joiner)]) and files[name(joiner)]


WITHDRAWN = """
import sys
import numpy as np
import p2p

def add(**how):
    one = np.ones(3)
    peer.all_reduce(one, **how)
    assert (one == 3).all()

with p2p.join(arena_bytes=int(sys.argv[1])) as peer:
    print("here", peer.peer_id)
    peer.wait_view()
    before = peer.last_step
    add(commit=False)
    print("added", peer.rank)
    if peer.rank == 1:
        sys.stdin.readline()  # until all have that sum, or the slow would be interrupted in it
    try:
        with peer.step():
            peer.all_reduce(np.ones(3))
            if peer.rank == 1:
                raise KeyError
    except KeyError:
        print("withdrawn")
        try:
            add(commit=False)
        except p2p.OperationInterrupted:
            print("interrupted")
    except p2p.OperationInterrupted:
        print("interrupted")
    add(commit=False)
    add()
    print("steps", peer.last_step - before)
"""


@ARENAS
def test_who_withdraws_takes_back_what_was_handed_out_and_everybody_hears_of_it(swarm: Swarm, arena_bytes: int) -> None:
    peers = swarm.start_all(3, WITHDRAWN, str(arena_bytes))
    by_rank = {peer.expect("added").split()[1]: peer for peer in peers}
    by_rank["1"].tell("go on")
    assert [peer.end() for peer in peers] == [0, 0, 0], "\n".join(peer.report() for peer in peers)
    printed = sorted(peer.stdout[2:] for peer in peers)
    assert printed == [["interrupted", "steps 1"]] * 2 + [["withdrawn", "interrupted", "steps 1"]]


UNTOUCHED = """
import sys
import numpy as np
import p2p

with p2p.join(arena_bytes=int(sys.argv[1])) as peer:
    print("here", peer.peer_id)
    peer.wait_view()
    peer.barrier()
    print("rank", peer.rank)
    if peer.rank == 2:
        sys.stdin.readline()  # and is killed
    one = np.ones(1)
    peer.all_reduce(one, commit=False)
    peer.barrier()
    print("sum", one[0])
"""


@ARENAS
def test_a_step_of_which_nobody_has_a_result_is_done_over_without_a_word(swarm: Swarm, arena_bytes: int) -> None:
    peers = sorted(swarm.start_all(3, UNTOUCHED, str(arena_bytes)), key=lambda peer: peer.expect("rank"))
    victim = peers.pop()
    victim.kill()
    assert victim.end() == -signal.SIGKILL
    assert [peer.end() for peer in peers] == [0, 0], "\n".join(peer.report() for peer in peers)
    assert [peer.stdout[-1] for peer in peers] == ["sum 2.0", "sum 2.0"]


MISMATCH = """
import sys
import numpy as np
import p2p

with p2p.join(arena_bytes=int(sys.argv[1])) as peer:
    print("here", peer.peer_id)
    peer.wait_view()
    before = peer.last_step
    for turn in range(6):
        is_odd = peer.rank == turn // 3
        one = np.ones(3)
        peer.all_reduce(one, commit=False)
        try:
            if turn % 3 == 0:
                peer.all_reduce(np.ones(4 if is_odd else 5), commit=False)
            elif turn % 3 == 1:
                peer.all_reduce(one, commit=is_odd)
            elif is_odd:
                peer.barrier()
            else:
                peer.all_reduce(one, commit=False)
        except p2p.OperationMismatch as error:
            print("mismatch", error)
    peer.all_reduce(one, commit=False)
    peer.barrier()
    print("steps", peer.last_step - before)
"""


@ARENAS
def test_calls_that_do_not_match_raise_on_both_founders(swarm: Swarm, arena_bytes: int) -> None:
    peers = swarm.start_all(2, MISMATCH, str(arena_bytes))
    assert [peer.end() for peer in peers] == [0, 0], "\n".join(peer.report() for peer in peers)
    for peer in peers:
        errors = [line for line in peer.stdout if line.startswith("mismatch operation 1 of step")]
        assert len(errors) == 6, peer.report()
        for turn, line in enumerate(errors):
            committed = "float64 [3] by size", "barrier"
            sides = ("[4] by size, uncommitted", "[5] by size, uncommitted") if turn % 3 == 0 else (", uncommitted",)
            assert all(side in line for side in sides), line
            assert turn % 3 == 0 or committed[turn % 3 - 1] in line
        assert peer.stdout[-1] == "steps 1"
