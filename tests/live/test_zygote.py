"""Forked peers are ordinary processes: each has its own session, output, environment, random state and exit."""

import json
import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bench.here import environment
from p2p.forking.zygote import Child, Zygote
from p2p.host.processes import process_start
from tests.live.swarm import WITHOUT_TORCH

pytestmark = pytest.mark.light

HANG_S = 20.0

DESCRIBE = """
import atexit, json, os, random, signal, sys, threading
from neighbour import WORD
assert __name__ == "__main__" and sys.modules["__main__"].WORD == "found"
print(json.dumps({
    "arguments": sys.argv[1:],
    "environ": dict(os.environ),
    "fds": sorted(int(fd) for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")),
    "leads": os.getsid(0) == os.getpid(),
    "random": random.getrandbits(64),
    "stdin": sys.stdin.read(),
    "tasks": len(os.listdir("/proc/self/task")),
    "handlers": [signal.getsignal(number) is signal.SIG_DFL for number in (signal.SIGTERM, signal.SIGCHLD)],
    "has_torch": "torch" in sys.modules,
}), flush=True)
threading.Thread(target=lambda: print("a thread of its own")).start()
atexit.register(lambda: print("at exit"))
print("said", file=sys.stderr)
sys.exit(7)
"""

WAIT = """
import os, signal
os.write(1, b"here\\n")  # at one go: several write to one pipe
while True:
    signal.pause()
"""


class Output:
    """The stdout and stderr of one process, in files."""

    def __init__(self, folder: Path, source: str, name: str = "script") -> None:
        self.script = folder / f"{name}.py"
        self.script.write_text(source)
        self.stdout, self.stderr = folder / f"{name}.out", folder / f"{name}.err"

    def start(self, zygote: Zygote, *arguments: str, **environ: str) -> Child:
        with self.stdout.open("wb") as out, self.stderr.open("wb") as err:
            return zygote.start(self.script, arguments, environ, out.fileno(), err.fileno())


@pytest.mark.parametrize("kind", ["zygote", "torch_zygote"])
def test_a_fork_runs_a_script_as_a_program_of_its_own(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    zygote: Zygote = request.getfixturevalue(kind)
    (tmp_path / "neighbour.py").write_text("WORD = 'found'\n")
    outputs = [Output(tmp_path, DESCRIBE, name) for name in ("first", "second")]
    children = [output.start(zygote, "a", "b c", ONLY="this") for output in outputs]
    assert [child.wait(HANG_S) for child in children] == [7, 7], outputs[0].stderr.read_text()
    texts = [output.stdout.read_text().splitlines() for output in outputs]
    first, second = (json.loads(lines[0]) for lines in texts)
    assert [lines[1:] for lines in texts] == [["a thread of its own", "at exit"]] * 2
    assert outputs[0].stderr.read_text() == "said\n"
    assert first.pop("random") != second.pop("random")
    assert (
        first
        == second
        == {
            "arguments": ["a", "b c"],
            "environ": {"ONLY": "this"},
            "fds": [0, 1, 2],
            "leads": True,
            "stdin": "",
            "tasks": 1,
            "handlers": [True, True],
            "has_torch": kind == "torch_zygote",
        }
    )


def test_signals_reach_a_fork_and_its_end_is_told(zygote: Zygote, tmp_path: Path) -> None:
    source, sink = os.pipe()
    script = Output(tmp_path, WAIT).script
    with open(source, "rb") as stdout, open(sink, "wb") as ours, open(os.devnull, "wb") as stderr:
        children = [zygote.start(script, (), {}, sink, stderr.fileno()) for _ in range(3)]
        assert [stdout.readline() for _ in children] == [b"here\n"] * 3
        assert all(child.poll() is None and process_start(child.pid) is not None for child in children)
        for child, number in zip(children, (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL), strict=True):
            child.send_signal(signal.SIGSTOP)
            child.send_signal(signal.SIGCONT)
            child.send_signal(number)
        assert [child.wait(HANG_S) for child in children] == [-signal.SIGKILL, -signal.SIGTERM, -signal.SIGKILL]
        ours.close()
        assert stdout.read() == b""
    assert [process_start(child.pid) for child in children] == [None] * 3
    children[0].kill()  # an ended child is not signalled, even if another process has its pid by now


def test_who_does_not_end_in_time_is_named(zygote: Zygote, tmp_path: Path) -> None:
    child = Output(tmp_path, WAIT).start(zygote)
    with pytest.raises(subprocess.TimeoutExpired, match=f"pid {child.pid}"):
        child.wait(0.01)
    child.kill()
    assert child.wait(HANG_S) == -signal.SIGKILL


def test_a_script_that_raises_says_so_and_ends_with_1(zygote: Zygote, tmp_path: Path) -> None:
    output = Output(tmp_path, "raise ValueError('what now')")
    assert output.start(zygote).wait(HANG_S) == 1
    assert output.stderr.read_text().splitlines()[-1] == "ValueError: what now"


ENDS = {
    "a number": "import sys\nsys.exit(300)",
    "a text": "import sys\nsys.exit('what now')",
    "nothing": "raise SystemExit",
    "an error": "import sys\nprint('before')\nraise ValueError('what now')",
    "an interruption": "raise KeyboardInterrupt",
    "a hook for errors": "import sys\nsys.excepthook = lambda *error: print('hook', error[1])\n1 / 0",
    "a file that nobody closes": "import log\nprint('to a file', file=log.FILE)",
    "finalizers": "import weakref, log\nlog.cycle()\nweakref.finalize(log, print, 'finalized')",
    "a thread that goes on": """
import atexit, threading
gate = threading.Event()
atexit.register(print, 'at exit')
threading.Thread(target=lambda: (threading.main_thread().join(), print('the last thread'))).start()
threading.Thread(target=gate.wait, daemon=True).start()
""",
    "an output that is closed": "import os, sys\nprint('lost')\nos.close(1)",
}
LOG = """
from pathlib import Path
FILE = Path(__file__).with_name("written").open("a")

class Cycle:
    def __del__(self):
        print("collected")

def cycle():
    each = Cycle()
    each.own = each
"""


@pytest.mark.parametrize("how", ENDS)
def test_a_fork_ends_as_a_process_does(zygote: Zygote, tmp_path: Path, how: str) -> None:
    (tmp_path / "log.py").write_text(LOG)
    output = Output(tmp_path, ENDS[how])
    code = output.start(zygote).wait(HANG_S)
    alone = subprocess.run([sys.executable, output.script], capture_output=True, text=True, timeout=HANG_S, check=False)
    assert (code, output.stdout.read_text()) == (alone.returncode, alone.stdout)
    last, last_alone = (text.splitlines()[-1:] for text in (output.stderr.read_text(), alone.stderr))
    assert how == "an output that is closed" or last == last_alone
    assert how != "a file that nobody closes" or (tmp_path / "written").read_text() == "to a file\n" * 2


def test_a_fork_can_be_interrupted_although_a_shell_has_started_the_zygote_in_the_background(tmp_path: Path) -> None:
    """Such a shell makes it ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        zygote = Zygote(environment(), WITHOUT_TORCH)
    finally:
        signal.signal(signal.SIGINT, before)
    with zygote:
        child = Output(tmp_path, "import signal\nsignal.raise_signal(signal.SIGINT)").start(zygote)
        assert child.wait(HANG_S) == -signal.SIGINT


def test_libraries_that_would_start_threads_as_they_are_imported_do_not(tmp_path: Path) -> None:
    """numpy's BLAS would, if it may have several."""
    with Zygote({**environment(), "OMP_NUM_THREADS": "4", "MKL_NUM_THREADS": "4"}, WITHOUT_TORCH) as zygote:
        output = Output(tmp_path, "import os\nprint(os.environ)\n")
        assert output.start(zygote, OMP_NUM_THREADS="4").wait(HANG_S) == 0
        assert "OPENBLAS" not in output.stdout.read_text()


REQUESTER = """
import os, sys
from pathlib import Path
from bench.here import environment
from p2p.forking.zygote import Zygote
zygote = Zygote(environment(), ["p2p.joining"])
print(*[zygote.start(Path(sys.argv[1]), (), {}, 1, 2).pid for _ in range(2)], flush=True)
if "close" in sys.argv:
    zygote.close()
else:
    os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("how", ["close", "die"])
def test_no_fork_outlives_the_zygote_or_who_made_it(tmp_path: Path, how: str) -> None:
    output = Output(tmp_path, WAIT)
    command = [sys.executable, "-c", REQUESTER, str(output.script), how]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=HANG_S, check=False)
    pids = set(map(int, re.findall(r"\d+", done.stdout)))
    assert done.returncode == (0 if how == "close" else -signal.SIGKILL) and len(pids) == 2
    assert all(has_ended(pid) for pid in pids)


def has_ended(pid: int) -> bool:
    """Whether `pid` ends in time; its output is closed a moment before."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    with open(fd, "rb") as handle:
        return bool(select.select([handle], [], [], HANG_S)[0])


WAITS_FOR_THE_END = """
import os, select, signal, sys
os.kill(os.getppid(), signal.SIGUSR1)
poll = select.poll()
poll.register(int(sys.argv[1]), select.POLLHUP)
poll.poll()
"""


def test_an_interrupt_while_modules_are_imported_ends_the_zygote_without_a_word(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "slow.py").write_text(WAITS_FOR_THE_END)
    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            Zygote(
                {**environment(), "PYTHONPATH": os.pathsep.join((environment()["PYTHONPATH"], str(tmp_path)))}, ["slow"]
            )
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert capfd.readouterr().err == ""
