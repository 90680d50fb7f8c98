"""`python -m tests.live.denied NAME,NAME COMMAND`: runs a command with these system calls denied."""

import ctypes
import errno
import os
import platform
import struct
import sys
from typing import Final

NUMBERS: Final = {
    "x86_64": {"memfd_create": 319, "sched_getaffinity": 204},
    "aarch64": {"memfd_create": 279, "sched_getaffinity": 123},
}

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
"""From <linux/prctl.h> and <linux/seccomp.h>."""


def deny(number: int) -> None:
    """Deny a system call to this process and its children, by EPERM."""
    load, jump, leave = 0x20, 0x15, 0x06
    lines = [(load, 0, 0, 0), (jump, 0, 1, number), (leave, 0, 0, 0x50000 | errno.EPERM), (leave, 0, 0, 0x7FFF0000)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in lines))
    whole = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(lines), ctypes.addressof(program)))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, whole, 0, 0):
        raise OSError(ctypes.get_errno(), "no filter of system calls can be set")


if __name__ == "__main__":
    for name in sys.argv[1].split(","):
        deny(NUMBERS[platform.machine()][name])
    os.execv(sys.argv[2], sys.argv[2:])
