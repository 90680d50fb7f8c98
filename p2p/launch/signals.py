"""Signals for a launcher: received as bytes from a socket; names; handlers of other processes."""

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType


@contextmanager
def signals_to_socket() -> Iterator[socket.socket]:
    """Receive the signals that a launcher handles as bytes from the yielded socket, until the end of `with`."""
    numbers = [signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup says that it must not matter
        numbers.append(signal.SIGHUP)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        wakeup_before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        handlers_before = {number: signal.signal(number, ignore) for number in numbers}
        blocked_before = signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)  # the parent may have blocked them
        try:
            yield ours
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked_before)
            for number, handler in handlers_before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(wakeup_before)


def ignore(number: int, frame: FrameType | None) -> None:
    """Do nothing; without a handler, no byte is written for a signal."""


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def catches(pid: int, number: int) -> bool:
    """Whether process `pid` has a handler for signal `number`; without one most signals would end it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)
