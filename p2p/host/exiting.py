"""Early detection of a process's death, by the flag PF_EXITING of its threads. Linux only.

The kernel marks the threads of a killed process as exiting (PF_EXITING), then frees its memory, files and devices, and
only then turns it into a zombie, whose pidfd is readable: with gigabytes of memory, or a GPU, tenths of a second later.
After the mark no thread returns to user space, so all writes of the process are final.
"""

import os
from typing import Final, Self

from .processes import parse_stat, process_start

PF_EXITING: Final = 0x4
"""Linux, include/linux/sched.h."""


class Threads:
    """The threads of one process, by a handle that stays with this process even if its pid is reused."""

    def __init__(self, pid: int, task_fd: int, start: int) -> None:
        self._pid = pid
        self._task_fd = task_fd
        self._start = start

    @classmethod
    def open(cls, pid: int, start: int) -> Self | None:
        """Threads of the process `pid` that started at `start` (clock ticks from boot); None: gone, or no access."""
        try:
            threads = cls(pid, os.open(f"/proc/{pid}/task", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), start)
        except OSError:
            return None
        if threads._flags_of(pid) is None:
            threads.close()
            return None
        return threads

    def are_exiting(self) -> bool:
        """Whether no thread will ever run code of the process again, which is proof of its death.

        Reads the flags of one thread while the process lives, some 15 us, and those of all once the first one exits.
        False if a thread has not reached its end yet, since it is traced, dumps core or hangs in a driver; if the
        process has been reaped; and if the kernel shows no flags. In these cases wait for the end of the process.
        """
        if not self._is_exiting(self._pid):
            return False
        try:
            before = os.listdir(self._task_fd)
            # A thread may start another one and end: proof requires the same threads before and after.
            return all(self._is_exiting(int(tid)) for tid in before) and sorted(os.listdir(self._task_fd)) == sorted(
                before
            )
        except OSError:
            return False

    def _is_exiting(self, tid: int) -> bool:
        flags = self._flags_of(tid)
        return flags is not None and bool(flags & PF_EXITING)

    def _flags_of(self, tid: int) -> int | None:
        """PF_* flags of a thread; None: no such thread, or it belongs to a process with another start time."""
        try:
            fd = os.open(f"{tid}/stat", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._task_fd)
        except OSError:
            return None
        try:
            fields = parse_stat(os.read(fd, 4096))
        except OSError:
            return None
        finally:
            os.close(fd)
        is_other = tid == self._pid and fields.start != self._start
        return None if is_other else fields.flags

    def close(self) -> None:
        os.close(self._task_fd)


def lives(pid: int, start: int) -> bool:
    """Whether the process `pid` that started at `start` may still run its code. OSError as `process_start`."""
    if process_start(pid) != start:
        return False
    threads = Threads.open(pid, start)
    if threads is None:
        return process_start(pid) == start
    try:
        return not threads.are_exiting()
    finally:
        threads.close()
