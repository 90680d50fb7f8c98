"""How much memory a peer could take now, and what limits it: this machine, or a cgroup around the process.

Of cgroups(7) both versions. What a group holds of files counts as free, since the kernel drops that before it ends
anybody, and counts it so for the machine. Left out: swap, and huge pages.
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
"""Version 1 has no word for it, but a number of pages that no machine has."""


@dataclass(frozen=True, slots=True)
class MemoryLeft:
    """What a peer could take.

    Attributes:
        num_bytes: without swapping, or being ended by the kernel.
        limited_by: `MACHINE`, or the file with the limit of a cgroup.
    """

    num_bytes: int
    limited_by: str


@dataclass(frozen=True, slots=True)
class GroupLimit:
    """Of one cgroup.

    Attributes:
        file: says how much all in it may take.
        usage: the file that says how much they have.
        of_files: what is in the page cache, as `memory.stat` names it.
    """

    file: Path
    usage: Path
    of_files: tuple[str, ...]

    def max_bytes(self) -> int | None:
        """None: there is no limit, or nobody may read it."""
        try:
            text = self.file.read_text().strip()
        except OSError:
            return None
        return int(text) if text != "max" and int(text) < NO_LIMIT else None

    def left(self) -> MemoryLeft | None:
        """None: there is no limit any more."""
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
    """What a peer could take now.

    The limits that there are have been looked for when this process asked first: one that is set later is not seen.

    Raises:
        OSError: there is no /proc.
    """
    found = [each.left() for each in _own_limits(os.getpid())]
    of_machine = MemoryLeft(available_bytes(), MACHINE)
    return min((each for each in (of_machine, *found) if each is not None), key=lambda each: each.num_bytes)


def memory_bytes() -> int:
    """As `memory_left`, in bytes."""
    return memory_left().num_bytes


def available_bytes() -> int:
    """What this machine could give without swapping."""
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(fields["MemAvailable"].split()[0]) * 1024


def group_limits(groups: str, root: Path = CGROUPS) -> list[GroupLimit]:
    """Those of the cgroups of a process, and of those around them, that have one.

    `groups`: as /proc/PID/cgroup lists them. In a container a group may lie at `root` itself, though it is listed with
    the path that it has outside.
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
    """Of a group, and of those around it."""
    innermost = mounted / path.lstrip("/")
    return [each for each in (innermost, *innermost.parents) if each == mounted or mounted in each.parents]


@lru_cache(maxsize=1)
def _own_limits(pid: int) -> tuple[GroupLimit, ...]:
    """Of this process, which is `pid`: one that is forked may be in other groups."""
    try:
        return tuple(group_limits(Path("/proc/self/cgroup").read_text()))
    except OSError:
        return ()
