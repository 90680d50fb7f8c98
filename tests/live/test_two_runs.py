"""Two experiments never merge: which swarm a script is in, and what its user is told of it."""

import re
import subprocess
from collections.abc import Callable

import pytest

from tests.live.launches import Shoal, outcome

pytestmark = pytest.mark.light

Script = Callable[[str], str]

STAY = """
import sys
import p2p
with p2p.join() as peer:
    peer.barrier()
    print(peer.status()["swarm"], flush=True)
    while True:
        peer.barrier()
"""
"""One line, and then on and on."""


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def told(process: subprocess.Popen[str], pattern: str) -> re.Match[str]:
    """Its next line on stderr that matches."""
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.fullmatch(pattern, line.rstrip("\n")):
            return found
    raise AssertionError(f"it never said {pattern!r}")


def test_another_learning_rate_is_another_swarm_and_its_founder_names_the_first(shoal: Shoal, script: Script) -> None:
    path = script(STAY.replace("while True", 'while sys.argv[-1] == "0.1" or peer.last_step < 3'))
    one = shoal("-n", "2", path, "--lr", "0.1")
    name = first_line(one).split()[1]
    assert re.fullmatch("script-[0-9a-f]{8}", name)
    other = shoal("-n", "1", path, "--lr", "0.001")
    code, stdout, stderr = outcome(other)
    other_name = stdout[0].split()[1]
    assert code == 0 and other_name != name
    assert (
        f"[0] shoal: a run of script.py is under way here as swarm {name} (2 peers), and this is another one, "
        f"{other_name}; to join that one: shoal run --join --swarm {name}, or SHOAL_SWARM={name}"
    ) in stderr
    assert f"[0] shoal: founded swarm {other_name} at step 0, 1 member" in stderr


def test_a_plain_python_joins_what_shoal_run_has_started_and_says_so(shoal: Shoal, script: Script) -> None:
    path = script(STAY.replace("while True", "while peer.world_size == 1"))
    one = shoal("-n", "1", path, "--lr", "0.1")
    name = first_line(one).split()[1]
    told(one, rf"\[0\] shoal: founded swarm {name} at step 0, 1 member")
    other = shoal(path, "--lr", "0.1", program=())
    joined = told(other, rf"shoal: joined swarm {name} at step (\d+), 2 members")
    assert int(joined[1]) > 0


@pytest.mark.parametrize("program", [["-c", STAY], ["-"]], ids=["-c", "stdin"])
def test_what_is_no_script_has_no_default_name(shoal: Shoal, program: list[str]) -> None:
    process = shoal(program=program)
    _, stderr = process.communicate(STAY)
    assert process.returncode == 1
    assert "say which swarm it is, p2p.join(swarm=...)" in stderr


def test_who_only_joins_ends_with_0_when_the_run_is_over(shoal: Shoal, script: Script) -> None:
    path = script(STAY.replace("while True", "while peer.last_step < 2"))
    name = first_line(shoal("-n", "1", path)).split()[1]
    assert outcome(shoal("-n", "1", path))[0] == 0
    code, stdout, stderr = outcome(shoal("--join", "-n", "1", path))
    assert (code, stdout) == (0, [])
    assert stderr == [f"shoal: the run of swarm {name} is over, so there is nothing to join; nothing was started"]


def test_who_only_joins_founds_nothing_and_fails_when_nobody_comes(shoal: Shoal, script: Script) -> None:
    code, stdout, stderr = outcome(shoal("--join", "--join-timeout", "1", "-n", "2", script(STAY)))
    assert (code, stdout) == (1, [])
    why = r"\[[01]\] shoal: no seat after 1 s: .*; no run of 'script-\w+' to join"
    assert sum(bool(re.match(why, line)) for line in stderr) == 2


def test_who_only_founds_starts_nothing_where_a_run_is_under_way(shoal: Shoal, script: Script) -> None:
    path = script(STAY)
    name = first_line(shoal("--new", "-n", "1", path)).split()[1]
    code, stdout, stderr = outcome(shoal("--new", "-n", "1", path))
    assert (code, stdout) == (2, [])
    assert re.fullmatch(rf"shoal: swarm {name} is under way here \(pid \d+\), and --new only founds: .*", stderr[0])


def test_join_and_new_contradict_each_other(shoal: Shoal, script: Script) -> None:
    assert outcome(shoal("--join", "--new", script(STAY))) == (
        2,
        [],
        ["shoal: --join and --new contradict each other: give one"],
    )
