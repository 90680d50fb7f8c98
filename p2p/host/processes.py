"""Processes as the kernel shows them in /proc, the identity of the kernel, and clock offsets. Linux only."""

import os
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final

from ..errors import RegistryError

STAT_BYTES: Final = 4096
"""Upper bound of the length of /proc/PID/stat."""


def read_host() -> str:
    """The identity of this host: 16 hex digits of a hash of the kernel's boot id and the pid namespace.

    Raises:
        RegistryError: /proc cannot be read, or is that of another pid namespace.
    """
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_bytes()
        namespace = os.stat("/proc/self/ns/pid").st_ino
        number = int(os.readlink("/proc/self"))
    except OSError as error:
        raise RegistryError(
            f"{error.filename} cannot be read ({error.strerror}), so peers cannot see whether others live: mount all "
            "of /proc"
        ) from error
    if number != os.getpid():
        raise RegistryError(
            f"this process is number {os.getpid()}, but {number} in /proc, which is that of another PID namespace: "
            "mount its own /proc (`unshare --mount-proc`)"
        )
    return blake2b(b"%b %d" % (boot_id.strip(), namespace), digest_size=8).hexdigest()


class UnknownOffsets(OSError):
    """This process and its next child are in different time namespaces: the kernel shows only the child's offsets."""


@dataclass(frozen=True, slots=True)
class Offsets:
    """The clock offsets of this process relative to its host, set by its time namespace.

    Attributes:
        monotonic_ns: of the clock for times in records.
        boottime_ns: of the clock for start times of processes.
    """

    monotonic_ns: int = 0
    boottime_ns: int = 0

    def __str__(self) -> str:
        return f"monotonic {self.monotonic_ns / 1e9:+g} s, boottime {self.boottime_ns / 1e9:+g} s"

    @property
    def ticks(self) -> int:
        """Offset of the start times of processes, in clock ticks, rounded down."""
        return self.boottime_ns * os.sysconf("SC_CLK_TCK") // 10**9


def read_offsets() -> Offsets:
    """Offsets of this process; zeros if the kernel has no time namespaces.

    Raises:
        UnknownOffsets: this process has unshared the time namespace of its children, so only theirs can be read.
    """
    try:
        text = Path("/proc/self/timens_offsets").read_text()
        own, childrens = (os.stat(f"/proc/self/ns/{name}").st_ino for name in ("time", "time_for_children"))
    except FileNotFoundError:
        return Offsets()
    if own != childrens:
        raise UnknownOffsets(f"its time namespace is {own}, that of its children {childrens}")
    return parse_offsets(text)


def parse_offsets(text: str) -> Offsets:
    """Parse /proc/PID/timens_offsets: a name, seconds and nanoseconds in each line."""
    values = {name: int(seconds) * 10**9 + int(ns) for name, seconds, ns in map(str.split, text.splitlines())}
    return Offsets(values["monotonic"], values["boottime"])


def usable_cores() -> frozenset[int]:
    """The cores that this process may use; all of the machine if that cannot be read."""
    try:
        return frozenset(os.sched_getaffinity(0))
    except OSError:  # denied by a seccomp filter
        return frozenset(range(os.cpu_count() or 1))


@dataclass(frozen=True, slots=True)
class Stat:
    """Fields of /proc/PID/stat.

    Attributes:
        state: one letter, as in ps: T is stopped, Z a zombie.
        flags: PF_* of the kernel.
        num_threads: of the process, including a leader that has ended.
        start: clock ticks from boot.
    """

    state: str
    flags: int
    num_threads: int
    start: int

    @property
    def has_ended(self) -> bool:
        """Whether no thread is left. A leader that ends before other threads is a zombie until these end."""
        return self.state == "X" or (self.state == "Z" and self.num_threads <= 1)


def parse_stat(text: bytes) -> Stat:
    """Parse /proc/PID/stat. Field 2, the program's name in parentheses, may contain blanks and parentheses."""
    state, *rest = text.rpartition(b")")[2].split()
    return Stat(state.decode(), int(rest[5]), int(rest[16]), int(rest[18]))


def process_start(pid: int) -> int | None:
    """Clock ticks from boot to the start of process `pid`; None if it has ended, reaped or not.

    Raises:
        OSError: the start cannot be read, say because no file can be opened.
    """
    found = look_at(pid)
    return None if found is None else found.start


def is_stopped(pid: int) -> bool:
    """Whether process `pid` is stopped, by SIGSTOP or Ctrl-Z. OSError as `process_start`."""
    found = look_at(pid)
    return found is not None and found.state == "T"


def stands_still(pid: int) -> bool:
    """Whether all threads of process `pid` are stopped, so that it runs no code until SIGCONT.

    A signal that stops a process reaches its threads one after the other. OSError as `process_start`.
    """
    before = _threads(pid)
    found = [look_at(tid) for tid in before]
    # A thread may start another one before it stops: proof requires the same threads before and after.
    return bool(before) and all(each is not None and each.state == "T" for each in found) and before == _threads(pid)


def _threads(pid: int) -> set[int]:
    try:
        return set(map(int, os.listdir(f"/proc/{pid}/task")))
    except (FileNotFoundError, ProcessLookupError):
        return set()


def look_at(pid: int) -> Stat | None:
    """Fields of /proc/PID/stat of process `pid`; None, and OSError, as `process_start`."""
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            found = parse_stat(os.read(fd, STAT_BYTES))
        finally:
            os.close(fd)
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if found.has_ended else found
