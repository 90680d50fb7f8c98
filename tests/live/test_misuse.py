"""Forbidden calls, from two threads at once or forked children, and a full disk: one clear message."""

import re
import signal

import pytest

from tests.live.swarm import Swarm, name

TWO_THREADS = """
import sys, threading
import numpy as np
import p2p

def call():
    total = np.ones(3)
    try:
        peer.all_reduce(total)
        print("sum", total.tolist(), peer.last_step)
    except p2p.ShoalError as error:
        print("refused", error)

with p2p.join() as peer:
    print("here", peer.peer_id)
    peer.wait_view()
    if peer.rank:
        sys.stdin.readline()
        call()
    else:
        threads = [threading.Thread(target=call, name=name) for name in ("first", "second")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    call()
"""


def test_of_two_threads_that_call_at_once_one_raises_and_the_other_gets_its_sum(swarm: Swarm) -> None:
    both, waited_for = swarm.start_all(2, TWO_THREADS)
    refusal = both.expect("refused")
    assert re.match(
        r"refused peer\.all_reduce was called in thread '(first|second)', and peer\.all_reduce in thread "
        r"'(?!\1)(first|second)', which is still running",
        refusal,
    )
    waited_for.tell("go on")
    assert [both.end(), waited_for.end()] == [0, 0], both.report() + waited_for.report()
    sums = ["sum [2.0, 2.0, 2.0] 1", "sum [2.0, 2.0, 2.0] 2"]
    assert both.stdout[1:] == [refusal, *sums] and waited_for.stdout[1:] == sums
    assert not both.stderr and not waited_for.stderr


STEP_OF_ANOTHER = """
import threading
import numpy as np
import p2p

def calls():
    for call in (lambda: peer.all_reduce(np.ones(3)), peer.barrier, peer.wait_view, peer.step().__enter__):
        try:
            call()
        except p2p.ShoalError as error:
            print("refused", error)

def in_thread(target):
    thread = threading.Thread(target=target, name="other")
    thread.start()
    thread.join()

with p2p.join() as peer:
    print("here", peer.peer_id)
    total = np.ones(3)
    with peer.step(samples=1):
        in_thread(calls)
        peer.all_reduce(total)
    print("sum", total.tolist())
    handle = peer.all_reduce(total, async_op=True)
    in_thread(calls)
    handle.wait()
    in_thread(lambda: peer.all_reduce(total))
    print("end", peer.last_step, peer.world_size)
"""


def test_a_call_while_another_thread_has_a_step_open_raises_and_the_step_is_as_it_was(swarm: Swarm) -> None:
    peer = swarm.start(STEP_OF_ANOTHER)
    assert peer.end() == 0, peer.report()
    refusals = [line for line in peer.stdout if line.startswith("refused")]
    for opener, some in (("peer.step", refusals[:4]), ("peer.all_reduce", refusals[4:])):
        assert [line.split()[1] for line in some] == ["peer.all_reduce", "peer.barrier", "peer.wait_view", "peer.step"]
        assert all(f"in thread 'other', and {opener} in thread 'MainThread', which has a step" in line for line in some)
    assert [line for line in peer.stdout[1:] if line not in refusals] == ["sum [1.0, 1.0, 1.0]", "end 3 1"]


LEAVE_ASIDE = """
import sys, threading
import numpy as np
import p2p

def train():
    try:
        while True:
            peer.all_reduce(np.ones(3))
            print("step", peer.last_step)
            if peer.rank and peer.last_step == 20:
                sys.stdin.readline()
    except p2p.ShoalError as error:
        print("told", error)

with p2p.join() as peer:
    print("here", peer.peer_id)
    peer.wait_view()
    thread = threading.Thread(target=train)
    thread.start()
    if peer.rank:
        thread.join()
    else:
        sys.stdin.readline()
thread.join()
print("left")
"""


@pytest.mark.parametrize("word", [None, signal.SIGTERM], ids=["leave", "SIGTERM"])
def test_who_leaves_ends_what_another_thread_has_called(swarm: Swarm, word: signal.Signals | None) -> None:
    """The request to leave comes from the script, or from a signal, which does not interrupt the training thread."""
    leaver, other = swarm.start_all(2, LEAVE_ASIDE)
    leaver.expect_step(20)
    if word is None:
        leaver.tell("leave")
    else:
        leaver.send_signal(word)
    leaver.expect("told this peer has left its swarm")
    assert leaver.end() == (0 if word is None else 128 + word), leaver.report()
    other.tell("go on")
    other.expect_step(40)
    other.send_signal(signal.SIGTERM)
    assert other.end() == 128 + signal.SIGTERM, other.report()


JOINS_TWICE = """
import os, threading
import p2p

def join(**how):
    try:
        p2p.join(**how).leave()
        print("joined")
    except p2p.ShoalError as error:
        print(error)

peer = p2p.join()
print("here", peer.peer_id)
peer.wait_view()
join()
join(swarm="pond")
thread = threading.Thread(target=join)
thread.start()
thread.join()
if not (child := os.fork()):
    join()
    os._exit(0)
os.waitpid(child, 0)
peer.leave()
join()
"""


@pytest.mark.light
def test_who_is_a_peer_is_no_other_one_of_that_swarm_in_the_same_thread(swarm: Swarm) -> None:
    peer = swarm.start(JOINS_TWICE)
    assert peer.end() == 0, peer.report()
    assert peer.stdout[1:] == [
        f"this process is peer {name(peer)} of swarm default already: use that one, or let it leave before the next "
        "p2p.join",
        *["joined"] * 4,
    ]


FORKS = """
import os, sys
import numpy as np
import p2p

total = np.ones(3)
with p2p.join() as peer:
    print("here", peer.peer_id)
    handle = peer.all_reduce(np.ones(2), async_op=True)
    child = os.fork()
    if not child:
        calls = (
            lambda: peer.all_reduce(total), peer.barrier, peer.wait_view, peer.step().__enter__, handle.wait,
            peer.leave, peer.status, lambda: peer.empty(3), lambda: peer.on_view_change(print),
            lambda: peer.on_log(print),
        )
        for call in calls:
            try:
                call()
            except p2p.ShoalError as error:
                print("refused", error)
        sys.exit(7)  # out of the block, and past what the peer has registered for the end
    print("ended", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    handle.wait()
    peer.all_reduce(total)
    print("end", peer.last_step, total.tolist(), child, os.getpid())
"""


def test_every_call_in_a_forked_child_raises_and_its_end_changes_nothing(swarm: Swarm) -> None:
    peers = swarm.start_all(2, FORKS)
    assert [peer.end() for peer in peers] == [0, 0], peers[0].report() + peers[1].report()
    for peer in peers:
        *refusals, ended, end = peer.stdout[1:]
        child, parent = end.split()[-2:]
        said = f"was called in process {child}, a forked child of process {parent}, which is the peer"
        assert ended == "ended 7" and end.startswith("end 2 [2.0, 2.0, 2.0]"), peer.report()
        assert len(refusals) == 10 and all(said in line for line in refusals), peer.report()
        assert not peer.stderr


SIGNALLED = """
import os, signal, sys
import p2p

def run(number, handler):
    heard, said = os.pipe()
    if handler is not None:
        before = signal.getsignal(number)
        signal.signal(number, lambda *arguments: before(*arguments))
    child = os.fork()
    if not child:
        try:
            os.write(said, b".")
            while True:
                pass
        except KeyboardInterrupt:
            os._exit(9)
    os.read(heard, 1)
    os.kill(child, number)
    print(signal.Signals(number).name, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

with p2p.join() as peer:
    print("here", peer.peer_id)
    peer.wait_view()
    for handler in (None, "own"):
        for number in (signal.SIGINT, signal.SIGTERM) + ((signal.SIGUSR1,) if handler is None else ()):
            run(number, handler)
    peer.barrier()
    print("end", peer.last_step)
"""


def test_signals_end_a_forked_child_as_if_there_was_no_shoal(swarm: Swarm) -> None:
    """Also if a handler of the script passes signals on to the handlers of `p2p.join`."""
    peer = swarm.start(SIGNALLED)
    assert peer.end() == 0, peer.report()
    ends = ["SIGINT 9", "SIGTERM -15"]
    assert peer.stdout[1:] == [*ends, "SIGUSR1 -10", *ends, "end 1"] and not peer.stderr, peer.report()


FULL = """
import os, sys
import numpy as np
import p2p

def fill_disk():
    full = os.open("/dev/full", os.O_WRONLY)
    for fd in map(int, os.listdir("/proc/self/fd")):
        if os.path.exists(f"/proc/self/fd/{fd}") and os.readlink(f"/proc/self/fd/{fd}").endswith(".receipts.jsonl"):
            os.dup2(full, fd)

with p2p.join(receipts_full=os.environ.get("POLICY")) as peer:
    print("here", peer.peer_id)
    peer.wait_view()
    for turn in range(int(sys.argv[1])):
        if turn == 10 and peer.rank:
            fill_disk()
        peer.all_reduce(np.ones(3))
    print("end", peer.last_step, peer.world_size)
"""


IMPORTED_ANEW = """
import multiprocessing
import p2p

with p2p.join() as peer:
    peer.wait_view()
    worker = multiprocessing.get_context("spawn").Process(target=print)
    worker.start()
    worker.join()
    print("worker", worker.exitcode, peer.world_size)
"""


def test_a_worker_that_imports_the_script_anew_is_no_other_peer(swarm: Swarm) -> None:
    peer = swarm.start(IMPORTED_ANEW)
    assert peer.end() == 0 and peer.expect("worker") == "worker 1 1"
    assert any("put the training under `if __name__ == '__main__':`" in line for line in peer.stderr), peer.report()


def test_who_has_no_room_for_receipts_says_so_once_and_goes_on_without(swarm: Swarm) -> None:
    peers = swarm.start_all(2, FULL, "100")
    assert [peer.end() for peer in peers] == [0, 0], peers[0].report() + peers[1].report()
    assert [peer.stdout[1:] for peer in peers] == [["end 100 2"]] * 2 and not peers[0].stderr
    (line,) = peers[1].stderr
    assert "receipts cannot be written to" in line and "continues without receipts" in line
    whole, part = (swarm.receipt_files()[name(peer)] for peer in peers)
    assert whole.startswith(part) and (whole.count(b"\n"), part.count(b"\n")) == (101, 11)


def test_who_has_no_room_for_receipts_ends_if_it_is_told_to_and_the_others_go_on(swarm: Swarm) -> None:
    swarm.environ["POLICY"] = "stop"
    goes_on, ends = swarm.start_all(2, FULL, "100")
    assert [goes_on.end(), ends.end()] == [0, 1], goes_on.report() + ends.report()
    assert goes_on.stdout[1:] == ["end 100 1"] and not goes_on.stderr and len(ends.stdout) == 1
    (line,) = ends.stderr
    assert re.fullmatch(
        r"shoal: receipts cannot be written to \S+: .*No space left on device; this peer leaves, since .*", line
    )
    whole, part = (swarm.receipt_files()[name(peer)] for peer in (goes_on, ends))
    assert whole.startswith(part) and (whole.count(b"\n"), part.count(b"\n")) == (101, 11)


def test_who_has_no_room_for_the_last_receipt_says_so(swarm: Swarm) -> None:
    """No further call could raise the error."""
    swarm.environ["POLICY"] = "stop"
    peers = swarm.start_all(2, FULL, "11")
    assert [peer.end() for peer in peers] == [0, 0], peers[0].report() + peers[1].report()
    (line,) = peers[1].stderr
    assert "receipts cannot be written to" in line and "since receipts_full is `stop`" in line
