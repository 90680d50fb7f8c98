"""Where all threads of this process are, printed when a signal asks for it.

faulthandler can do that inside the signal's handler, whatever the process is busy with, and kills it now and then: it
looks at frames that other threads, or the one that it has interrupted, are about to change. So a thread of its own does
it, holding the interpreter lock, and is told by the interpreter's own C handler through a pipe. It also speaks
while the main thread is stuck in somebody's C code, if that does not hold the lock.
"""

import faulthandler
import os
import signal
import threading
from types import FrameType
from typing import TextIO


def show_on_sigusr1(file: TextIO) -> bool:
    """Print them into `file` from now on, at each SIGUSR1. For the main thread.

    Returns:
        False: somebody else is told of signals, asyncio say, or no thread can be started; nothing has changed.
    """
    said, heard = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(heard, False)
    known = signal.set_wakeup_fd(heard, warn_on_full_buffer=False)
    thread = threading.Thread(target=_show, args=(said, file), name="shoal-stacks", daemon=True)
    if known != -1 or not _starts(thread):
        signal.set_wakeup_fd(known)
        os.close(said)
        os.close(heard)
        return False

    def be_silent() -> None:
        if signal.getsignal(signal.SIGUSR1) is heard_of:
            signal.signal(signal.SIGUSR1, signal.SIG_DFL)
        if (fd := signal.set_wakeup_fd(-1)) != heard:
            signal.set_wakeup_fd(fd)

    def heard_of(_: int, __: FrameType | None) -> None:
        """Or the interpreter's handler would not be called."""

    os.register_at_fork(after_in_child=be_silent)  # it has the pipe and not the thread, and would ask its parent
    signal.signal(signal.SIGUSR1, heard_of)
    return True


def _starts(thread: threading.Thread) -> bool:
    try:
        thread.start()
    except RuntimeError:  # there are too many
        return False
    return True


def _show(said: int, file: TextIO) -> None:
    while numbers := os.read(said, 4096):
        if signal.SIGUSR1 in numbers:
            faulthandler.dump_traceback(file, all_threads=True)
