"""Stack traces of all threads of this process, printed on a signal.

faulthandler can do that inside the signal handler, whatever the process is doing, but sometimes crashes it: it reads
frames that other threads, or the interrupted one, are changing. So a dedicated thread does it while holding the
interpreter lock, woken through a pipe by the interpreter's own C handler. It also works while the main thread is stuck
in C code that does not hold the lock.
"""

import faulthandler
import os
import signal
import threading
from types import FrameType
from typing import TextIO


def show_on_sigusr1(file: TextIO) -> bool:
    """Print the stacks into `file` at each SIGUSR1 from now on. Call this in the main thread.

    Returns:
        False: the wakeup descriptor is taken, by asyncio say, or no thread can be started; without effect.
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
        """Needed, or the interpreter's C handler would not be called."""

    os.register_at_fork(after_in_child=be_silent)  # it has the pipe but not the thread, and would wake its parent
    signal.signal(signal.SIGUSR1, heard_of)
    return True


def _starts(thread: threading.Thread) -> bool:
    try:
        thread.start()
    except RuntimeError:  # too many threads
        return False
    return True


def _show(said: int, file: TextIO) -> None:
    while numbers := os.read(said, 4096):
        if signal.SIGUSR1 in numbers:
            faulthandler.dump_traceback(file, all_threads=True)
