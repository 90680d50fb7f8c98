"""Joiners that observe while the others continue, with the replicas of some or all peers on a device."""

import signal

import pytest

from p2p.telemetry.records import Kind
from tests.devices import need
from tests.live.swarm import Swarm, name
from tests.live.test_observers import TRAIN, check_receipts, join, seen_by, start_all, stop

pytestmark = [pytest.mark.torch, pytest.mark.long]

PLACES = [("host", "device"), ("device", "host"), ("device", "device")]
"""Places of the members, and of the joiner."""
ON_GPU = pytest.param("gpu", "gpu", marks=pytest.mark.gpu)
NUM_FED = 20


@pytest.mark.parametrize(("members", "joiner"), [*PLACES, ON_GPU])
def test_who_observes_is_fed_results_until_it_has_caught_up(swarm: Swarm, members: str, joiner: str) -> None:
    """The observer begins with the state of a step that is long over."""
    need("cuda:0" if "gpu" in (members, joiner) else "cpu")
    peers = start_all(swarm, 2, 1000, where=members)
    peers[0].expect_step(5)
    observer = swarm.start(TRAIN, "1000", joiner, "joins", "held")
    observer.expect("holds")
    last = int(next(line for line in reversed(peers[0].stdout) if line.startswith("step ")).split()[1])
    peers[0].expect_step(last + NUM_FED)
    observer.tell("go on")
    seen_by(observer, 3)
    stop([*peers, observer])
    check_receipts(swarm, [*peers, observer])
    began, loaded = (swarm.records(observer, kind)[0] for kind in (Kind.STATE, Kind.LOADED))
    times = [record.time_ns for record in swarm.records(peers[0], Kind.COMMITTED)]
    assert sum(began.time_ns <= time_ns <= loaded.time_ns for time_ns in times) >= NUM_FED - 1


@pytest.mark.parametrize(("members", "joiner"), [*PLACES, ON_GPU])
def test_another_member_feeds_who_observes_where_the_first_one_dies(swarm: Swarm, members: str, joiner: str) -> None:
    need("cuda:0" if "gpu" in (members, joiner) else "cpu")
    peers = start_all(swarm, 3, 1 << 20, "waits", where=members)
    observer = join(swarm, peers[0], 1 << 20, joiner)
    observer.expect("from")
    feeder = observer.expect("the state after step").split()[-1]
    victim = next(peer for peer in peers if name(peer) == feeder)
    victim.kill()
    assert victim.end() == -signal.SIGKILL
    peers.remove(victim)
    seen_by(observer, 3)
    stop([*peers, observer])
    check_receipts(swarm, [*peers, observer, victim])


@pytest.mark.parametrize("where", ["device", pytest.param("gpu", marks=pytest.mark.gpu)])
def test_a_stopped_peer_with_a_device_comes_back_and_observes_first(swarm: Swarm, where: str) -> None:
    need("cuda:0" if where == "gpu" else "cpu")
    stopped, *peers = everybody = start_all(swarm, 3, 1000, "stops", where=where)
    for peer in peers:
        peer.expect("view of 2")
    stopped.send_signal(signal.SIGCONT)
    back = stopped.expect_line(r"the others have continued without this peer: view \d+ .*; this peer, .*, comes back")
    stopped.expect_line(r"step \d+ 2 3", after=back)
    stop([*peers, stopped])
    check_receipts(swarm, everybody)
