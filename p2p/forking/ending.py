"""The end of a fork: as that of a Python process, but without finalizing the modules that it was forked with.

At exit Python finalizes all modules, and torch each of its operators: that writes to, and so copies, most pages that
the forks share, and takes 0.2 s of a processor or more, ten times the cost of a fork otherwise.
"""

import atexit
import ctypes
import gc
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Final, NoReturn, TextIO

UNFLUSHED: Final = 120
"""The exit code of a Python process whose standard output could not be written to the end."""


def leave_at_end() -> None:
    """Disable the finalizers registered so far, for all forks: torch has one for each of its libraries."""
    for finalizer in weakref.finalize._registry:  # type: ignore[attr-defined]
        finalizer.atexit = False


def run_to_the_end(program: Callable[[], None]) -> NoReturn:
    """Run `program`, then end this process with the exit code or signal of an ordinary Python process."""
    libc = ctypes.CDLL(None)
    libc.on_exit(libc._exit, None)  # runs after later handlers of libraries, and before earlier ones
    shared = frozenset(sys.modules)
    code = _run(program)
    threading._shutdown()  # type: ignore[attr-defined]  # waits for all non-daemon threads
    atexit._run_exitfuncs()
    threading.excepthook = lambda error: None  # Python would have ended daemon threads by now
    gc.collect()
    for name in reversed([each for each in sys.modules if each not in shared]):
        if isinstance(module := sys.modules.pop(name), ModuleType):
            vars(module).clear()  # flushes files that were left open
    gc.collect()
    is_flushed = all([_flush(stream) for stream in (sys.stdout, sys.stderr)])
    if code == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    libc.exit(code & 0xFF if is_flushed else UNFLUSHED)
    os._exit(code & 0xFF)


def _run(program: Callable[[], None]) -> int:
    """Run `program`; return the exit code, or -N if signal N has to end the process."""
    try:
        program()
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)
        return 1
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _flush(stream: TextIO | None) -> bool:
    """Flush a stream; return whether that succeeded."""
    try:
        if stream is not None and not stream.closed:
            stream.flush()
    except (OSError, ValueError):
        return False
    return True
