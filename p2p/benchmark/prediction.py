"""What the model (collectives/pricing.py) says of a plan: bytes that a peer sends, times over the links of a lab."""

from functools import lru_cache
from statistics import median
from typing import Final

from collectives import Kind, Schedule, all_reduce_schedule, split_by_weight
from collectives.algorithms import SHARES
from collectives.goals import schedule_of
from collectives.pricing import Links, play

from ..netlab.settings import LineSettings, PairSettings, changed_line, changed_pair, parse_net
from .plan import EARLY, Plan
from .roles import ALL_REDUCE, BARRIER, algorithms_of

NO_LIMIT_BIT_PER_S: Final = 100_000_000_000


def links_of(net: str, num_peers: int, message_ns: int) -> Links:
    """Links that are all alike, of a text as of `shoal lab --net`.

    Raises:
        LabError: it says something else.
    """
    of_line, of_pair = parse_net(net)
    line, pair = changed_line(LineSettings(), of_line), changed_pair(PairSettings(), of_pair)
    rates = [rate or NO_LIMIT_BIT_PER_S for rate in (line.up_bit_per_s, line.down_bit_per_s)]
    up, down = (min(rate, pair.rate_bit_per_s or rate) // 8 for rate in rates)
    row = (pair.delay_ns,) * num_peers
    return Links((up,) * num_peers, (down,) * num_peers, (row,) * num_peers, message_ns)


def message_ns(net: str, num_peers: int, calibration_s: list[float]) -> int:
    """What a message costs at either end, if a sum of one number that each sends to each took so long.

    Each takes the messages of all others one after the other, behind one delay.
    """
    if num_peers < 2:
        return 0
    delay_ns = links_of(net, num_peers, 0).delay_ns[0][1]
    return max(0, round((median(calibration_s) * 1e9 - delay_ns) / (num_peers - 1)))


@lru_cache(maxsize=64)
def _schedules(operation: str, algorithm: str, num_peers: int, root: int) -> tuple[Schedule, ...] | None:
    if algorithm.partition(SHARES)[0] not in algorithms_of(operation):
        return None
    if operation in (ALL_REDUCE, BARRIER):
        return tuple(all_reduce_schedule(algorithm, rank, num_peers) for rank in range(num_peers))
    return tuple(schedule_of(operation, algorithm, rank, num_peers, root) for rank in range(num_peers))


def _all_bytes(plan: Plan, size_bytes: int) -> int:
    """Of all chunks of the schedules."""
    return size_bytes * (plan.num_peers if plan.operation == "all-to-all" else 1)


def wire_bytes(plan: Plan, algorithm: str, size_bytes: int) -> int | None:
    """What the rank sends that sends most; None of somebody else's algorithm."""
    schedules = _schedules(plan.operation, algorithm, plan.num_peers, plan.root)
    if schedules is None:
        return None
    chunks = [each.stop - each.start for each in split_by_weight(_all_bytes(plan, size_bytes), schedules[0].chunks)]
    sent = [[chunks[each.chunk] for each in one.transfers if each.kind is Kind.SEND] for one in schedules]
    return max(map(sum, sent))


def predicted_s(plan: Plan, name: str, ran: str, size_bytes: int, links: Links) -> float | None:
    """Until all have the result, and have heard that all have it, unless it was handed out early."""
    schedules = _schedules(plan.operation, ran, links.world_size, plan.root)
    if schedules is None:
        return None
    played = play(schedules, _all_bytes(plan, size_bytes), links)
    return (played.time_ns if name.endswith(f"@{EARLY}") else played.committed_ns) / 1e9
