"""`shoal run` with real processes. A hang is a failure: pytest-timeout ends it."""

import os
import re
import select
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from p2p.host.naming import Program
from tests.live.launches import EXECUTED, NOBODY, Launch, Shoal, outcome

pytestmark = pytest.mark.light

WAIT_TO_LEAVE = """
import os, signal, sys
signal.signal(signal.SIGTERM, lambda number, frame: (print("leaving"), sys.exit(0)))
print(os.getpid())
while True:
    signal.pause()
"""

REFUSE_TO_LEAVE = """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(os.getpid())
while True:
    signal.pause()
"""

WITHOUT_GRACE = """
import os, sys
from pathlib import Path
from p2p.launch.config import LaunchConfig
from p2p.launch.launcher import Launcher
from p2p.launch.target import Target
config = LaunchConfig(target=Target.script(Path(sys.argv[1])), num_peers=1, grace_s=0.05)
sys.exit(Launcher(config, environ=os.environ, stdout=1, stderr=2).run())
"""


def peer_pids(process: Launch, num_peers: int) -> list[int]:
    """The pids of the peers, in order: each peer's first line."""
    assert process.stdout is not None
    lines = sorted(process.stdout.readline() for _ in range(num_peers))
    return [int(line.split()[1]) for line in lines]


def wait_gone(pidfds: Sequence[int]) -> None:
    """Block until every process has ended. The processes are not children, so they are not reaped."""
    for pidfd in pidfds:
        select.select([pidfd], [], [])
        os.close(pidfd)


def test_every_line_carries_the_number_of_its_peer(shoal: Shoal, script: Callable[[str], str]) -> None:
    source = "import sys; print('one\\n\\ntwo'); print('three', file=sys.stderr); print('four', end='')"
    code, stdout, stderr = outcome(shoal("-n", "2", script(source)))
    assert code == 1
    assert stdout == sorted(f"[{i}] {word}" for i in (0, 1) for word in ("one", "", "two", "four"))
    assert stderr == ["[0] three", "[1] three", NOBODY]


def test_lines_written_in_pieces_are_never_mixed(shoal: Shoal, script: Callable[[str], str]) -> None:
    source = """
import os
for number in range(200):
    for piece in (f"{number} ".encode(), os.environ["SHOAL_LAUNCH_INDEX"].encode() * 5000, b"\\n"):
        os.write(1, piece)
"""
    code, stdout, _ = outcome(shoal("-n", "4", script(source)))
    assert code == 1
    assert stdout == sorted(f"[{i}] {number} {str(i) * 5000}" for i in range(4) for number in range(200))


def test_bytes_that_are_no_text_are_replaced(shoal: Shoal, script: Callable[[str], str]) -> None:
    code, stdout, _ = outcome(shoal(script(r"import os; os.write(1, b'a\xff\xc3\xa9b\n')")))
    assert (code, stdout) == (1, ["[0] a\ufffd\u00e9b"])


PRINT_ENVIRONMENT = """
import os
names = ["SHOAL_HOME", "SHOAL_SWARM", "SHOAL_MIN_PEERS", "SHOAL_RECEIPTS", "SHOAL_RECEIPTS_FULL"]
names.append("SHOAL_LAUNCH_INDEX")
print(*[os.environ.get(name, "-") for name in names], int(os.environ["OMP_NUM_THREADS"]) >= 1)
"""


def test_peers_are_told_what_they_are_part_of(
    shoal: Shoal, script: Callable[[str], str], home: Path, tmp_path: Path
) -> None:
    path = script(PRINT_ENVIRONMENT)
    _, stdout, _ = outcome(shoal("-n", "2", path))
    name = Program.of_script(Path(path), ()).swarm(one_host=True)
    assert stdout == [f"[{i}] {home} {name} 2 - - {i} True" for i in (0, 1)]
    options = ["--swarm", "pond", "--home", "h", "--min-peers", "3", "--receipts", "r", "--receipts-full", "stop"]
    _, stdout, _ = outcome(shoal("-n", "1", *options, path))
    assert stdout == [f"[0] {tmp_path}/h pond 3 {tmp_path}/r stop 0 True"]


def test_options_after_the_script_belong_to_the_script(shoal: Shoal, script: Callable[[str], str]) -> None:
    path = script("import sys; print(sys.argv[1:])")
    code, stdout, _ = outcome(shoal("-n", "1", path, "-n", "7", "--help", "--swarm=x", "--", "-"))
    assert (code, stdout) == (1, ["[0] ['-n', '7', '--help', '--swarm=x', '--', '-']"])


def test_a_script_that_raises_fails_the_run_and_is_named(shoal: Shoal, script: Callable[[str], str]) -> None:
    code, _, stderr = outcome(shoal("-n", "1", script("raise ValueError('what now')")))
    assert code == 1
    assert "[0] ValueError: what now" in stderr
    assert re.fullmatch(r"shoal: peer 0 \(pid \d+\) ended with exit code 1; none left here", stderr[-1])


def test_a_killed_peer_is_named_and_fails_the_run(shoal: Shoal, script: Callable[[str], str]) -> None:
    source = """
import os, signal
if os.environ["SHOAL_LAUNCH_INDEX"] == "1":
    os.kill(os.getpid(), signal.SIGKILL)
"""
    code, _, stderr = outcome(shoal("-n", "3", script(source)))
    assert code == 1
    assert len(stderr) == 1
    assert re.fullmatch(
        r"shoal: peer 1 \(pid \d+\) was killed by SIGKILL; (1|2|none) left here(, [12] completed)?", stderr[0]
    )


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["-n", "2", "missing.py"], "shoal: the script missing.py does not exist"),
        (["-n", "2", "."], "shoal: the script . is not a file"),
        (["-n", "some", "script.py"], "shoal: -n is the number of peers, or `auto`, got 'some'"),
        (["--restarts", "-1", "script.py"], "shoal: --restarts must be at least 0, got -1"),
        (["--join-timeout", "0", "script.py"], "shoal: --join-timeout must be more than 0 seconds, got 0"),
        (["--log-dir", "script.py/logs", "script.py"], "shoal: cannot make the folder script.py/logs of --log-dir: .*"),
        (["-m", ""], "shoal: -m is the name of a module, got ''"),
        ([], "shoal: nothing to run: give SCRIPT.PY, or -m MODULE, or -- COMMAND"),
        (["--", "no-such-command"], "shoal: cannot start peer 0: no-such-command: No such file .*"),
        (
            ["--bind", "127.0.0.1:0", "--insecure", "--", "true"],
            "shoal: with --seeds or --bind a command needs a name, the same on all hosts: give --swarm NAME",
        ),
        (["-n", "0", "script.py"], "shoal: -n is the number of peers and must be at least 1, got 0"),
        (["--min-peers", "0", "script.py"], "shoal: --min-peers must be at least 1, got 0"),
        (["--swarm", "a/b", "script.py"], "shoal: a swarm's name has .*, got 'a/b'"),
        (
            ["--home", "shared", "--swarm", "p", "script.py"],
            "shoal: the registry folder .* has mode 0777.* chmod 700 .*",
        ),
        (["--home", "x" * 100, "script.py"], "shoal: the socket path .* has .* bytes.* SHOAL_HOME .*"),
    ],
    ids=[
        "missing",
        "folder",
        "what-number",
        "restarts",
        "timeout",
        "log-dir",
        "no-module",
        "nothing",
        "command",
        "no-name",
        "no-peers",
        "no-min-peers",
        "swarm",
        "shared-home",
        "long-home",
    ],
)
def test_what_cannot_be_started_is_one_line_and_starts_nothing(
    arguments: list[str], complaint: str, shoal: Shoal, script: Callable[[str], str], tmp_path: Path
) -> None:
    script("print('started')")
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    code, stdout, stderr = outcome(shoal(*arguments))
    assert (code, stdout, len(stderr)) == (2, [], 1)
    assert re.fullmatch(complaint, stderr[0])


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)], ids=["INT", "TERM"])
def test_an_interrupted_run_lets_its_peers_leave(
    number: signal.Signals, expected: int, shoal: Shoal, script: Callable[[str], str]
) -> None:
    process = shoal("-n", "2", script(WAIT_TO_LEAVE))
    peer_pids(process, 2)
    process.send_signal(number)
    assert outcome(process) == (
        expected,
        ["[0] leaving", "[1] leaving"],
        [f"shoal: {number.name}: asking peer 0, 1 to leave"],
    )


def test_a_second_interrupt_kills_at_once(shoal: Shoal, script: Callable[[str], str]) -> None:
    process = shoal("-n", "2", script(REFUSE_TO_LEAVE))
    peer_pids(process, 2)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    assert process.stderr.readline() == "shoal: SIGINT: asking peer 0, 1 to leave\n"
    process.send_signal(signal.SIGINT)
    assert outcome(process) == (130, [], ["shoal: SIGINT again: killing peer 0, 1"])


def test_a_peer_that_does_not_leave_is_killed(shoal: Shoal, script: Callable[[str], str]) -> None:
    process = shoal(script(REFUSE_TO_LEAVE), program=["-c", WITHOUT_GRACE])
    peer_pids(process, 1)
    process.send_signal(signal.SIGTERM)
    code, _, stderr = outcome(process)
    assert code == 1
    assert "shoal: killing peer 0, still there after 0.05 s" in stderr


def test_no_peer_outlives_a_killed_launcher(shoal: Shoal, script: Callable[[str], str]) -> None:
    process = shoal("-n", "3", script(REFUSE_TO_LEAVE), program=EXECUTED)
    pidfds = [os.pidfd_open(pid) for pid in peer_pids(process, 3)]
    process.kill()
    wait_gone(pidfds)


def test_no_helper_outlives_its_peer(shoal: Shoal, script: Callable[[str], str]) -> None:
    source = """
import os, signal
helper = os.fork()
if helper:
    print(os.getpid(), helper)
while True:
    signal.pause()
"""
    process = shoal("-n", "1", script(source))
    assert process.stdout is not None
    peer, helper = map(int, process.stdout.readline().split()[1:])
    pidfd = os.pidfd_open(helper)
    os.kill(peer, signal.SIGKILL)
    wait_gone([pidfd])
    assert outcome(process)[0] == 1


def test_a_run_whose_output_nobody_reads_ends(shoal: Shoal, script: Callable[[str], str]) -> None:
    source = """
while True:
    print("x" * 1000)
"""
    process = shoal("-n", "2", script(source))
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline()
    process.stdout.close()
    assert "asking peer 0, 1 to leave" in process.stderr.read()
    assert process.wait() == 128 + signal.SIGPIPE


def test_a_run_whose_output_nobody_reads_for_a_while_hears_signals(shoal: Shoal, script: Callable[[str], str]) -> None:
    source = """
import sys
print("here", file=sys.stderr, flush=True)
while True:
    print("x" * 1000)
"""
    process = shoal("-n", "1", script(source))
    assert process.stdout is not None and process.stderr is not None
    assert process.stderr.readline() == "[0] here\n"
    assert process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    assert process.stderr.readline() == "shoal: SIGTERM: asking peer 0 to leave\n"
    assert process.wait() == 0
