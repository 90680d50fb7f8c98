"""Signals as a launcher has them: bytes of a socket, and names."""

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def signals_to_socket() -> Iterator[socket.socket]:
    """Until the end of `with`, the signals that matter to a launcher arrive as bytes of this socket."""
    numbers = [signal.SIGCHLD, signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup says that it must not matter
        numbers.append(signal.SIGHUP)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        wakeup_before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        handlers_before = {number: signal.signal(number, ignore) for number in numbers}
        try:
            yield ours
        finally:
            for number, handler in handlers_before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(wakeup_before)


def ignore(number: int, frame: FrameType | None) -> None:
    """Do nothing; a signal needs a handler for its byte to be written."""


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
