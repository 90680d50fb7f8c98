"""Ctrl-C, and handlers of the script that raise, in the middle of calls: what the script may do afterwards."""

import signal

import pytest

from tests.live.swarm import Swarm

OVERWRITTEN = """
import random, signal, sys, threading, time
import numpy as np
import p2p

COUNT, own = 4 << 20, dict(arena_bytes=int(sys.argv[1]), may_differ=["2"])

def add(tensor, result):
    tensor.fill(1)
    peer.all_reduce(tensor, out=result)
    low, high = int(result.min()), int(result.max())
    assert low == high and 1 <= low <= 3, (peer.last_step, low, high)

if sys.argv[2] == "stays":
    with p2p.join(**own) as peer:
        print("here", peer.peer_id)
        peer.wait_view()
        tensor, result = np.empty(COUNT, np.float32), np.empty(COUNT, np.float32)
        is_over = threading.Event()
        threading.Thread(target=lambda: (sys.stdin.readline(), is_over.set()), daemon=True).start()
        while not is_over.is_set():
            try:
                add(tensor, result)
            except p2p.OperationInterrupted:
                continue
        print("right", peer.last_step > 50)
    sys.exit()

draw, me = random.Random(0), threading.main_thread().ident
for turn in range(12):
    with p2p.join(**own) as peer:
        if not turn:
            print("here", peer.peer_id)
        peer.wait_view()
        tensor, result = np.empty(COUNT, np.float32), np.empty(COUNT, np.float32)
        began = time.perf_counter()
        try:
            add(tensor, result)
            tensor.fill(1)
            wait_s = draw.random() * min(0.1, time.perf_counter() - began)
            threading.Timer(wait_s, signal.pthread_kill, (me, signal.SIGINT)).start()
            while True:
                peer.all_reduce(tensor, out=result)
        except KeyboardInterrupt:
            tensor.fill(1000)  # it is the script's again
            print("interrupted", flush=True)
"""


@pytest.mark.parametrize("arena_bytes", [1 << 30, pytest.param(0, marks=pytest.mark.long)], ids=["memory", "sockets"])
def test_what_an_interrupted_operation_has_submitted_may_be_overwritten(swarm: Swarm, arena_bytes: int) -> None:
    """No peer reads it any more: the others sum without it."""
    stay = [swarm.start(OVERWRITTEN, str(arena_bytes), "stays", min_peers=2) for _ in range(2)]
    for peer in stay:
        peer.expect("here")
    comes = swarm.start(OVERWRITTEN, str(arena_bytes), "comes", min_peers=2)
    assert comes.end() == 0, comes.report()
    assert comes.stdout.count("interrupted") == 12
    for peer in stay:
        peer.tell("stop")
    assert [peer.end() for peer in stay] == [0, 0], "\n".join(peer.report() for peer in stay)
    assert {peer.stdout[-1] for peer in stay} == {"right True"}


SIGNAL_AT = """
import signal, sys
import numpy as np
import p2p

p2p.join  # imported now, since an import may be interrupted, too

def signal_at(name, file, number=signal.SIGINT):  # once a function of this name is called, in such a file
    def look(frame, event, arg):
        if event == "call" and frame.f_code.co_name == name and frame.f_code.co_filename.endswith(file):
            sys.setprofile(None)
            signal.raise_signal(number)
    sys.setprofile(look)
"""

AT_A_PLACE = f"""{SIGNAL_AT}
def at(name, file, run):
    signal_at(name, file)
    try:
        run()
    except KeyboardInterrupt:
        return
    finally:
        sys.setprofile(None)
    raise AssertionError(name + " was not called")

def add():
    one = np.full(5, turn, np.int32)
    peer.all_reduce(one)
    return int(one[0])

def block():
    with peer.step(samples=1):
        peer.all_reduce(np.full(5, turn, np.int32))

WAYS = {{
    "results": ("deliver_result", "operation_call.py", add),
    "submission": ("_submission", "session.py", add),
    "end": ("end", "attempt.py", add),
    "block": ("add", "attempt.py", block),
    "closing": ("_closing", "session.py", block),
}}

with p2p.join(may_differ=["1"]) as peer:
    print("here", peer.peer_id)
    peer.wait_view()
    way = WAYS.get(sys.argv[1])
    for turn in range(20):
        if turn == 10 and way:
            at(*way)
            try:
                print("again", add())
            except p2p.ShoalError as error:
                print("refused", error)
            break
        try:
            one = np.full(5, turn, np.int32)
            peer.all_reduce(one)
        except p2p.OperationInterrupted:
            peer.all_reduce(one)
        assert one[0] == turn * peer.world_size, (turn, one, peer.world_size)
    print("done", peer.world_size)
"""


@pytest.mark.light
@pytest.mark.parametrize("way", ["results", "submission", "end", "block", "closing"])
def test_who_was_interrupted_in_the_middle_of_a_call_leaves_the_others_to_their_steps(swarm: Swarm, way: str) -> None:
    """The peer cannot know whether its step counts, so it could silently be one call ahead or behind."""
    others = [swarm.start(AT_A_PLACE, "", min_peers=3) for _ in range(2)]
    peer = swarm.start(AT_A_PLACE, way, min_peers=3)
    assert peer.end() == 0, peer.report()
    peer.expect("refused the previous step was interrupted, so this peer leaves, and the others finish it: join again")
    assert [each.end() for each in others] == [0, 0], "\n".join(each.report() for each in others)
    assert {each.stdout[-1] for each in others} == {"done 2"}


IN_JOIN = f"""{SIGNAL_AT}
PLACES = ("open_socket", "links.py"), ("enter", "registry.py"), ("__init__", "core.py"), ("start", "reactor.py")
for name, file in PLACES:
    signal_at(name, file)
    try:
        p2p.join()
        print("not interrupted", name)
    except KeyboardInterrupt:
        print("interrupted", name)
    with p2p.join() as peer:
        peer.wait_view(timeout_s=5)
        print("joined", peer.world_size)
"""


@pytest.mark.light
def test_who_is_interrupted_as_it_joins_leaves_nothing_and_can_join_again(swarm: Swarm) -> None:
    peer = swarm.start(IN_JOIN)
    assert peer.end() == 0, peer.report()
    names = "open_socket", "enter", "__init__", "start"
    assert peer.stdout == [line for name in names for line in (f"interrupted {name}", "joined 1")], peer.report()


LEAVES_IN_HANDLER = f"""{SIGNAL_AT}
peer = p2p.join(may_differ=["2", "3"])
print("here", peer.peer_id)
peer.wait_view()
peer.all_reduce(np.ones(3))

def leave(*_):
    peer.leave()  # which the loop, whose thread this one is now, goes on with behind it
    print("waited for itself" if peer._session.membership.leaving.name == 'OVER' else "left", flush=True)
    if sys.argv[1] == "exits":
        sys.exit(0)

signal.signal(signal.SIGTERM, leave)
if sys.argv[2]:
    signal_at(*sys.argv[2:], signal.SIGTERM)
else:
    sys.stdin.readline()
try:
    one = np.ones(3)
    peer.all_reduce(one)
    print("added", one[0])
except p2p.ShoalError as error:
    print("ended", error)
"""


@pytest.mark.light
@pytest.mark.parametrize("then", ["exits", "goes on"])
@pytest.mark.parametrize(
    ("place", "how"), [(("poll", "loop.py"), "left"), (("call", "reactor.py"), "waited for itself")]
)
def test_a_peer_leaves_in_a_handler_while_an_operation_waits_or_is_about_to(
    swarm: Swarm, place: tuple[str, str], how: str, then: str
) -> None:
    other = swarm.start(LEAVES_IN_HANDLER, then, "", "", min_peers=2)
    peer = swarm.start(LEAVES_IN_HANDLER, then, *place, min_peers=2)
    assert peer.end() == 0, peer.report()
    other.tell("go on")
    assert other.end() == 0, other.report()
    ended = "ended this peer has left its swarm: call `p2p.join` to join as another peer"
    assert peer.stdout[1:] == [how] + [ended] * (then == "goes on"), peer.report()
    assert other.stdout[1:] == ["added 1.0"], other.report()


AS_IT_LEAVES = f"""{SIGNAL_AT}
peer = p2p.join()
print("here", peer.peer_id)
peer.wait_view()
signal_at("stop", "reactor.py", int(sys.argv[1]))
try:
    peer.leave()
    print("nothing was raised")
except (KeyboardInterrupt, SystemExit) as interruption:
    print("raised", repr(interruption))
try:
    peer.barrier()
except p2p.ShoalError as error:
    print("has left:", error)
"""


@pytest.mark.light
@pytest.mark.parametrize(
    ("number", "raised"), [(signal.SIGINT, "KeyboardInterrupt()"), (signal.SIGTERM, "SystemExit(143)")]
)
def test_a_signal_that_comes_as_a_peer_leaves_is_raised_when_it_has_left(
    swarm: Swarm, number: signal.Signals, raised: str
) -> None:
    peer = swarm.start(AS_IT_LEAVES, str(int(number)))
    assert peer.end() == 0, peer.report()
    left = "has left: this peer has left its swarm: call `p2p.join` to join as another peer"
    assert peer.stdout[1:] == [f"raised {raised}", left], peer.report()
