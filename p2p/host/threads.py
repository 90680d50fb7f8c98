"""The number of threads that this process may start: by both versions of cgroups(7), and by the user's RLIMIT_NPROC.

A process counts as a thread. libzmq aborts a process that cannot start a thread. Leaves out: threads of the same user
that /proc does not show, as of another container.
"""

import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .memory_left import CGROUPS, group_folders

OF_A_PEER: Final = 5
"""Threads that `p2p.join` starts at least: for the loop, for reports, for stacks, and two of libzmq."""

PER_PEER: Final = 1 + OF_A_PEER
"""With the process, which counts as one."""

_EXEMPT: Final = 1 << 24 | 1 << 21
"""CAP_SYS_RESOURCE and CAP_SYS_ADMIN, from <linux/capability.h>."""
_WHOLE: Final = ["0", "0", "4294967295"]
"""The uid map of the initial user namespace."""


@dataclass(frozen=True, slots=True, order=True)
class ThreadsLeft:
    """Threads left under one limit.

    Attributes:
        number: threads that can still be started.
        most: the limit.
        advice: how to raise it, with `{0}` for the value.
    """

    number: int
    most: int
    advice: str


def threads_left(needed: int, groups: str | None = None, root: Path = CGROUPS) -> ThreadsLeft | None:
    """The tightest limit; None: `needed` more threads, those of children included, can be started as far as is known.

    `groups`: as listed in /proc/PID/cgroup; None: those of this process.
    """
    return min([*_by_groups(_own_groups() if groups is None else groups, root), *_by_user(needed)], default=None)


def why_too_few_threads(needed: int, groups: str | None = None, root: Path = CGROUPS) -> str:
    """Why they cannot all be started; empty: they can."""
    left = threads_left(needed, groups, root)
    if left is None or left.number >= needed:
        return ""
    used = left.most - left.number
    return (
        f"at most {left.most} threads can run here; {used} run, and {needed} more must start: "
        f"{left.advice.format(used + needed)}"
    )


def why_no_thread() -> str:
    """The reason, after the system has refused to start a thread."""
    return (
        why_too_few_threads(1) or "no thread can be started: look at `ulimit -u`, `ulimit -v`, and pids.max of cgroups"
    )


def _own_groups() -> str:
    try:
        return Path("/proc/self/cgroup").read_text()
    except OSError:
        return ""


def _by_groups(groups: str, root: Path) -> Iterator[ThreadsLeft]:
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        mounted = [root, root / "unified"] if not controllers else []
        mounted += [root / "pids"] if "pids" in controllers.split(",") else []
        for folder in (each for place in mounted for each in group_folders(place, path)):
            try:
                most, now = ((folder / name).read_text().strip() for name in ("pids.max", "pids.current"))
            except OSError:
                continue
            if most != "max":
                advice = (
                    f"raise {folder / 'pids.max'} to {{0}} (TasksMax= of the service, --pids-limit of the container)"
                )
                yield ThreadsLeft(max(0, int(most) - int(now)), int(most), advice)


def _by_user(needed: int) -> Iterator[ThreadsLeft]:
    most, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    try:
        if most == resource.RLIM_INFINITY or _is_exempt() or _of_machine() + needed <= most:
            return
    except OSError:
        return
    advice = f"raise the limit of user {os.getuid()} (`ulimit -u {{0}}`, or LimitNPROC= of the service)"
    yield ThreadsLeft(max(0, most - _of_user(os.getuid())), most, advice)


def _is_exempt() -> bool:
    if Path("/proc/self/uid_map").read_text().split() != _WHOLE:
        return False
    return os.getuid() == 0 or bool(int(_status("self")["CapEff"], 16) & _EXEMPT)


def _of_machine() -> int:
    """Number of all threads of the machine."""
    return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[2])


def _of_user(uid: int) -> int:
    found = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            status = _status(pid)
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(status["Uid"].split()[0]) == uid:
            found += int(status["Threads"])
    return found


def _status(pid: str) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
