"""The peers of a host, by their pages."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from p2p.errors import LaunchError
from p2p.host.folders import lock_byte, open_lock, place_of
from p2p.host.processes import process_start, read_host
from p2p.status.local import Condition, read_swarms
from tests.p2p.telemetry.pages import A, B, identity, page, snapshot

S = 10**9


def peer_of(process: int, home: Path, peer_id: str, swarm: str, name: str) -> None:
    """Write a page with the identity of this process, and a snapshot of second 2."""
    folder = home / swarm
    folder.mkdir(exist_ok=True)
    start = process_start(process)
    assert start is not None
    who = identity(peer_id, swarm=swarm, name=name, pid=process, process_start=start, host=read_host())
    page(folder, who).show(snapshot(who, step=5))


def test_each_peer_is_found_with_the_state_of_its_process(tmp_path: Path) -> None:
    sleeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    peer_of(sleeper.pid, tmp_path, A, "pond", "10")
    peer_of(os.getpid(), tmp_path, B, "pond", "9")
    elsewhere = identity("c" * 16, swarm="lake", host="0" * 16)
    (tmp_path / "lake").mkdir()
    page(tmp_path / "lake", elsewhere)
    held = open_lock(tmp_path / "lake" / "lock")
    assert lock_byte(held, place_of(elsewhere.peer_id))

    def conditions(now_ns: int) -> list[tuple[str, str, float]]:
        found = read_swarms(tmp_path, "", lambda: now_ns)
        return [(each.seen.identity.name, each.condition, each.age_s) for peers in found.values() for each in peers]

    lake = ("0", Condition.ELSEWHERE, 2.0)
    assert conditions(3 * S) == [lake, ("9", Condition.RUNNING, 1.0), ("10", Condition.RUNNING, 1.0)]
    assert [each[1] for each in conditions(6 * S)][1:] == [Condition.HANGS] * 2
    sleeper.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, sleeper.pid, os.WSTOPPED)
    assert [each[1] for each in conditions(6 * S)][1:] == [Condition.HANGS, Condition.STOPPED]
    sleeper.kill()
    sleeper.communicate()
    assert [each[1] for each in conditions(6 * S)][1:] == [Condition.HANGS, Condition.DEAD]
    assert list(read_swarms(tmp_path, "pond", lambda: 3 * S)) == ["pond"]
    os.close(held)  # a container that has ended, say, or a boot before this one
    assert conditions(6 * S)[0] == ("0", Condition.DEAD, 5.0)


def test_where_nobody_is_that_is_said_with_what_else_could_be_asked(tmp_path: Path) -> None:
    with pytest.raises(
        LaunchError, match=r"no peer of any swarm on this host, in .*; of other hosts: shoal status NAME --seeds"
    ):
        read_swarms(tmp_path, "", lambda: 0)
    with pytest.raises(LaunchError, match="no peer of swarm pond"):
        read_swarms(tmp_path, "pond", lambda: 0)


def test_where_only_peers_of_another_version_are_that_is_said(tmp_path: Path) -> None:
    peer_of(os.getpid(), tmp_path, A, "pond", "0")
    path = tmp_path / "pond" / f"{A}.page"
    content = path.read_bytes()
    path.write_bytes(content[:4] + (9).to_bytes(4, "little") + content[8:])
    with pytest.raises(LaunchError, match="version 9; we read version 4; look with the version of shoal that its peer"):
        read_swarms(tmp_path, "", lambda: 0)


def test_what_is_no_page_is_passed_over(tmp_path: Path) -> None:
    peer_of(os.getpid(), tmp_path, A, "pond", "0")
    (tmp_path / "pond" / f"{B}.page").write_bytes(b"?")
    assert len(read_swarms(tmp_path, "pond", lambda: 3 * S)["pond"]) == 1
