"""Peers as processes, with sockets and without torch: they meet, sum, and continue after a failure of one."""

import os
import re
import signal
import subprocess
import sys

import pytest

from bench.recorded import read_records
from collectives import ALGORITHMS
from p2p.step.receipts import Receipt, read_receipts
from p2p.telemetry.page import page_path
from p2p.telemetry.records import Kind, Record
from p2p.telemetry.trace import trace_path
from tests.cases import some_of
from tests.live.swarm import STREAM, Process, Swarm, name, stop


def agreed_receipts(swarm: Swarm, peers: list[Process]) -> list[Receipt]:
    """The receipts of peers that took part in all steps; checks that they are the same bytes, without gaps."""
    files = swarm.receipt_files()
    assert len({files[name(peer)] for peer in peers}) == 1
    receipts = read_receipts(swarm.receipts / f"{name(peers[0])}.receipts.jsonl")
    assert [receipt.step for receipt in receipts] == list(range(len(receipts)))
    return receipts


def members_over_time(receipts: list[Receipt]) -> list[list[str]]:
    """The successive member lists."""
    lists = [[entry.peer_id for entry in receipt.contributions] for receipt in receipts]
    return [each for before, each in zip([[], *lists[:-1]], lists, strict=True) if each != before]


def last_step(records: list[Record]) -> int:
    return max(record.step for record in records if record.kind == Kind.COMMITTED)


# Operations

SUMS = """
import sys
import numpy as np
import p2p

def check(tensor, expected):
    assert (tensor == expected).all(), (tensor, expected)
    print("sum", tensor.tobytes().hex())

with p2p.join() as peer:
    print("here", peer.peer_id)
    peer.wait_view()
    rank, n = peer.rank, peer.world_size
    of_ranks = n * (n - 1) // 2
    for algorithm in [None, *sys.argv[1:]]:
        for dtype in (np.float32, np.int64):
            for size in (0, 1, n - 1, 1000, 500_000):
                ramp = np.arange(size, dtype=dtype)
                tensor = ramp % 1000 + rank
                peer.all_reduce(tensor, algorithm=algorithm)
                assert (tensor == ramp % 1000 * n + of_ranks).all(), (algorithm, dtype, size)
        noise = np.random.default_rng(rank).standard_normal(5000).astype(np.float32)
        parts = [np.random.default_rng(r).standard_normal(5000).astype(np.float32) for r in range(n)]
        peer.all_reduce(noise, algorithm=algorithm)
        assert np.allclose(noise, sum(parts), atol=1e-5)
        print("sum", algorithm, noise.tobytes()[:2000].hex())

    scalar = np.array(rank, np.int64)
    peer.all_reduce(scalar)
    assert scalar.shape == () and scalar == of_ranks

    around = np.full((6, 8), -1, np.float32)
    strided = around[::2, 1:5].T
    strided[...] = np.arange(12).reshape(4, 3) + rank
    peer.all_reduce(strided)
    assert (strided == np.arange(12).reshape(4, 3) * n + of_ranks).all()
    for step in (2, -1):
        line = np.arange(12.0)
        peer.all_reduce(line[::step])
        assert (line[::step] == n * np.arange(12.0)[::step]).all() and (step < 0 or (line[1::2] % 2 == 1).all())
    assert (around[1::2] == -1).all() and (around[:, 5:] == -1).all() and (around[:, 0] == -1).all()

    ones = np.ones(3, np.float32)
    for call, kind, text in (
        (lambda: peer.all_reduce(ones.astype(np.complex64)), TypeError, "complex64"),
        (lambda: peer.all_reduce(ones.astype(np.int64), op="mean"), TypeError, "mean of int64"),
        (lambda: peer.all_reduce(1.0), TypeError, "got float"),
        (lambda: peer.all_reduce(ones, op="median"), ValueError, "sum, mean, min, max, is 'median'"),
        (lambda: peer.all_reduce(ones, algorithm="circle"), ValueError, "ring, tree, is 'circle'"),
    ):
        try:
            call()
        except kind as error:
            assert text in str(error), error
        else:
            raise AssertionError(text)
    peer.barrier()
    print("done", peer.last_step)
"""


@pytest.mark.parametrize("count", some_of([1, 2, 4], 0, 2))
def test_every_algorithm_and_type_gives_all_peers_the_same_right_sum(swarm: Swarm, count: int) -> None:
    peers = swarm.start_all(count, SUMS, *ALGORITHMS)
    assert [peer.end() for peer in peers] == [0] * count, "\n".join(peer.report() for peer in peers)
    assert len({tuple(line for line in peer.stdout if line.startswith("sum")) for peer in peers}) == 1
    receipts = agreed_receipts(swarm, peers)
    assert [len(receipt.contributions) for receipt in receipts] == [count] * len(receipts)
    assert {ran for receipt in receipts for ran in receipt.algorithms} == {*ALGORITHMS}


@pytest.mark.light
def test_importing_p2p_imports_no_torch() -> None:
    subprocess.run([sys.executable, "-c", "import sys, p2p; assert 'torch' not in sys.modules"], check=True)


BARRIERS = """
import sys
import p2p

with p2p.join() as peer:
    print("here", peer.peer_id)
    peer.wait_view()
    if peer.rank == 0:
        print("waits")
        sys.stdin.readline()
    peer.barrier()
    print("passed")
"""


def test_nobody_passes_a_barrier_before_the_last_has_come(swarm: Swarm) -> None:
    late, *others = swarm.start_all(3, BARRIERS)
    late.expect("waits")
    late.tell("go")
    assert [peer.end() for peer in (late, *others)] == [0, 0, 0]
    assert len(agreed_receipts(swarm, [late, *others])) == 2


# Joins and leaves


@pytest.mark.parametrize("victim", [0, 2], ids=["rank-0", "rank-2"])
def test_survivors_of_a_kill_lose_no_step(swarm: Swarm, victim: int) -> None:
    peers = swarm.start_all(4, STREAM)
    killed = peers.pop(victim)
    killed.expect_step(20)
    killed.kill()
    assert killed.end() == -signal.SIGKILL
    for peer in peers:
        peer.expect("view of 3")
    stop(peers)
    receipts = agreed_receipts(swarm, peers)
    names = [name(peer) for peer in peers]
    assert [sorted(members) for members in members_over_time(receipts)] == [
        sorted([*names, name(killed)]),
        sorted(names),
    ]
    files = swarm.receipt_files()
    assert files[names[0]].startswith(files[name(killed)])


def test_a_joiner_takes_part_in_a_stream_that_runs(swarm: Swarm) -> None:
    peers = swarm.start_all(2, STREAM)
    peers[1].expect_step(10)
    joiner = swarm.start(STREAM)
    joiner.expect("step")
    stop([*peers, joiner])
    receipts = agreed_receipts(swarm, peers)
    assert members_over_time(receipts) == [[name(peer) for peer in peers], [name(peer) for peer in (*peers, joiner)]]
    files = swarm.receipt_files()
    assert files[name(peers[0])].endswith(files[name(joiner)]) and files[name(joiner)]


def test_joiners_and_kills_at_the_same_time_lose_no_step(swarm: Swarm) -> None:
    peers = swarm.start_all(3, STREAM)
    victim = peers.pop(1)
    victim.expect_step(10)
    joiners = [swarm.start(STREAM), swarm.start(STREAM)]
    joiners[0].expect("here")
    victim.kill()
    victim.end()
    for joiner in joiners:
        joiner.expect("step")
    stop([*peers, *joiners])
    agreed_receipts(swarm, peers)
    files = swarm.receipt_files()
    complete = files[name(peers[0])]
    assert all(complete.endswith(files[name(joiner)]) for joiner in joiners)
    assert complete.startswith(files[name(victim)])


def test_peers_leave_receipts_and_traces_and_who_is_killed_its_page(swarm: Swarm) -> None:
    peers = swarm.start_all(3, STREAM)
    peers[0].expect_step(20)
    peers[2].kill()
    peers[2].end()
    peers[0].expect_line(r"step \d+ 0 2")
    names = [name(peer) for peer in peers]
    records = read_records(trace_path(swarm.receipts, names[2]), page_path(swarm.home / "default", names[2]))
    last = read_receipts(swarm.receipts / f"{names[2]}.receipts.jsonl")[-1].step
    assert last_step(records) in (last, last + 1)  # a receipt is written after its record
    stop(peers[:2])
    steps = {receipt.step for receipt in agreed_receipts(swarm, peers[:2])}
    for peer in peers[:2]:
        commits = [record.step for record in swarm.records(peer, Kind.COMMITTED)]
        assert set(commits) == steps and len(commits) == len(steps)
        assert swarm.records(peer, Kind.SUBMITTED) and swarm.records(peer, Kind.LEFT)
    files = sorted(path.relative_to(swarm.receipts).as_posix() for path in swarm.receipts.rglob("*.*"))
    assert files == sorted(each for one in names for each in (f"{one}.receipts.jsonl", f"traces/{one}.trace"))


def test_a_peer_leaves_in_the_middle_and_the_others_go_on(swarm: Swarm) -> None:
    leaver, *others = peers = swarm.start_all(3, STREAM)
    leaver.expect_step(10)
    leaver.tell("leave")
    assert leaver.end() == 0, leaver.report()
    for peer in others:
        peer.expect("view of 2")
    stop(others)
    members = members_over_time(agreed_receipts(swarm, others))
    assert [sorted(each) for each in members] == [sorted(map(name, peers)), sorted(map(name, others))]
    files = swarm.receipt_files()
    assert files[name(others[0])].startswith(files[name(leaver)])


def test_a_terminated_peer_leaves(swarm: Swarm) -> None:
    leaver, *others = swarm.start_all(3, STREAM)
    leaver.expect_step(10)
    leaver.send_signal(signal.SIGTERM)
    assert leaver.end() == 128 + signal.SIGTERM, leaver.report()
    for peer in others:
        peer.expect("view of 2")
    stop(others)


ENDLESS = """
import os
import numpy as np
import p2p

with p2p.join() as peer:
    print("here", peer.peer_id, os.getpid())
    while True:
        peer.all_reduce(np.ones(100_000, np.float32))
        if peer.last_step == 20:
            print("step", peer.last_step)
"""


@pytest.mark.light
@pytest.mark.parametrize("number", some_of([signal.SIGINT, signal.SIGTERM], 0), ids=["INT", "TERM"])
def test_an_interrupted_run_leaves_no_process_and_no_socket(swarm: Swarm, number: signal.Signals) -> None:
    run = swarm.launch(3, ENDLESS)
    for index in range(3):
        run.expect(f"[{index}] step 20")
    pids = [int(line.split()[-1]) for line in run.stdout if "here" in line]
    run.send_signal(number)
    assert run.end() == (0 if number == signal.SIGTERM else 130)
    assert len(pids) == 3 and not any(is_running(pid) for pid in pids)
    assert not [line for line in run.stderr if "Traceback" in line or "killing" in line], run.report()


def is_running(pid: int) -> bool:
    try:
        signal.pidfd_send_signal(os.pidfd_open(pid), signal.Signals(0))
    except ProcessLookupError:
        return False
    return True


def test_who_is_left_goes_on_with_the_records_of_the_dead(swarm: Swarm) -> None:
    *victims, last = swarm.start_all(4, STREAM)
    last.expect_step(5)
    for victim in victims:
        victim.kill()
    for victim in victims:
        victim.end()
    last.expect("view of 1")
    stop([last])
    receipts = agreed_receipts(swarm, [last])
    assert members_over_time(receipts)[-1] == [name(last)]


@pytest.mark.light
def test_a_stopped_peer_holds_nobody_up_and_learns_that_it_was_removed(swarm: Swarm) -> None:
    stopped, *peers = swarm.start_all(3, STREAM)
    stopped.expect_step(5)
    stopped.send_signal(signal.SIGSTOP)
    for peer in peers:
        peer.expect("view of 2")
    stopped.send_signal(signal.SIGCONT)
    assert stopped.end() == 3, stopped.report()
    assert re.search(r"have continued without this peer.*start this peer again", stopped.stderr[-1]), stopped.report()
    stop(peers)
    complete = swarm.receipt_files()[name(peers[0])]
    agreed_receipts(swarm, peers)
    assert complete.startswith(swarm.receipt_files()[name(stopped)])


@pytest.mark.light
def test_a_minority_is_told_and_does_not_hang(swarm: Swarm) -> None:
    swarm.policy = "majority"
    first, second = swarm.start_all(2, STREAM)
    second.expect_step(5)
    first.kill()
    first.end()
    assert second.end() == 1
    assert re.fullmatch(r"shoal: 1 of 2 members of view 2 are here, no majority.*state is kept.*", second.stderr[-1]), (
        second.report()
    )
    files = swarm.receipt_files()
    assert files[name(second)].startswith(files[name(first)]) or files[name(first)].startswith(files[name(second)])


WAIT_BRIEFLY = """
import p2p

with p2p.join() as peer:
    print("here", peer.peer_id)
    try:
        peer.wait_view(timeout_s=0.2)
    except p2p.JoinTimeout as error:
        assert error.is_recoverable and not isinstance(error, p2p.StepTimeout)
        print("timeout", error)
    peer.wait_view()
    peer.barrier()
    print("members", peer.world_size)
"""


@pytest.mark.light
def test_who_waits_for_too_few_peers_hears_who_is_here_and_may_go_on_waiting(swarm: Swarm) -> None:
    alone = swarm.start(WAIT_BRIEFLY, min_peers=2)
    told = alone.expect("timeout")
    assert re.fullmatch(rf"timeout no start after 0.2 s: 1 of 2 peers are here \({name(alone)}\).*", told)
    other = swarm.start(WAIT_BRIEFLY, min_peers=2)
    for peer in (alone, other):
        assert peer.end() == 0, peer.report()
        assert peer.stdout[-1] == "members 2"


WATCH_VIEWS = """
import threading
import numpy as np
import p2p

with p2p.join() as peer:
    print("here", peer.peer_id)

    def changed(view):
        assert threading.current_thread() is threading.main_thread()
        assert view is peer.view and peer.receipt.step == peer.last_step
        print("change", inside, len(view.members), peer.last_step)

    peer.on_view_change(changed)
    inside = False
    while peer.view is None or peer.world_size == 1:
        inside = True
        peer.all_reduce(np.ones(10, np.float32))
        inside = False
    print("world", peer.world_size, peer.last_step)
    peer.barrier()
"""


def test_listeners_hear_of_a_view_in_the_training_thread_at_a_commit(swarm: Swarm) -> None:
    first = swarm.start(WATCH_VIEWS)
    first.expect("here")
    second = swarm.start(WATCH_VIEWS)
    assert [first.end(), second.end()] == [0, 0], first.report() + second.report()
    step = first.expect("world").split()[2]
    assert [line for line in first.stdout if line.startswith("change")] == [f"change True 2 {step}"]
    assert not [line for line in second.stdout if line.startswith("change")]


AFTER = """
import signal
import p2p

for turn in range(2):
    with p2p.join() as peer:
        peer.barrier()
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_a_script_can_be_interrupted_after_its_peers_have_left(swarm: Swarm) -> None:
    peer = swarm.start(AFTER)
    assert peer.end() == 0 and peer.stdout[-1:] == ["interrupted"], peer.report()
