"""The swarms of this host, by the pages of their peers; includes peers that hang, are stopped, or are dead."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from ..errors import LaunchError, RemoteProtocolError
from ..host.folders import is_byte_locked, place_of
from ..host.processes import Offsets, look_at, read_host, read_offsets
from ..telemetry.page import SUFFIX, PageContent, read_page
from ..telemetry.snapshot import Identity

LATE_S: Final = 3.0
"""A peer takes a snapshot every second; one without a new snapshot for this long hangs, with the interpreter held."""


class Condition(StrEnum):
    """Condition of a peer's process."""

    RUNNING = "running"
    HANGS = "hangs"
    STOPPED = "stopped"
    DEAD = "dead"
    ELSEWHERE = "elsewhere"
    """On another host; or in another pid namespace of this one, where it lives, as its lock in the registry shows."""


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """A peer's page, with the condition of its process.

    Attributes:
        age_s: age of the snapshot; without one, time since the peer joined.
        now_ns: time of the look, by the clock of the peer's records.
    """

    seen: PageContent
    condition: Condition
    age_s: float
    now_ns: int


@dataclass(frozen=True, slots=True)
class LocalHost:
    """Host and clock offsets of this process."""

    host: str
    offsets: Offsets


def local_host() -> LocalHost:
    return LocalHost(read_host(), read_offsets())


def read_swarms(home: Path, swarm: str, clock_ns: Callable[[], int]) -> dict[str, list[PeerStatus]]:
    """This user's peers by swarm, all or those of one swarm; in each ordered by their numbers.

    Raises:
        LaunchError: there are none, or none that this version can read.
    """
    found: dict[str, list[PeerStatus]] = {}
    unreadable = ""
    where = local_host()
    for path in sorted(home.glob(f"{swarm or '*'}/*{SUFFIX}")):
        try:
            seen = read_page(path)
        except OSError:
            continue  # the page is gone, or another user's
        except RemoteProtocolError as error:
            unreadable = str(error)
            continue
        found.setdefault(seen.identity.swarm, []).append(peer_status(seen, where, clock_ns(), path.with_name("lock")))
    if not found and unreadable:
        raise LaunchError(f"{unreadable}; look with the version of shoal that its peer runs")
    if not found:
        what = f"no peer of swarm {swarm}" if swarm else "no peer of any swarm"
        raise LaunchError(
            f"there is {what} on this host, in {home}; of other hosts: shoal status NAME --seeds HOST:PORT --key FILE"
        )
    for peers in found.values():
        peers.sort(key=lambda looked: (len(looked.seen.identity.name), looked.seen.identity.name))
    return found


def peer_status(seen: PageContent, where: LocalHost, now_ns: int, lock: Path) -> PeerStatus:
    """Add the condition of the peer's process. `now_ns`: by this process's clock; the peer's clock may be offset.

    `lock`: of the peer's registry.
    """
    now_ns += seen.identity.monotonic_offset_ns - where.offsets.monotonic_ns
    since_ns = seen.identity.joined_ns if seen.snapshot is None else seen.snapshot.time_ns
    age_s = max(0, now_ns - since_ns) / 1e9
    return PeerStatus(seen, _condition(seen.identity, where, age_s, lock), age_s, now_ns)


def _condition(who: Identity, where: LocalHost, age_s: float, lock: Path) -> Condition:
    if who.host != where.host:  # of another pid namespace, or of an earlier boot
        return Condition.ELSEWHERE if is_byte_locked(lock, place_of(who.peer_id)) else Condition.DEAD
    process = look_at(who.pid)
    shifted = 0 if process is None else process.start - where.offsets.ticks - who.process_start + who.offsets.ticks
    if process is None or abs(shifted) > (who.offsets != where.offsets):  # rounding of offsets: one tick at most
        return Condition.DEAD
    if process.state in ("T", "t"):
        return Condition.STOPPED
    return Condition.HANGS if age_s > LATE_S else Condition.RUNNING
