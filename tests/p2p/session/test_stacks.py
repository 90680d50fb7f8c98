import subprocess
import sys

NUM_DUMPS = 60
BUSY = """
import os, signal, sys, threading
from p2p.session.stacks import show_on_sigusr1

def deep(depth):
    return depth and deep(depth - 1) + 1

def run():
    while True:
        deep(30)

def ask():
    while True:  # signals that come faster than they are answered are one
        os.kill(os.getpid(), signal.SIGUSR1)

assert show_on_sigusr1(sys.__stderr__)
for _ in range(2):
    threading.Thread(target=run, daemon=True).start()
threading.Thread(target=ask, daemon=True).start()
while True:
    deep(30)
"""
STUCK = """
import ctypes, os, signal, sys, threading
from p2p.session.stacks import show_on_sigusr1

def stuck_in_foreign_code():
    threading.Thread(target=os.kill, args=[os.getpid(), signal.SIGUSR1]).start()
    pause = ctypes.CDLL(None).pause
    while True:
        pause()

assert show_on_sigusr1(sys.__stderr__)
stuck_in_foreign_code()
"""
TOLD = """
import os, signal, sys
from p2p.session.stacks import show_on_sigusr1

said, heard = os.pipe()
os.set_blocking(heard, False)
signal.set_wakeup_fd(heard)
before = signal.getsignal(signal.SIGUSR1)
assert not show_on_sigusr1(sys.__stderr__)
assert signal.getsignal(signal.SIGUSR1) is before and signal.set_wakeup_fd(-1) == heard
"""


def expect(script: str, *texts: str, num_dumps: int = 1) -> None:
    """Run a script until it has dumped its stacks `num_dumps` times, with all `texts`; it must still be alive."""
    with subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            wanted = set(texts)
            for line in process.stderr:
                wanted -= {text for text in wanted if text in line}
                num_dumps -= line.startswith("Current thread")
                if not wanted and num_dumps <= 0:
                    break
            assert not wanted and process.poll() is None, f"exit code {process.wait()}, never printed {wanted}"
        finally:
            process.kill()


def test_who_is_asked_where_it_is_survives_it_while_other_threads_run() -> None:
    """A dump within the signal's handler would kill the process in one of some hundred cases."""
    expect(BUSY, "in deep", "in run", num_dumps=NUM_DUMPS)


def test_who_is_stuck_in_foreign_code_is_shown_as_well() -> None:
    expect(STUCK, "in stuck_in_foreign_code")


def test_who_is_told_of_signals_already_stays_so() -> None:
    assert subprocess.run([sys.executable, "-c", TOLD], timeout=60, check=False).returncode == 0
