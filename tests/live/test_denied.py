"""Denied system calls, or a removed current folder: peers work without them, or one line says what is wrong."""

import os
import platform
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from p2p.host.keys import new_key
from tests.live.denied import NUMBERS
from tests.live.launches import EXECUTED, Shoal, outcome

pytestmark = pytest.mark.light

Script = Callable[[str], str]

SUM = """
import numpy as np
import p2p
with p2p.join(swarm="pond") as peer:
    peer.all_reduce(np.ones(3, np.float32))
"""

known_machine = pytest.mark.skipif(platform.machine() not in NUMBERS, reason="numbers of system calls are not known")


def denied(*names: str) -> list[str]:
    return ["-m", "tests.live.denied", ",".join(names), sys.executable]


@known_machine
def test_where_memory_files_and_cores_are_denied_peers_run_and_say_which_call_it_was(
    shoal: Shoal, script: Script
) -> None:
    program = [*denied("memfd_create", "sched_getaffinity"), *EXECUTED, "-n", "2", "--swarm", "pond", script(SUM)]
    code, _, stderr = outcome(shoal(program=program))
    assert code == 0, stderr
    why = (
        r"cannot make an arena: memfd_create fails \(Operation not permitted\); a filter of system calls .* may deny it"
    )
    goes_on = "this peer exchanges through sockets"
    assert sum(bool(re.fullmatch(rf"\[[01]\] {why}; {goes_on}", line)) for line in stderr) == 2, stderr


@known_machine
def test_a_key_that_cannot_be_handed_on_is_one_line(shoal: Shoal, script: Script) -> None:
    reader, writer = os.pipe()
    os.write(writer, new_key().encode())
    os.close(writer)
    options = ["-n", "1", "--bind", "127.0.0.1:0", "--key", f"fd:{reader}", script(SUM)]
    run = shoal(program=[*denied("memfd_create"), *EXECUTED, *options], pass_fds=[reader])
    os.close(reader)
    why = f"the swarm key fd:{reader} cannot be handed on to peers: memfd_create fails (Operation not permitted)"
    assert outcome(run) == (2, [], [f"shoal: {why}; give it as a file"])


@pytest.mark.parametrize(
    ("words", "path", "environ"),
    [
        (["-m", "p2p", "run", "--receipts", "runs", "SCRIPT"], "runs", {}),
        (["-m", "p2p", "run", "script.py"], "script.py", {}),
        (["SCRIPT"], "runs", {"SHOAL_RECEIPTS": "runs"}),
        (["SCRIPT"], "home", {"SHOAL_HOME": "home"}),
    ],
)
def test_a_path_in_a_folder_that_is_gone_is_one_line(
    shoal: Shoal, script: Script, tmp_path: Path, words: list[str], path: str, environ: dict[str, str]
) -> None:
    (tmp_path / "gone").mkdir()
    command = [sys.executable, *(script(SUM) if word == "SCRIPT" else word for word in words)]
    lines = ["-c", f"cd gone; rmdir ../gone; exec {shlex.join(command)}"]
    code, stdout, stderr = outcome(shoal(program=lines, executable="/bin/sh", environ={**environ}))
    assert (code, stdout) == (2 if "run" in words else 1, [])
    assert stderr == [
        f"shoal: {path} cannot be found, since the current folder was removed: go to another one, or give a path that "
        "begins with /"
    ]


def test_where_the_current_folder_is_gone_whole_paths_are_enough(shoal: Shoal, script: Script, tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    command = [sys.executable, *EXECUTED, "-n", "1", "--receipts", str(tmp_path / "runs"), script(SUM)]
    run = shoal(program=["-c", f"cd gone; rmdir ../gone; exec {shlex.join(command)}"], executable="/bin/sh")
    assert outcome(run)[0] == 0 and os.listdir(tmp_path / "runs")
