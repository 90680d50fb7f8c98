"""What does a peer cost that is stopped for a while (SIGSTOP, a suspended laptop), and does it come back by itself?"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from rich.table import Table

from bench.swarm import RunningPeer, Swarm, pause
from bench.trace import Trace, are_equal, in_ms, num_lost
from p2p.step.receipts import Receipt

SETTLED: Final = 20
BACK_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """One peer that was stopped.

    Attributes:
        peers: members before.
        rank: of the stopped peer.
        out_ms: from SIGSTOP until the last of the others had installed a view without it.
        stall_ms: the longest time without a commit at any of the others, while it was stopped.
        steps_meanwhile: what the others committed while it was stopped.
        rejoined: whether the same process was counted again, as another incarnation.
        back_ms: from SIGCONT until the others had committed the first step that counts it; None if it ended instead.
        ended_with: its exit code, if it ended.
        steps_lost: holes in the others' receipts.
        digests_equal: whether all receipts of a step are the same bytes at every peer that has one.
    """

    peers: int
    rank: int
    out_ms: float
    stall_ms: float
    steps_meanwhile: int
    rejoined: bool
    back_ms: float | None
    ended_with: int | None
    steps_lost: int
    digests_equal: bool


def pause_one(swarm: Swarm, stopped: RunningPeer, stop_s: float) -> Pause:
    """Stop a member of a swarm for `stop_s`, and wait for it to come back, or for its end: then another one joins."""
    before = swarm.last_receipt(stopped)
    assert before is not None, "it has committed steps"
    rank, incarnation = standing(before, stopped.peer_id)
    others = [peer for peer in swarm.peers if peer is not stopped]
    stopped_s = swarm.suspend(stopped)
    try:
        swarm.wait_until(
            lambda: all(is_without(swarm.last_receipt(peer), stopped.peer_id) for peer in others), "it is out"
        )
        pause(stop_s - (swarm.now() - stopped_s))
    finally:
        resumed_s = swarm.resume(stopped)

    def is_back() -> bool:
        last = swarm.last_receipt(others[0])
        return last is not None and standing(last, stopped.peer_id)[1] > incarnation

    swarm.wait_until(lambda: is_back() or stopped.process.poll() is not None, "it is back", BACK_S)
    ended_with = stopped.process.poll()
    if ended_with is not None:
        swarm.kill(stopped)
        swarm.start()
    swarm.wait_for_steps(SETTLED, "all train again")
    traces = swarm.traces()
    left = [traces[peer.peer_id] for peer in others]
    last_step = max(receipt.step for trace in left for receipt in trace.receipts)
    window = range(before.step, last_step + 1)
    back_s = [first_count_s(trace, stopped.peer_id, incarnation) for trace in left]
    return Pause(
        peers=len(others) + 1,
        rank=rank,
        out_ms=in_ms(max(out_s(trace, stopped.peer_id, stopped_s) for trace in left) - stopped_s),
        stall_ms=in_ms(max(longest_gap_s(trace, stopped_s, resumed_s) for trace in left)),
        steps_meanwhile=min(len(commits_between(trace, stopped_s, resumed_s)) for trace in left),
        rejoined=ended_with is None,
        back_ms=None if ended_with is not None else in_ms(max(s for s in back_s if s is not None) - resumed_s),
        ended_with=ended_with,
        steps_lost=num_lost(Trace((), ()), left, window),
        digests_equal=are_equal(traces.values(), window),
    )


def standing(receipt: Receipt, peer_id: str) -> tuple[int, int]:
    """Rank and incarnation of `peer_id` on `receipt`; (-1, -1) if it is not on it."""
    entries = enumerate(receipt.contributions)
    return next(((rank, e.incarnation) for rank, e in entries if e.peer_id == peer_id), (-1, -1))


def is_without(receipt: Receipt | None, peer_id: str) -> bool:
    return receipt is not None and standing(receipt, peer_id)[0] < 0


def out_s(trace: Trace, peer_id: str, after_s: float) -> float:
    """When the first view without `peer_id` was installed here, after it was stopped."""
    first = next(r.view_number for r in trace.receipts if r.step >= step_at(trace, after_s) and is_without(r, peer_id))
    return next(m.time_s for m in trace.moments if m.event == "installed" and m.detail == first)


def step_at(trace: Trace, time_s: float) -> int:
    """The first step that was committed here after `time_s`."""
    return next(int(m.detail) for m in trace.moments if m.event == "committed" and m.time_s >= time_s)


def first_count_s(trace: Trace, peer_id: str, incarnation: int) -> float | None:
    """When the first step was committed here that counts a later incarnation of `peer_id`."""
    steps = (r.step for r in trace.receipts if standing(r, peer_id)[1] > incarnation)
    step = next(steps, None)
    return next((m.time_s for m in trace.moments if m.event == "committed" and m.detail == step), None)


def commits_between(trace: Trace, start_s: float, stop_s: float) -> list[float]:
    return [m.time_s for m in trace.moments if m.event == "committed" and start_s <= m.time_s < stop_s]


def longest_gap_s(trace: Trace, start_s: float, stop_s: float) -> float:
    """The longest time between two commits, or from the beginning to the first, or from the last to the end."""
    times = [start_s, *commits_between(trace, start_s, stop_s), stop_s]
    return max(later - earlier for earlier, later in pairwise(times))


def summary_of_pauses(found: Sequence[Pause]) -> dict[str, Any]:
    """The worst of all."""
    steps_lost, digests_equal = sum(entry.steps_lost for entry in found), all(entry.digests_equal for entry in found)
    rejoined = all(entry.rejoined for entry in found)
    return {
        "pauses": len(found),
        "out_ms_max": max(entry.out_ms for entry in found),
        "back_ms_max": max((entry.back_ms for entry in found if entry.back_ms is not None), default=None),
        "rejoined": rejoined,
        "steps_lost": steps_lost,
        "digests_equal": digests_equal,
        "is_good": rejoined and digests_equal and not steps_lost,
    }


def table_of_pauses(num_peers: int, group: Sequence[Pause]) -> Table:
    """One row per peer that was stopped."""
    table = Table(title=f"{num_peers} peers, one is stopped", title_justify="left")
    headings = ("rank", "out ms", "longest stall ms", "steps meanwhile", "back ms", "steps lost", "digests equal")
    for heading in headings:
        table.add_column(heading, justify="right")
    for entry in group:
        back = f"{entry.back_ms:.0f}" if entry.back_ms is not None else f"ended with {entry.ended_with}"
        counts = (str(entry.steps_meanwhile), back, str(entry.steps_lost), "yes" if entry.digests_equal else "NO")
        table.add_row(str(entry.rank), f"{entry.out_ms:.0f}", f"{entry.stall_ms:.0f}", *counts)
    return table
