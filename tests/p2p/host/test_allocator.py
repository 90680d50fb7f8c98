import subprocess
import sys

import pytest

from p2p.host.allocator import KEEPS_MEMORY, keep_memory

FAULTS = """
import ctypes, resource, sys
from p2p.host.allocator import keep_memory
if sys.argv[1] == "kept":
    assert keep_memory({})
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
for turn in range(6):
    if turn == 2:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [libc.malloc(1 << 20) for _ in range(16)]
    for block in blocks:
        ctypes.memset(block, 1, 1 << 20)
    for block in blocks:
        libc.free(block)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults_of(how: str) -> int:
    """Page faults of four turns, in each of which 16 MiB are allocated, written and freed."""
    command = [sys.executable, "-c", FAULTS, how]
    return int(subprocess.run(command, check=True, stdout=subprocess.PIPE, env={"PATH": ""}).stdout)


def test_freed_memory_is_not_faulted_in_again() -> None:
    assert faults_of("kept") < 4 * 16 < 4 * 16 * 256 // 2 < faults_of("as it is")


@pytest.mark.parametrize(
    "environ", [{name: "1"} for name in KEEPS_MEMORY] + [{"GLIBC_TUNABLES": "glibc.malloc.check=1"}]
)
def test_what_a_user_says_of_malloc_stands(environ: dict[str, str]) -> None:
    assert not keep_memory(environ)
