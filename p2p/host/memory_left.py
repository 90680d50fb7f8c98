"""The memory that a peer could allocate now, and its limit: this machine, or a cgroup of the process.

Supports both versions of cgroups(7). The page cache of a group counts as free, since the kernel drops it before it
kills a process, and counts it that way for the machine. Leaves out: swap, and huge pages.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

CGROUPS: Final = Path("/sys/fs/cgroup")
MACHINE: Final = "this machine"

NO_LIMIT: Final = 1 << 60
"""Version 1 expresses "no limit" by a number above any machine's memory."""


@dataclass(frozen=True, slots=True)
class MemoryLeft:
    """Memory that a peer could allocate.

    Attributes:
        num_bytes: how much, without swapping or an out-of-memory kill.
        limited_by: `MACHINE`, or the file with the limit of a cgroup.
    """

    num_bytes: int
    limited_by: str


@dataclass(frozen=True, slots=True)
class GroupLimit:
    """The memory limit of one cgroup.

    Attributes:
        file: holds the limit of all processes in the group.
        usage: holds their current usage.
        of_files: the fields of `memory.stat` that count page cache.
    """

    file: Path
    usage: Path
    of_files: tuple[str, ...]

    def max_bytes(self) -> int | None:
        """The limit; None: unlimited, or not readable."""
        try:
            text = self.file.read_text().strip()
        except OSError:
            return None
        return int(text) if text != "max" and int(text) < NO_LIMIT else None

    def left(self) -> MemoryLeft | None:
        """The memory left under this limit; None: the limit was removed."""
        most = self.max_bytes()
        try:
            used = int(self.usage.read_text())
        except OSError:
            return None
        return None if most is None else MemoryLeft(max(0, most - used + self._files_bytes()), str(self.file))

    def _files_bytes(self) -> int:
        try:
            fields = dict(line.split() for line in self.file.with_name("memory.stat").read_text().splitlines())
        except OSError:
            return 0
        return sum(int(fields.get(name, 0)) for name in self.of_files)


def memory_left() -> MemoryLeft:
    """Memory that a peer could allocate now.

    The groups with limits are found at the first call in a process: a limit that is added later is not seen.

    Raises:
        OSError: /proc is missing.
    """
    found = [each.left() for each in _own_limits(os.getpid())]
    of_machine = MemoryLeft(available_bytes(), MACHINE)
    return min((each for each in (of_machine, *found) if each is not None), key=lambda each: each.num_bytes)


def memory_bytes() -> int:
    """The number of bytes of `memory_left`."""
    return memory_left().num_bytes


def available_bytes() -> int:
    """Memory that this machine could provide without swapping."""
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(fields["MemAvailable"].split()[0]) * 1024


def group_limits(groups: str, root: Path = CGROUPS) -> list[GroupLimit]:
    """Limits of the cgroups of a process and of their ancestors, as far as they have one.

    `groups`: as listed in /proc/PID/cgroup. In a container a group may lie at `root` itself, although it is listed
    with its path outside.
    """
    return [each for each in _all_around(groups, root) if each.max_bytes() is not None]


def _all_around(groups: str, root: Path) -> Iterator[GroupLimit]:
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            for mounted in (root, root / "unified"):
                for folder in group_folders(mounted, path):
                    for name in ("memory.max", "memory.high"):
                        yield GroupLimit(folder / name, folder / "memory.current", ("inactive_file", "active_file"))
        elif "memory" in controllers.split(","):
            for folder in group_folders(root / "memory", path):
                of_files = "total_inactive_file", "total_active_file"
                yield GroupLimit(folder / "memory.limit_in_bytes", folder / "memory.usage_in_bytes", of_files)


def group_folders(mounted: Path, path: str) -> list[Path]:
    """Folders of a group and of its ancestors."""
    innermost = mounted / path.lstrip("/")
    return [each for each in (innermost, *innermost.parents) if each == mounted or mounted in each.parents]


@lru_cache(maxsize=1)
def _own_limits(pid: int) -> tuple[GroupLimit, ...]:
    """Limits of this process, cached by `pid`: a fork may be in other groups."""
    try:
        return tuple(group_limits(Path("/proc/self/cgroup").read_text()))
    except OSError:
        return ()
