"""Entries of processes that have replaced their program, which the kernel shows as alive."""

import json
import os
import socket
from dataclasses import asdict
from pathlib import Path

from p2p.host.entry import Role
from p2p.host.processes import process_start
from tests.p2p.host.entries import enter_and_die, registry, socket_paths

A, B = "a" * 16, "b" * 16


def test_a_process_that_runs_another_program_by_now_is_no_peer_any_more(tmp_path: Path) -> None:
    """By `exec`: the process lives, and its lock and its sockets are closed."""
    home = tmp_path / "home"
    dead, one = enter_and_die(home, A, 1, role=Role.MEMBER), registry(home)
    start = process_start(os.getpid())
    (one.folder / f"{A}.json").write_text(json.dumps({**asdict(dead), "pid": os.getpid(), "process_start": start}))
    path, _ = socket_paths(dead)
    path.unlink()
    assert len(one.read(apart_from="")[0]) == 1, "its sockets are not bound yet"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        assert len(one.read(apart_from="")[0]) == 1
    assert one.read(apart_from="")[0] == ()
    assert one.enter(B, 2).own.role is Role.FOUNDER
