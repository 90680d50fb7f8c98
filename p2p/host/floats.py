"""Subnormal numbers: whether the processor flushes them to zero is a setting of each thread.

A script may turn flushing on (`torch.set_flush_denormal`; some libraries compiled for speed do it as they are loaded).
A thread inherits the setting of the thread that starts it.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Final

Settings = ctypes.Array[ctypes.c_byte]

_LEAST: Final = 5e-324
_AS_AT_START: Final = ctypes.c_void_p(-1)
"""FE_DFL_ENV, of glibc and of musl."""
_MOST_BYTES: Final = 64
"""At least the size of `fenv_t` on any processor."""


def keep_subnormals() -> Settings | None:
    """Let the calling thread compute as IEEE 754 defines. Returns the settings before, or None if they were these."""
    if _LEAST + _LEAST > 0:  # 0.0 if inputs or results are flushed
        return None
    before = (ctypes.c_byte * _MOST_BYTES)()
    _libm().fegetenv(before)
    _libm().fesetenv(_AS_AT_START)
    return before


def restore(before: Settings) -> None:
    """Restore the settings that `keep_subnormals` returned."""
    _libm().fesetenv(before)


@contextmanager
def subnormals_kept() -> Iterator[None]:
    """A block in which the calling thread computes as IEEE 754 defines."""
    before = keep_subnormals()
    try:
        yield
    finally:
        if before is not None:
            restore(before)


@cache
def _libm() -> ctypes.CDLL:
    return ctypes.CDLL(None)
