"""Checks of the host: shared memory of peers, and limits and features of the kernel."""

import os
import resource
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ..benchmark.results.machine import machine
from ..config import LEAST_ARENA_BYTES, default_arena_bytes
from ..errors import ShoalError
from ..host.files import OF_ITS_OWN
from ..host.files import PER_PEER as FILES_PER_PEER
from ..host.memory_left import MACHINE, MemoryLeft, available_bytes, memory_left
from ..host.threads import PER_PEER, ThreadsLeft, threads_left
from ..memory.arena import Arena, RemoteArena
from ..memory.board import IS_ORDERED
from .finding import Finding, size

TRIED_BYTES: Final = 1 << 20
MANY_PEERS: Final = 64
"""Of one host: what keeps from so many is said."""
_ENTER: Final = "from p2p.netlab.namespaces import enter; enter()"


def look_at_host() -> Iterator[Finding]:
    """Findings about this host. Takes about a second, and leaves nothing behind."""
    found = machine()
    packages = ", ".join(f"{name} {version}" for name, version in found["packages"].items())
    yield Finding("versions", f"Python {found['python']}, {packages}; {found['system']}", facts=found)
    cores, of_machine = found["cores"], found["cores_of_machine"]
    yield Finding(
        "cores",
        f"{cores} of {of_machine} cores of {found['cpu']}; load {found['load_1_min']}",
        facts={"usable": cores, "of_machine": of_machine},
    )
    left = memory_left()
    yield memory(left)
    yield arena(left)
    yield shared_files()
    yield open_files(resource.getrlimit(resource.RLIMIT_NOFILE))
    yield threads(threads_left(MANY_PEERS * PER_PEER))
    yield deaths()
    yield lab()


def memory(left: MemoryLeft) -> Finding:
    """Available memory, and what limits it."""
    available = available_bytes()
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    of_locked = "no limit" if locked == resource.RLIM_INFINITY else size(locked)
    is_free = left.limited_by == MACHINE
    of_group = "no limit that is less" if is_free else f"{left.limited_by} leaves {size(left.num_bytes)}"
    return Finding(
        "memory",
        f"{size(available)} available; of the cgroup: {of_group}; ulimit -l: {of_locked} (CUDA does not ask for it)",
        facts={
            "available_bytes": available,
            "left_bytes": left.num_bytes,
            "limited_by": left.limited_by,
            "memlock_bytes": locked,
        },
    )


def arena(left: MemoryLeft) -> Finding:
    """Whether a peer can have an arena that others of this host can read; and its limit."""
    limit = default_arena_bytes(1)
    name = secrets.token_hex(8)
    if not IS_ORDERED:
        return Finding("arena", "none on this processor: peers of this host use sockets", is_well=False)
    try:
        own = Arena(TRIED_BYTES, name)
    except ShoalError as error:
        return Finding("arena", f"{error}; peers of this host use sockets", is_well=False)
    try:
        RemoteArena.open(os.getpid(), name).close()
    except ShoalError as error:
        return Finding("arena", f"{error}; peers of this host use sockets", is_well=False)
    finally:
        own.close()
    quarter = f"a quarter of what {left.limited_by} leaves"
    why = f"the least, though {quarter} is less" if limit == LEAST_ARENA_BYTES else quarter
    says = f"peers of this host read each other's memory; one alone may share {size(limit)} of its own ({why})"
    return Finding("arena", says, facts={"default_bytes": limit, "limited_by": left.limited_by})


def shared_files(folder: Path = Path("/dev/shm")) -> Finding:
    """Space in /dev/shm, through which workers of torch's DataLoader pass batches; peers do not need it."""
    try:
        found = os.statvfs(folder)
    except OSError as error:
        return Finding("shm", f"no {folder} ({error.strerror}): data loaders can have no workers", is_well=False)
    total, free = found.f_frsize * found.f_blocks, found.f_frsize * found.f_bavail
    is_small = free < 64 << 20
    advice = ": too little for the workers of a data loader (docker: --shm-size=1g)" if is_small else ""
    says = f"{size(free)} of {size(total)} of {folder} are free, which workers of a data loader use{advice}"
    return Finding("shm", says, not is_small, {"free_bytes": free, "total_bytes": total})


def open_files(limits: tuple[int, int]) -> Finding:
    """How many peers of this host the limit of open files allows."""
    _, hard = limits
    if hard == resource.RLIM_INFINITY:
        return Finding("files", "any number of files may be open", facts={"hard": None, "peers": None})
    peers, needed = max(0, (hard - OF_ITS_OWN) // FILES_PER_PEER), MANY_PEERS * FILES_PER_PEER + OF_ITS_OWN
    advice = "" if peers >= MANY_PEERS else f"; for {MANY_PEERS} raise it: `ulimit -Hn {needed}`"
    says = f"{hard} files may be open (ulimit -Hn), enough for {peers} peers here{advice}"
    return Finding("files", says, peers >= MANY_PEERS, {"hard": hard, "peers": peers})


def threads(left: ThreadsLeft | None) -> Finding:
    """For how many peers of one host they are enough. libzmq ends a process that can start no more."""
    each = f"a peer starts {PER_PEER} at least, and more with torch, or with workers of a data loader"
    if left is None:
        facts = {"most": None, "left": None, "peers": None}
        return Finding("threads", f"no limit is known that keeps {MANY_PEERS} peers from starting; {each}", facts=facts)
    peers = left.number // PER_PEER
    used, is_well = left.most - left.number, peers >= MANY_PEERS
    advice = "" if is_well else f"; for {MANY_PEERS} {left.advice.format(used + MANY_PEERS * PER_PEER)}"
    says = f"{left.number} more can start here ({used} of {left.most} run), enough for {peers} peers: {each}{advice}"
    return Finding("threads", says, is_well, {"most": left.most, "left": left.number, "peers": peers})


def deaths() -> Finding:
    """Whether the kernel can notify peers of a death (pidfd)."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError) as error:
        return Finding("deaths", f"no pidfd here ({error}): a peer that died is noticed by its silence", is_well=False)
    return Finding("deaths", "the kernel reports a death at once (pidfd)")


def lab() -> Finding:
    """Whether a network lab is possible."""
    done = subprocess.run([sys.executable, "-c", _ENTER], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return Finding("lab", "`shoal lab` works: namespaces of the user can be made")
    said = done.stderr.strip().rpartition("\n")[2].partition(": ")[2]
    return Finding("lab", f"`shoal lab` does not work: {said}", is_well=False)
