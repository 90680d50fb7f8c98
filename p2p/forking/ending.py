"""How a fork ends: as a Python process does, but what it was forked with is left as it is.

Python takes all modules apart at its end, and torch each of its operators: that writes to, and so copies, most pages
of what all forks share, and takes 0.2 s of a processor and more, ten times what a fork costs otherwise.
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
    """No fork runs, at its end, finalizers of what there is so far: torch has one for each of its libraries."""
    for finalizer in weakref.finalize._registry:  # type: ignore[attr-defined]
        finalizer.atexit = False


def run_to_the_end(program: Callable[[], None]) -> NoReturn:
    """Run `program`; then end this process with the exit code, or by the signal, that a Python process would have."""
    libc = ctypes.CDLL(None)
    libc.on_exit(libc._exit, None)  # behind what libraries have registered since, in front of what they had before
    shared = frozenset(sys.modules)
    code = _run(program)
    threading._shutdown()  # type: ignore[attr-defined]  # waits for all threads that are no daemons
    atexit._run_exitfuncs()
    threading.excepthook = lambda error: None  # Python would have ended daemons by now
    gc.collect()
    for name in reversed([each for each in sys.modules if each not in shared]):
        if isinstance(module := sys.modules.pop(name), ModuleType):
            vars(module).clear()  # files that nobody has closed are written
    gc.collect()
    is_flushed = all([_flush(stream) for stream in (sys.stdout, sys.stderr)])
    if code == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    libc.exit(code & 0xFF if is_flushed else UNFLUSHED)
    os._exit(code & 0xFF)


def _run(program: Callable[[], None]) -> int:
    """The exit code; -N where signal N ends it."""
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
    """Whether all that was printed is written."""
    try:
        if stream is not None and not stream.closed:
            stream.flush()
    except (OSError, ValueError):
        return False
    return True
