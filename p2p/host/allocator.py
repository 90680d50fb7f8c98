"""What glibc's malloc does with large blocks that are freed.

Left to itself it gives the memory of each large frame back to the system, and faults it in again for the next: a tenth
of the time of a 16 MB all-reduce.
"""

import ctypes
from collections.abc import Mapping
from typing import Final

_KEPT: Final = {"MALLOC_MMAP_THRESHOLD_": (-3, 32 << 20), "MALLOC_TRIM_THRESHOLD_": (-1, 256 << 20)}
"""By variable of the environment: the parameter of `mallopt`, and its value."""

KEEPS_MEMORY: Final = {name: str(value) for name, (_, value) in _KEPT.items()}
"""In the environment of a process, from its start on."""


def keep_memory(environ: Mapping[str, str]) -> bool:
    """The same for this process, from now on; whether it is so. What `environ` says of malloc stands."""
    if any(name in environ for name in _KEPT) or "glibc.malloc" in environ.get("GLIBC_TUNABLES", ""):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all([mallopt(parameter, value) for parameter, value in _KEPT.values()])
