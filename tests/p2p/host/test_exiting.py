"""Proof that a process runs no code any more, and cases without proof."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from p2p.host.exiting import Threads
from p2p.host.processes import process_start


@contextmanager
def program(source: str) -> Iterator[subprocess.Popen[str]]:
    """A Python process that has printed `here`; it is killed at the end."""
    with subprocess.Popen(
        [sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "here\n"
            yield process
        finally:
            process.kill()


def threads_of(pid: int) -> Threads:
    start = process_start(pid)
    assert start is not None
    threads = Threads.open(pid, start)
    assert threads is not None
    return threads


def wait_for_end(process: subprocess.Popen[str]) -> None:
    """Wait for the end of a process without reaping it."""
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


WAITS = "import sys; print('here', flush=True); sys.stdin.read()"

WITH_THREADS = f"""
import threading
hold = threading.Event()
for _ in range(5):
    threading.Thread(target=hold.wait, daemon=True).start()
{WAITS}
"""


def test_a_process_that_was_killed_is_exiting_with_all_its_threads() -> None:
    with program(WITH_THREADS) as process:
        threads = threads_of(process.pid)
        assert not threads.are_exiting()
        process.kill()
        while not threads.are_exiting():
            pass
        wait_for_end(process)
        assert threads.are_exiting(), "until it is reaped"
        threads.close()


@pytest.mark.parametrize("number", [signal.SIGSTOP, None], ids=["stopped", "running"])
def test_a_process_that_lives_is_not_exiting(number: signal.Signals | None) -> None:
    with program(WAITS) as process:
        threads = threads_of(process.pid)
        if number is not None:
            process.send_signal(number)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        assert not threads.are_exiting()
        threads.close()


LEADER_ENDS = """
import ctypes, sys, threading
leader = threading.main_thread().native_id
def work():
    while open(f"/proc/self/task/{leader}/stat").read().rpartition(")")[2].split()[0] != "Z":
        pass
    print("here", flush=True)
    sys.stdin.read()
threading.Thread(target=work).start()
ctypes.CDLL(None).syscall(60, 0)  # exit of this thread alone
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the number of the system call exit is that of x86_64")
def test_a_process_whose_first_thread_has_ended_lives_while_another_one_runs() -> None:
    with program(LEADER_ENDS) as process:
        threads = threads_of(process.pid)
        assert process_start(process.pid) is not None, "a zombie, but only its first thread"
        assert not threads.are_exiting()
        process.kill()
        wait_for_end(process)
        assert process_start(process.pid) is None
        threads.close()


CHAIN = """
import ctypes, sys, threading
def link(number):
    if number == 300:
        print("here", flush=True)
    if number < 300 or not is_over.is_set():
        threading.Thread(target=link, args=[number + 1]).start()
is_over = threading.Event()
threading.Thread(target=link, args=[0]).start()
sys.stdin.read()
is_over.set()
"""


def test_threads_that_start_others_and_end_are_no_proof() -> None:
    with program(CHAIN) as process:
        threads = threads_of(process.pid)
        assert not any(threads.are_exiting() for _ in range(2000))
        process.communicate()
        threads.close()


def test_who_is_traced_at_its_exit_gives_no_proof_until_it_goes_on() -> None:
    """PTRACE_O_TRACEEXIT stops a process during its exit, before the kernel marks it as exiting."""
    with program(WAITS) as process:
        threads = threads_of(process.pid)
        source = f"""
import ctypes, os, sys
ptrace = ctypes.CDLL(None, use_errno=True).ptrace
ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
SEIZE, TRACEEXIT, CONT = 0x4206, 0x40, 7
if ptrace(SEIZE, {process.pid}, None, TRACEEXIT) != 0:
    print("cannot", os.strerror(ctypes.get_errno()), flush=True)
    sys.exit()
print("here", flush=True)
while True:
    _, status = os.waitpid({process.pid}, 0x40000000)  # __WALL
    if status >> 16 == 6:  # PTRACE_EVENT_EXIT
        break
    ptrace(CONT, {process.pid}, None, os.WSTOPSIG(status))  # the signal is delivered
print("stopped", flush=True)
sys.stdin.readline()
ptrace(CONT, {process.pid}, None, None)
os.waitpid({process.pid}, 0x40000000)
"""
        with subprocess.Popen(
            [sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as tracer:
            assert tracer.stdout is not None
            line = tracer.stdout.readline()
            if line.startswith("cannot"):
                pytest.skip(f"no process may be traced here: {line}")
            process.send_signal(signal.SIGTERM)
            assert tracer.stdout.readline() == "stopped\n"
            assert not threads.are_exiting()
            tracer.communicate("\n")
        process.wait()
        threads.close()


def test_a_handle_is_of_one_process_whoever_gets_its_pid() -> None:
    with program(WAITS) as process:
        start = process_start(process.pid)
        assert start is not None
        assert Threads.open(process.pid, start + 1) is None, "another process, that started later"
        threads = threads_of(process.pid)
        process.kill()
        process.wait()
        assert not threads.are_exiting(), "it was reaped, and its pid may be that of another process"
        assert Threads.open(process.pid, start) is None
        threads.close()
