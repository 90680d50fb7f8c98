"""What the processor makes of numbers near zero: a setting of each thread.

A script may have it take them for zero (torch's `set_flush_denormal`; so does a library that was compiled for speed
alone, as it is loaded). A thread has the setting of the one that starts it.
"""

import ctypes
from functools import cache
from typing import Final

Settings = ctypes.Array[ctypes.c_byte]

_LEAST: Final = 5e-324
_AS_AT_START: Final = ctypes.c_void_p(-1)
"""FE_DFL_ENV, of glibc and of musl."""
_MOST_BYTES: Final = 64
"""Of `fenv_t`, of any processor."""


def keep_subnormals() -> Settings | None:
    """From now on the calling thread computes as IEEE 754 has it. What was set before; None: nothing else."""
    if _LEAST + _LEAST > 0:  # 0.0 where what goes in, or what comes out, is taken for zero
        return None
    before = (ctypes.c_byte * _MOST_BYTES)()
    _libm().fegetenv(before)
    _libm().fesetenv(_AS_AT_START)
    return before


def restore(before: Settings) -> None:
    """The calling thread computes as `keep_subnormals` has found it."""
    _libm().fesetenv(before)


@cache
def _libm() -> ctypes.CDLL:
    return ctypes.CDLL(None)
