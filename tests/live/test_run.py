"""`shoal run` during training: replaces peers, reports events, and ends with one exit code."""

import os
import re
import resource
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.error import URLError
from urllib.request import ProxyHandler, Request, build_opener

import pytest

import p2p
from p2p.step.receipts import read_receipts
from p2p.telemetry.records import Kind
from p2p.telemetry.trace import read_trace, trace_path
from tests.cases import some_of
from tests.live.launches import EXECUTED, NOBODY, Launch, Shoal, outcome
from tests.live.swarm import ROOT

pytestmark = pytest.mark.light

Script = Callable[[str], str]

TRAIN = """
import os, signal, sys, time
import numpy as np
import p2p

def train(until):
    with p2p.join() as peer:
        peer.wait_view()
        is_over = False
        while not is_over:
            happen(peer)
            time.sleep(0.005)  # the step's computation
            with peer.step(samples=4):
                peer.all_reduce(np.ones(1000, np.float32))
            is_over = peer.last_step >= until and peer.world_size >= {size}

def happen(peer):
    {happening}

place = os.environ.get("SHOAL_LOCAL_INDEX")
{before}
train(40)
"""


def training(happening: str = "pass", before: str = "", size: int = 1) -> str:
    """A script whose run ends at step 40, or once it has `size` members."""
    return TRAIN.replace("{happening}", happening).replace("{before}", before).replace("{size}", str(size))


def rows(stderr: list[str]) -> list[str]:
    """The rows of the table, with single blanks."""
    return [" ".join(line.split()) for line in stderr if re.match(r" \d", line)]


def line_like(process: Launch, pattern: str) -> re.Match[str]:
    """Block until a line of stderr matches."""
    assert process.stderr is not None
    for line in process.stderr:
        print(line, end="")  # shown if the test fails
        if found := re.fullmatch(pattern, line.rstrip("\n")):
            return found
    raise AssertionError(f"no line like {pattern!r} came")


def test_a_completed_run_ends_with_0_and_a_table(shoal: Shoal, script: Script) -> None:
    code, _, stderr = outcome(shoal("-n", "2", script(training())))
    assert code == 0, stderr
    assert rows(stderr) == ["0 completed 40 160", "1 completed 40 160"]


@pytest.mark.parametrize(
    ("how", "said", "expected"),
    some_of(
        [
            ("raise ValueError", "ended with exit code 1", 1),
            ("sys.exit(3)", "ended with exit code 3", 1),
            ("sys.exit(4)", "ended with exit code 4", 1),
            ("os._exit(2)", "ended with exit code 2", 1),
            ("os._exit(0)", r"ended with exit code 0 without leaving its run \(os\._exit\?\)", 1),
            ("os.kill(os.getpid(), signal.SIGKILL)", "was killed by SIGKILL", 1),
            ("os.kill(os.getpid(), signal.SIGSEGV)", "was killed by SIGSEGV", 1),
            ("os.kill(os.getpid(), signal.SIGTERM)", "left on SIGTERM", 0),
        ],
        1,
        4,
        5,
    ),
    ids=["raise", "exit3", "exit4", "_exit", "_exit0", "KILL", "SEGV", "TERM"],
)
def test_one_of_three_dies_and_the_others_complete(
    how: str, said: str, expected: int, shoal: Shoal, script: Script
) -> None:
    code, _, stderr = outcome(shoal("-n", "3", script(training(f"if place == '1' and peer.last_step == 20: {how}"))))
    assert code == expected, stderr
    left = r"(2|1|none) left here(, [12] completed)?"  # the others may have ended
    cost = r"(; resumed after [\d.]+ ms, no step lost(, step \d+ redone)?)?"
    pattern = rf"shoal: peer 1 \(pid \d+\) {said} at step \d+; {left}{cost}"
    assert any(re.fullmatch(pattern, line) for line in stderr), stderr
    assert [row for row in rows(stderr) if "completed" in row] == ["0 completed 40 160", "2 completed 40 160"]


def test_who_ends_at_once_behind_its_run_has_completed(shoal: Shoal, script: Script) -> None:
    code, _, stderr = outcome(shoal("-n", "2", script(training() + "\nos._exit(0)\n")))
    assert code == 0 and all("completed" in row for row in rows(stderr)), stderr


FORKED: Final = """
import multiprocessing
import numpy as np
import p2p

def train():
    peer = p2p.join()
    peer.all_reduce(np.ones(3, np.float32))

child = multiprocessing.get_context("fork").Process(target=train)
child.start()
child.join()
"""
"""A script whose peer is in a process that runs no `atexit` functions."""


def test_a_peer_in_a_forked_process_of_multiprocessing_leaves_at_its_end(shoal: Shoal, script: Script) -> None:
    code, _, stderr = outcome(shoal("-n", "2", script(FORKED)))
    assert code == 0 and [row.split()[1] for row in rows(stderr)] == ["completed"] * 2, stderr


def test_a_peer_that_is_killed_is_replaced_and_the_run_ends_with_0(shoal: Shoal, script: Script) -> None:
    """The run waits for the replacement, which finds the mark of the first peer."""
    happening = "if is_first and peer.last_step == 20: mark.touch(); os.kill(os.getpid(), signal.SIGKILL)"
    before = "from pathlib import Path; mark = Path('mark'); is_first = place == '1' and not mark.exists()"
    code, _, stderr = outcome(shoal("-n", "2", "--restarts", "1", script(training(happening, before, size=2))))
    assert code == 0, stderr
    assert any(re.search(r"was killed by SIGKILL .*; started again in 1 s \(1 of 1\)", line) for line in stderr)
    assert any(re.match(r"\[1\] shoal: joined swarm .* at step \d+, 2 members", line) for line in stderr)
    assert "1 completed (started again 1x)" in " ".join(rows(stderr))


LATE = """
import atexit
from contextlib import suppress
from pathlib import Path

died, again, over = map(Path, ("died", "again", "over"))
for meeting in (again, over):
    with suppress(FileExistsError):
        os.mkfifo(meeting)  # who opens it waits for the other one
is_first = place == "1" and not died.exists()
if place == "0":
    atexit.register(over.write_text, "")
elif not is_first:
    again.write_text("")
    over.read_text()
"""


def test_a_replacement_that_comes_when_the_run_is_over_founds_no_other_one(shoal: Shoal, script: Script) -> None:
    happening = (
        "if place == '0' and peer.last_step == 30: again.read_text()\n"
        "    if is_first and peer.last_step == 20: died.touch(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    code, _, stderr = outcome(shoal("-n", "2", "--restarts", "1", script(training(happening, LATE))))
    assert code == 0, stderr
    assert any(
        re.match(r"\[1\] shoal: the run of swarm .* is over, so there is nothing to join", each) for each in stderr
    )
    assert sum("founded" in line for line in stderr) == 1, stderr


@pytest.mark.long
def test_an_error_behind_the_end_of_a_run_is_not_made_good_by_who_comes_after_it(shoal: Shoal, script: Script) -> None:
    source = training() + "\nraise ValueError('it cannot be saved')\n"
    for number in ("1", "2"):
        code, _, stderr = outcome(shoal("-n", number, "--restarts", "1", script(source)))
        assert code == 1, stderr


@pytest.mark.long
def test_a_peer_that_dies_at_the_same_step_again_and_again_is_given_up(shoal: Shoal, script: Script) -> None:
    code, _, stderr = outcome(
        shoal("-n", "1", "--restarts", "9", script(training("if peer.last_step == 7: raise ValueError")))
    )
    assert code == 1
    assert any("not started again: this was its death number 3 at step 7" in line for line in stderr), stderr


def test_when_one_of_all_cannot_come_the_others_do_not_wait(shoal: Shoal, script: Script) -> None:
    code, _, stderr = outcome(shoal("-n", "3", script(training(before="if place == '1': open('/nowhere/data')"))))
    assert code == 1
    reason = (
        "shoal: the first step waits for 3 peers (--min-peers), but only 2 can still join, since peer 1 has ended; "
        "start again, or pass --min-peers 2: asking peer 0, 2 to leave"
    )
    assert reason in stderr


@pytest.mark.long
def test_who_waits_for_others_says_for_how_many_with_a_launcher_and_without(shoal: Shoal, script: Script) -> None:
    path = script(training())
    run = shoal("-n", "1", "--min-peers", "2", "--swarm", "launched", path)
    alone = shoal(path, program=(), environ={"SHOAL_MIN_PEERS": "2", "SHOAL_SWARM": "alone"})
    line_like(run, r"shoal: peer 0 waits for 1 of 2 peers; here are 0 \(for \d+ s\)")
    line_like(alone, r"shoal: waits for 1 of 2 peers; here are [0-9a-f]{16} \(for \d+ s\)")
    for first, swarm in ((run, "launched"), (alone, "alone")):
        assert outcome(shoal("-n", "1", "--swarm", swarm, path))[0] == outcome(first)[0] == 0


@pytest.mark.long
def test_a_later_launch_has_other_names_and_the_first_one_says_who_has_joined(shoal: Shoal, script: Script) -> None:
    path = script(training().replace("train(40)", "train(10**9)"))
    run = shoal("-n", "2", path)
    line_like(run, r"\[[01]\] shoal: (founded|joined) swarm .*")
    late = shoal("-n", "1", path)
    line_like(late, r"\[2\] shoal: joined swarm .* at step \d+, 3 members")
    line_like(run, r"shoal: peer 2 has joined at step \d+; 3 members; the others waited [\d.]+ ms")
    late.send_signal(signal.SIGTERM)
    code, _, stderr = outcome(late)
    assert code == 0 and rows(stderr)[0].startswith("2 left on SIGTERM"), stderr
    line_like(run, r"shoal: peer 2 is out at step \d+; 2 members \((2 leaves|it has left, or .*)\); .*")


def test_a_launcher_keeps_receipts_and_traces_and_each_record_once(
    shoal: Shoal, script: Script, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    code, _, stderr = outcome(shoal("-n", "2", "--receipts", str(kept), script(training())))
    assert code == 0, stderr
    names = [path.name.split(".")[0] for path in kept.glob("*.receipts.jsonl")]
    assert len(names) == 2
    for peer_id in names:
        _, records = read_trace(trace_path(kept, peer_id))
        commits = [(record.step, record.value) for record in records if record.kind == Kind.COMMITTED]
        receipts = read_receipts(kept / f"{peer_id}.receipts.jsonl")
        assert commits == [(receipt.step, receipt.samples_of(peer_id)) for receipt in receipts]
    files = {path.relative_to(kept).as_posix() for path in kept.rglob("*.*") if not path.name.startswith("ends-")}
    assert files == {each for one in names for each in (f"{one}.receipts.jsonl", f"traces/{one}.trace")}


@pytest.mark.long
def test_what_a_run_has_cost_and_why_it_failed_is_said(shoal: Shoal, script: Script) -> None:
    """The run continues until a third peer has replaced the killed one."""
    happening = "if is_first and peer.last_step == 20: mark.touch(); os.kill(os.getpid(), signal.SIGKILL)"
    before = "from pathlib import Path; mark = Path('mark'); is_first = place == '1' and not mark.exists()"
    source = training(happening, before, size=3).replace(
        "with peer.step", "peer.log(loss=1.5)\n            with peer.step"
    )
    code, _, stderr = outcome(shoal("-n", "3", "--restarts", "1", "--receipts", "kept", script(source)))
    text, took = "\n".join(stderr), r"\d+\.\d s"
    assert code == 0, text
    assert re.search(
        rf"^shoal: first step {took} after the start, {took} after the last p2p\.join; 3 members$", text, re.M
    )
    cost = r"resumed after [\d.]+ ms, no step lost(, step \d+ redone)?"
    assert re.search(
        rf"^shoal: peer 1 \(pid \d+\) was killed by SIGKILL at step 20; 2 left here; .*; {cost}$", text, re.M
    ), text
    assert re.search(
        rf"^shoal: peer 1 counts, {took} after its start, {took} after p2p\.join; \d members?$", text, re.M
    ), text
    why = "shoal: peer 1 failed first, in step 21: it was killed by SIGKILL while computing step 21"
    assert any(line.startswith(why) for line in stderr), text
    code, stdout, stderr = outcome(shoal("kept", program=("-m", "p2p", "postmortem")))
    assert code == 1, stderr
    found = next(line for line in stdout if " 1. " in line)
    assert re.sub(r" \([0-9a-f]{8}\)", "", found).strip() == why.replace("shoal:", "1.")  # another had its place
    assert any(re.search(r"continued had a step after \d+ ms", line) for line in stdout), stdout


def test_an_exception_is_why_a_run_has_failed(shoal: Shoal, script: Script) -> None:
    happening = "if place == '1' and peer.last_step == 20: raise ValueError('a bad sample')"
    _, _, stderr = outcome(shoal("-n", "2", script(training(happening))))
    why = "shoal: peer 1 failed first, in step 21: it ended with exit code 1 (ValueError: a bad sample)"
    assert why in stderr


def test_a_run_is_shown_on_a_page_until_it_ends(shoal: Shoal, script: Script) -> None:
    source = training().replace("train(40)", "assert 'SHOAL_WEB_TOKEN' not in os.environ; train(10**9)")
    token = "long enough to be a token"
    run = shoal(
        *("-n", "2", "--web", "127.0.0.1:0", "--swarm", "shown"), script(source), environ={"SHOAL_WEB_TOKEN": token}
    )
    url = line_like(run, r"shoal: (http://127\.0\.0\.1:\d+/) shows the peers of this host")[1]
    line_like(run, r"shoal: first step .*")
    direct = build_opener(ProxyHandler({}))
    with direct.open(Request(f"{url}metrics", headers={"Authorization": f"Bearer {token}"})) as answer:
        text = answer.read().decode()
    assert 'shoal_peers{swarm="shown",condition="running"} 2\n' in text
    run.send_signal(signal.SIGTERM)
    assert outcome(run)[0] == 0
    with pytest.raises(URLError):
        direct.open(url)


def test_a_web_port_that_is_taken_ends_a_run_before_anything_starts(shoal: Shoal, script: Script) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, stdout, stderr = outcome(shoal("-n", "2", "--web", address, script("print('started')")))
    why = f"shoal: --web cannot listen at {address}: Address already in use; give another port"
    assert (code, stdout, stderr) == (2, [], [why])


def test_sigterm_lets_all_leave_and_ends_with_0(shoal: Shoal, script: Script) -> None:
    run = shoal("-n", "2", script(training().replace("train(40)", "train(10**9)")))
    for _ in range(2):
        line_like(run, r"\[[01]\] shoal: (founded|joined) swarm .*")
    run.send_signal(signal.SIGTERM)
    code, _, stderr = outcome(run)
    assert code == 0, stderr
    assert sum("left on SIGTERM" in row for row in rows(stderr)) == 2


STOP = "peer.last_step == 5 and peer.rank == 0 and peer.world_size == 2 and os.kill(os.getpid(), signal.SIGSTOP)"
"""The other peer has half of the seats, without rank 0: it cannot continue alone."""


def test_who_waits_for_a_stopped_peer_says_so_and_how_to_wake_it(shoal: Shoal, script: Script) -> None:
    run = shoal("-n", "2", script(training(STOP, size=1)))
    waiting = (
        r"shoal: peer \d waits in step [56]: .*; peer \d is stopped .*: `kill -CONT (\d+)` wakes it, and after `kill .*"
    )
    os.kill(int(line_like(run, waiting)[1]), signal.SIGCONT)
    code, _, stderr = outcome(run)
    assert code == 0, stderr


@pytest.mark.long
def test_a_peer_that_is_stopped_for_longer_than_the_fence_is_killed_and_the_other_goes_on(
    shoal: Shoal, script: Script
) -> None:
    code, _, stderr = outcome(shoal("-n", "2", "--fence", "0.5", script(training(STOP, size=1))))
    assert code == 1
    (stopped,) = {
        found[1] for line in stderr if (found := re.match(r"shoal: peer (\d) was stopped for 0.5 s: killing", line))
    }
    assert sorted(row.split()[:2] for row in rows(stderr)) == sorted(
        [stopped, "was"] if place == stopped else [place, "completed"] for place in "01"
    )


def test_a_peer_that_the_others_have_gone_on_without_is_told_from_one_that_has_failed(
    shoal: Shoal, script: Script
) -> None:
    happening = "place == '1' and peer.last_step == 20 and os.kill(os.getpid(), signal.SIGSTOP)"
    run = shoal("-n", "3", script(training(happening, "print(os.getpid(), file=sys.stderr)")))
    pid = int(line_like(run, r"\[1\] (\d+)")[1])
    line_like(run, r"shoal: peer 1 is out at step 20; 2 members \(silent for .* s\); resumed after \d{4,} ms, .*")
    os.kill(pid, signal.SIGCONT)
    code, _, stderr = outcome(run)
    assert code == 3, stderr
    assert "1 was removed: the others continued without it" in " ".join(rows(stderr))


def test_a_fence_may_not_be_negative(shoal: Shoal, script: Script) -> None:
    code, _, stderr = outcome(shoal("--fence", "-1", script(training())))
    assert (code, stderr) == (2, ["shoal: --fence must be at least 0 seconds, got -1"])


def test_sigusr1_is_passed_on_and_kills_nobody(shoal: Shoal, script: Script) -> None:
    run = shoal("-n", "2", script(training().replace("train(40)", "train(10**9)")))
    for _ in range(2):
        line_like(run, r"\[[01]\] shoal: (founded|joined) swarm .*")
    run.send_signal(signal.SIGUSR1)
    seen = {line_like(run, r"\[([01])\] .*script\.py.* in <module>")[1] for _ in range(2)}
    assert seen == {"0", "1"}
    run.send_signal(signal.SIGTERM)
    assert outcome(run)[0] == 0


def test_sigusr1_does_not_reach_who_would_end_by_it(shoal: Shoal, script: Script) -> None:
    run = shoal("-n", "1", script("import signal; print('here', flush=True); signal.pause()"))
    assert run.stdout is not None and run.stdout.readline()
    run.send_signal(signal.SIGUSR1)
    line_like(run, "shoal: SIGUSR1 is not passed on to peer 0, which it would end")
    run.send_signal(signal.SIGINT)
    assert outcome(run)[0] == 130


def test_a_module_and_a_command_are_run_too(shoal: Shoal, script: Script) -> None:
    script("import sys; print(__name__, sys.argv[1:])")
    assert outcome(shoal("-m", "script", "-n", "7"))[:2] == (1, ["[0] __main__ ['-n', '7']"])
    code, stdout, _ = outcome(shoal("-n", "2", "--", sys.executable, "script.py", "--", "-x"))
    assert (code, stdout) == (1, [f"[{i}] __main__ ['--', '-x']" for i in (0, 1)])


def test_a_script_that_never_joins_is_told_and_fails(shoal: Shoal, script: Script) -> None:
    code, stdout, stderr = outcome(shoal("-n", "2", script("print('hello')")))
    assert (code, stdout) == (1, ["[0] hello", "[1] hello"])
    assert stderr == [NOBODY]


def test_a_package_that_cannot_be_run_is_named_before_anything_starts(shoal: Shoal, tmp_path: Path) -> None:
    (tmp_path / "parts" / "inner").mkdir(parents=True)
    (tmp_path / "parts" / "__init__.py").touch()
    code, _, stderr = outcome(shoal("-n", "2", "-m", "parts"))
    assert code == 2 and len(stderr) == 1 and "shoal: -m parts is a package without `__main__`" in stderr[0], stderr
    (tmp_path / "parts" / "inner" / "__main__.py").write_text("raise SystemExit(5)")
    code, _, stderr = outcome(shoal("-m", "parts.inner"))
    assert code == 1 and "ended with exit code 5" in stderr[0], stderr


def test_a_peer_in_a_wrapper_is_seen_and_asked_to_leave(shoal: Shoal, script: Script) -> None:
    """The shell would die of SIGTERM without passing it on to the peer."""
    path = script(training().replace("train(40)", "train(10**9)"))
    run = shoal("-n", "1", "--", "/bin/sh", "-c", f"{sys.executable} {path}; exit $?")
    line_like(run, r"\[0\] shoal: founded swarm .*")
    run.send_signal(signal.SIGTERM)
    code, _, stderr = outcome(run)
    assert (code, [re.sub(r" \d+ \d+$", "", row) for row in rows(stderr)]) == (0, ["0 left on SIGTERM"])


CLOSES: Final = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, *sys.argv[1:]]))"
"""Like `conda run`: its child inherits only the standard streams."""


def test_a_peer_in_a_wrapper_that_closes_files_is_seen_and_asked_to_leave(shoal: Shoal, script: Script) -> None:
    path = script(training().replace("train(40)", "train(10**9)"))
    run = shoal("-n", "2", "--", sys.executable, "-c", CLOSES, path)
    line_like(run, "shoal: first step .*; 2 members")
    run.send_signal(signal.SIGTERM)
    code, _, stderr = outcome(run)
    left = ["0 left on SIGTERM", "1 left on SIGTERM"]
    assert (code, [re.sub(r" \d+ \d+$", "", row) for row in rows(stderr)]) == (0, left), stderr


def test_a_run_of_peers_in_wrappers_that_close_files_ends_with_0(shoal: Shoal, script: Script) -> None:
    code, _, stderr = outcome(shoal("-n", "2", "--", sys.executable, "-c", CLOSES, script(training(size=2))))
    assert code == 0 and len(rows(stderr)) == 2, stderr


def test_another_process_of_a_script_that_joins_a_swarm_is_not_taken_for_its_peer(shoal: Shoal, script: Script) -> None:
    other = "p2p.join(swarm='other')"
    before = f"import subprocess; subprocess.check_call([sys.executable, '-c', {f'import p2p; {other}'!r}])"
    code, _, stderr = outcome(shoal("-n", "1", script(training(before=before))))
    assert code == 0 and [row.split()[0] for row in rows(stderr)] == ["0"], stderr
    assert "40" in rows(stderr)[0], stderr


def test_a_peer_whose_wrapper_does_not_end_with_the_launcher_leaves_by_itself(shoal: Shoal, script: Script) -> None:
    source = training("peer.last_step == 0 and print(os.getpid(), flush=True)").replace("train(40)", "train(10**9)")
    run = shoal("-n", "1", "--", "/bin/sh", "-c", f"{sys.executable} {script(source)}; exit $?", program=EXECUTED)
    assert run.stdout is not None
    pidfd = os.pidfd_open(int(run.stdout.readline().split()[1]))
    run.kill()
    assert select.select([pidfd], [], [], 60.0)[0]
    os.close(pidfd)


ORPHANS: Final = """
from pathlib import Path
for _ in range(3):
    if not (child := os.fork()):
        if not os.fork():
            os._exit(0)
        os._exit(0)
    os.waitpid(child, 0)
def states():
    return [path.read_text().rpartition(")")[2].split()[0] for path in Path("/proc").glob("[0-9]*/stat")]
while len(left := states()) > 2:  # an orphan runs, and is a zombie, before it is reaped
    time.sleep(0.01)  # between two looks
print(left.count("Z"), "zombies of", len(left))
"""


def test_the_first_process_of_a_container_reaps_orphans(script: Script, home: Path) -> None:
    program = [sys.executable, *EXECUTED, "-n", "1", script(training(before=ORPHANS))]
    inside = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", *program]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "SHOAL_HOME": str(home)}
    done = subprocess.run(inside, env=environ, capture_output=True, text=True, timeout=100, check=False)
    if "unshare failed" in done.stderr:
        pytest.skip(f"no PID namespace can be made here, which root can: {done.stderr}")
    assert (done.returncode, done.stdout) == (0, "[0] 0 zombies of 2\n"), done.stderr


def test_rank_is_in_no_variable_and_each_peer_sees_one_device(
    shoal: Shoal, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "SHOAL_LOCAL_INDEX", "CUDA_VISIBLE_DEVICES"]
    path = script(f"import os; print(*[os.environ.get(name, '-') for name in {names}])")
    environ = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": "5,7"}
    _, stdout, _ = outcome(shoal("-n", "auto", path, environ=environ))
    assert stdout == ["[0] - - 0 0 5", "[1] - - 0 1 7"]


def test_each_peer_has_a_log_of_its_own(shoal: Shoal, script: Script, tmp_path: Path) -> None:
    source = "import os, sys; print('out', os.environ['SHOAL_LOCAL_INDEX']); print('err', file=sys.stderr)"
    code, stdout, _ = outcome(shoal("-n", "2", "--log-dir", "logs/new", script(source)))
    assert (code, stdout) == (1, ["[0] out 0", "[1] out 1"])
    logs = {path.name: sorted(path.read_text().splitlines()) for path in (tmp_path / "logs/new").iterdir()}
    assert logs == {"peer-0.log": ["err", "out 0"], "peer-1.log": ["err", "out 1"]}


@pytest.mark.long
def test_quiet_is_silent_and_verbose_shows_the_log(shoal: Shoal, script: Script) -> None:
    path = script(training())
    assert outcome(shoal("-q", "-n", "2", path)) == (0, [], [])
    _, _, stderr = outcome(shoal("-v", "-n", "1", path, "-v"))
    assert any(re.match(r"\[0\] shoal: view 1: [0-9a-f]{16}", line) for line in stderr), stderr


@pytest.mark.long
def test_a_key_is_taken_from_a_descriptor_and_is_in_no_environment(shoal: Shoal, script: Script, key: Path) -> None:
    happening = "assert not any('shoal-key-1' in value for value in os.environ.values())"
    reader, writer = os.pipe()
    os.write(writer, key.read_bytes())
    os.close(writer)
    options = ["--bind", "127.0.0.1:0", "--key", f"fd:{reader}"]
    code, _, stderr = outcome(shoal("-n", "2", *options, script(training(happening)), pass_fds=[reader]))
    os.close(reader)
    assert code == 0, stderr
    code, _, stderr = outcome(
        shoal("--bind", "127.0.0.1:0", "--key", "env:POND", script(training()), environ={"POND": key.read_text()})
    )
    assert code == 0, stderr


def test_the_soft_limit_of_files_becomes_the_hard_one(shoal: Shoal, script: Script) -> None:
    source = "import resource; print(*resource.getrlimit(resource.RLIMIT_NOFILE))"
    limited = ["-c", f"ulimit -Sn 200; exec {sys.executable} -m p2p run -n 2 {script(source)}"]
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    code, stdout, stderr = outcome(shoal(program=limited, executable="/bin/sh"))
    assert (code, stdout, stderr) == (1, [f"[{i}] {hard} {hard}" for i in (0, 1)], [NOBODY])


def test_too_low_a_hard_limit_is_named(shoal: Shoal, script: Script) -> None:
    limited = ["-c", f"ulimit -n 280; exec {sys.executable} -m p2p run -n 2 {script('')}"]
    code, _, stderr = outcome(shoal(program=limited, executable="/bin/sh"))
    assert code == 1
    assert stderr == [
        "shoal: at most 280 files can be open here, and 2 peers may need 288: raise the hard limit "
        "(`ulimit -Hn 288`, or LimitNOFILE= of the service)",
        NOBODY,
    ]


@pytest.mark.parametrize(("limit", "number", "needed"), [(40, 2, 46), (64, 6, 98)])
def test_where_a_peer_cannot_open_what_it_needs_nothing_is_started(
    shoal: Shoal, script: Script, limit: int, number: int, needed: int
) -> None:
    limited = ["-c", f"ulimit -n {limit}; exec {sys.executable} -m p2p run -n {number} {script('')}"]
    code, stdout, stderr = outcome(shoal(program=limited, executable="/bin/sh"))
    said = (
        f"nothing was started: at most {limit} files can be open here, and each of {number} peers needs {needed}: "
        f"raise the hard limit (`ulimit -Hn {needed}`, or LimitNOFILE= of the service)"
    )
    assert (code, stdout, stderr) == (2, [], [f"shoal: {said}"])


def test_a_peer_that_cannot_open_what_it_needs_says_so_at_once(shoal: Shoal, script: Script) -> None:
    limited = ["-c", f"ulimit -n 40; exec {sys.executable} {script('import p2p; p2p.join()')}"]
    code, _, stderr = outcome(shoal(program=limited, executable="/bin/sh", environ={"SHOAL_MIN_PEERS": "6"}))
    assert code == 1 and len(stderr) == 2
    assert re.match(r"shoal: this peer cannot run: at most 40 files can be open here, and each of 6 peers", stderr[-1])


def as_limited_user(user_id: int, limit: int, *command: str) -> list[str]:
    """The command as a user with few threads, who may read all files: root has no such limit."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("there has to be another user, whom root becomes by setpriv")
    may = "+dac_override,+dac_read_search"
    user = ["setpriv", f"--reuid={user_id}", "--inh-caps", may, "--ambient-caps", may]
    return ["-c", shlex.join(["exec", *user, "prlimit", f"--nproc={limit}", *command])]


@pytest.mark.parametrize(
    ("program", "code", "said"),
    [
        (["-m", "p2p", "run", "-n", "2"], 2, "nothing was started: at most 12 threads can run here; 1 run, and 12"),
        ([], 1, "this peer cannot run: at most 4 threads can run here; 1 run, and 5"),
    ],
)
def test_where_too_few_threads_can_be_started_one_line_says_so(
    shoal: Shoal, script: Script, home: Path, program: list[str], code: int, said: str
) -> None:
    user_id = 54320 + code  # the threads of a user are counted together, and these cases run at once
    os.chown(home, user_id, -1)
    path = script("import p2p; p2p.join()")
    limited = as_limited_user(user_id, 12 if program else 4, sys.executable, *program, path)
    limit = rf"the limit of user {user_id} \(`ulimit -u \d+`, or LimitNPROC= of the service\)"
    alone = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    ended, stdout, (line,) = outcome(shoal(program=limited, executable="/bin/sh", environ=alone))
    assert (ended, stdout) == (code, []) and re.fullmatch(f"shoal: {said} more must start: raise {limit}", line), line


def test_the_version_is_the_same_everywhere(shoal: Shoal) -> None:
    assert outcome(shoal(program=["-m", "p2p", "--version"])) == (0, [f"shoal {p2p.__version__}"], [])
