"""Predictions of the model (collectives/pricing.py) for a plan: bytes that a peer sends, times over links."""

from collections.abc import Mapping
from functools import lru_cache
from statistics import median
from typing import Any, Final

from collectives import Kind, Schedule, all_reduce_schedule, split_by_weight
from collectives.algorithms import SHARES
from collectives.goals import schedule_of
from collectives.links import SEGMENT_BYTES, Links
from collectives.pricing import simulate

from ...config import WAN_SEGMENT_BYTES
from ...netlab.config import LabConfig
from ..plan import EARLY, Plan, is_wide
from ..roles import ALL_REDUCE, BARRIER, algorithms_of

NO_LIMIT_BIT_PER_S: Final = 100_000_000_000


def links_of(net: str, num_peers: int, message_ns: int, per_host: int = 1) -> Links:
    """Links from a text as of `shoal lab --net`; each line is as fast as its slowest pair. `per_host`: peers per host.

    Raises:
        LabError: the text is invalid.
    """
    lab = LabConfig.uniform(num_peers // per_host, net)
    hosts = tuple(rank // per_host for rank in range(num_peers))

    def slowest(rate: int | None, host: int, side: int) -> int:
        """Bytes per second: the least of a line's rate and those of the pairs that have the host on this side."""
        of_pairs = (pair.rate_bit_per_s for ends, pair in lab.pairs.items() if ends[side] == host)
        return min(each or NO_LIMIT_BIT_PER_S for each in (NO_LIMIT_BIT_PER_S, rate, *of_pairs)) // 8

    up = tuple(slowest(lab.hosts[host].line.up_bit_per_s, host, 0) for host in hosts)
    down = tuple(slowest(lab.hosts[host].line.down_bit_per_s, host, 1) for host in hosts)
    delays = tuple(tuple(0 if one == other else lab.pairs[one, other].delay_ns for other in hosts) for one in hosts)
    segment_bytes = WAN_SEGMENT_BYTES if is_wide(lab) else SEGMENT_BYTES
    return Links(up, down, delays, message_ns, segment_bytes, hosts if per_host > 1 else ())


def message_ns(net: str, num_peers: int, calibration_s: list[float]) -> int:
    """Cost of a message at either end, from the times of one-number sums in which each peer sends to each other.

    Each peer processes the messages of all others one after the other, after one delay.
    """
    if num_peers < 2:
        return 0
    delay_ns = max(map(max, links_of(net, num_peers, 0).delay_ns))
    return max(0, round((median(calibration_s) * 1e9 - delay_ns) / (num_peers - 1)))


def links_from(said: Mapping[str, Any] | None) -> Links | None:
    """Links from the JSON of `dataclasses.asdict` that a peer has written; None: it knew none."""
    if said is None:
        return None
    delays = tuple(map(tuple, said["delay_ns"]))
    return Links(**{**said, **{name: tuple(said[name]) for name in ("up", "down", "hosts")}, "delay_ns": delays})


@lru_cache(maxsize=64)
def _schedules(
    operation: str, algorithm: str, num_peers: int, root: int, hosts: tuple[int, ...]
) -> tuple[Schedule, ...] | None:
    if algorithm.partition(SHARES)[0] not in algorithms_of(operation):
        return None
    if operation in (ALL_REDUCE, BARRIER):
        return tuple(all_reduce_schedule(algorithm, rank, num_peers, hosts) for rank in range(num_peers))
    return tuple(schedule_of(operation, algorithm, rank, num_peers, root) for rank in range(num_peers))


def _all_bytes(plan: Plan, size_bytes: int) -> int:
    """Bytes of all chunks of the schedules."""
    return size_bytes * (plan.num_peers if plan.operation == "all-to-all" else 1)


def _hosts(plan: Plan, links: Links | None) -> tuple[int, ...]:
    """The host of each rank, as measured, or else as planned."""
    planned = tuple(rank // plan.per_host for rank in range(plan.num_peers))
    return planned if links is None or not links.hosts else links.hosts


def wire_bytes(plan: Plan, algorithm: str, size_bytes: int, links: Links | None = None) -> int | None:
    """Bytes sent by the rank that sends most; None for another library's algorithm. `links`: hosts of the ranks."""
    schedules = _schedules(plan.operation, algorithm, plan.num_peers, plan.root, _hosts(plan, links))
    if schedules is None:
        return None
    chunks = [each.stop - each.start for each in split_by_weight(_all_bytes(plan, size_bytes), schedules[0].chunks)]
    sent = [[chunks[each.chunk] for each in one.transfers if each.kind is Kind.SEND] for one in schedules]
    return max(map(sum, sent))


def predicted_s(plan: Plan, name: str, ran: str, size_bytes: int, links: Links) -> float | None:
    """Time until all ranks have the result and know that all have it; `@early`: until they have it."""
    schedules = _schedules(plan.operation, ran, links.world_size, plan.root, _hosts(plan, links))
    if schedules is None:
        return None
    played = simulate(schedules, _all_bytes(plan, size_bytes), links)
    return (played.time_ns if name.endswith(f"@{EARLY}") else played.committed_ns) / 1e9
