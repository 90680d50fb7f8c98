"""Resources that an experiment keeps of the processes that it has started."""

import os
import signal
from pathlib import Path
from typing import Any

from p2p.experiment.run.swarm import PeerProcess, Swarm, TrackedPeer
from p2p.experiment.run.testbed import LocalTestbed, execute
from p2p.host.processes import process_start, read_offsets
from p2p.launch.config import LaunchConfig
from p2p.launch.target import Target
from p2p.telemetry.page import Page
from p2p.telemetry.records import Kind
from p2p.telemetry.trace import read_trace, trace_path
from tests.p2p.telemetry.pages import identity, page, snapshot

NUM_PEERS = 3


def be_seen(swarm: Swarm, folder: Path, started: PeerProcess) -> Page:
    """Write a page as if the process had joined and committed a step."""
    pid, offsets = started.process.pid, read_offsets()
    who = identity(
        f"{started.index:016x}",
        pid=pid,
        process_start=process_start(pid),
        monotonic_offset_ns=offsets.monotonic_ns,
        boottime_offset_ns=offsets.boottime_ns,
    )
    made = page(folder, who)
    made.loop.note(Kind.COMMITTED, 1)
    swarm.poll(1)
    return made


def test_nothing_is_kept_open_of_processes_that_have_ended(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "pond").mkdir(mode=0o700, parents=True)
    config = LaunchConfig(target=Target.of_command(["sleep", "100"]), num_peers=1, swarm="pond", gpus=())
    swarm = Swarm(config, tmp_path, os.environ, LocalTestbed(home, execute))
    pages = []
    try:
        before = len(os.listdir("/proc/self/fd"))
        for started in swarm.start(NUM_PEERS, 0):
            pages.append(be_seen(swarm, home / "pond", started))
            assert started.peer is not None and started.peer.step == 1
            pages[-1].loop.note(Kind.COMMITTED, 2)
            swarm.signal(started, signal.SIGKILL)
            started.process.wait(10.0)
            swarm.poll(2)
            assert not swarm.signal(started, signal.SIGCONT)
            assert (started.peer.step, started.peer.tail.snapshot()) == (2, None)
        assert len(os.listdir("/proc/self/fd")) == before + NUM_PEERS  # the pages that this test has created
    finally:
        swarm.close(lambda: 3)
    _, records = read_trace(trace_path(tmp_path, f"{NUM_PEERS - 1:016x}"))
    assert [record.step for record in records] == [1, 2]


def test_a_removal_whose_record_was_overwritten_is_known_from_the_next_snapshot() -> None:
    tail: Any = None  # nothing is read from its page
    peer = TrackedPeer(tail, -1)
    here, other, third = "a" * 16, "b" * 16, "c" * 16

    def sees(time_ns: int, *members: str) -> None:
        seen = tuple((peer_id, 1) for peer_id in members)
        peer.compare_members(snapshot(identity(here), time_ns=time_ns, members=seen))

    sees(100, here, other, third)
    peer.out[other] = 150  # its record was read
    sees(200, here)
    assert peer.out == {other: 150, third: 200}
    sees(300)  # without a view
    sees(400, here, other)
    sees(500, here)
    assert peer.out == {other: 500, third: 200}
