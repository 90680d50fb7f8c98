"""What a kill cost, from the receipts and moments that the peers wrote. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from p2p.benchmark.result import percentile
from p2p.step.receipts import Moment, Receipt


@dataclass(frozen=True, slots=True)
class Trace:
    """What one peer wrote."""

    receipts: Sequence[Receipt]
    moments: Sequence[Moment]

    def first(self, event: str, after_s: float) -> Moment | None:
        return next((m for m in self.moments if m.event == event and m.time_s >= after_s), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """One kill as the director knows it: when, whom, and who was left."""

    time_s: float
    victim: str
    rank: int
    survivors: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a kill cost the survivors.

    Attributes:
        peers: members before the kill.
        rank: of the victim.
        detect_ms: until the first survivor knew that the victim is gone.
        agree_ms: until the last survivor had installed the view without it.
        resume_ms: until the last survivor had committed the first step that every survivor committed in that view or
            at its barrier; less the run's median step.
        step_ms: the run's median step.
        steps_lost: steps that a survivor has no receipt of, though it has of earlier and later ones, or that only
            the victim has; from the last kill before to the next after.
        digests_equal: whether all receipts of a step are the same bytes at every peer that has one, in that time.
    """

    peers: int
    rank: int
    detect_ms: float
    agree_ms: float
    resume_ms: float
    step_ms: float
    steps_lost: int
    digests_equal: bool


def costs(kills: Sequence[Kill], traces: Mapping[str, Trace]) -> list[Cost]:
    """Of all kills of one swarm, in order."""
    step_s = median_step_s(traces.values())
    resumed = [resumed_step(kill, traces) for kill in kills]
    last = max(receipt.step for trace in traces.values() for receipt in trace.receipts)
    windows = zip([0, *resumed], [*resumed[1:], last], strict=False)
    return [
        cost(kill, traces, step, range(start, stop + 1), step_s)
        for kill, step, (start, stop) in zip(kills, resumed, windows, strict=True)
    ]


def cost(kill: Kill, traces: Mapping[str, Trace], resumed: int, window: range, step_s: float) -> Cost:
    left = [traces[peer_id] for peer_id in kill.survivors]
    gone = [m.time_s for t in left for m in t.moments if m.event == "gone" and m.detail == kill.victim]
    installed = [moment.time_s for moment in (t.first("installed", kill.time_s) for t in left) if moment is not None]
    assert gone and len(installed) == len(left)
    return Cost(
        peers=len(left) + 1,
        rank=kill.rank,
        detect_ms=in_ms(min(gone) - kill.time_s),
        agree_ms=in_ms(max(installed) - kill.time_s),
        resume_ms=in_ms(max(commit_s(t, resumed) for t in left) - kill.time_s - step_s),
        step_ms=in_ms(step_s),
        steps_lost=num_lost(traces[kill.victim], left, window),
        digests_equal=are_equal(traces.values(), window),
    )


def resumed_step(kill: Kill, traces: Mapping[str, Trace]) -> int:
    """The first step that every survivor committed in the view after the kill, or at its barrier."""
    steps = []
    for trace in (traces[peer_id] for peer_id in kill.survivors):
        installed = trace.first("installed", kill.time_s)
        committed = None if installed is None else trace.first("committed", installed.time_s)
        if committed is None:
            raise RuntimeError(f"a survivor of the kill of {kill.victim} committed nothing after it")
        steps.append(int(committed.detail))
    return max(steps)


def commit_s(trace: Trace, step: int) -> float:
    return next(m.time_s for m in trace.moments if m.event == "committed" and m.detail == step)


def num_lost(victim: Trace, survivors: Sequence[Trace], window: range) -> int:
    """Holes in the survivors' receipts, and receipts of the victim that a survivor lacks."""
    had = {receipt.step for receipt in victim.receipts if receipt.step in window}
    lost: set[int] = set()
    for trace in survivors:
        have = {receipt.step for receipt in trace.receipts if receipt.step in window}
        first = min(have)
        lost |= (set(range(first, max(have))) | {step for step in had if step >= first}) - have
    return len(lost)


def are_equal(traces: Iterable[Trace], window: range) -> bool:
    """Whether no two traces differ in a receipt that both have."""
    agreed: dict[int, Receipt] = {}
    receipts = (receipt for trace in traces for receipt in trace.receipts if receipt.step in window)
    return all(agreed.setdefault(receipt.step, receipt) == receipt for receipt in receipts)


def median_step_s(traces: Iterable[Trace]) -> float:
    """Between one commit and the next of the same peer; a kill now and then does not move it."""
    times = [[m.time_s for m in trace.moments if m.event == "committed"] for trace in traces]
    return median(later - earlier for of_peer in times for earlier, later in pairwise(of_peer))


def summary(found: Sequence[Cost]) -> dict[str, Any]:
    """p50 and p99 of the times; whether anything was lost."""
    names = ("detect_ms", "agree_ms", "resume_ms")
    times = {name: [getattr(entry, name) for entry in found] for name in names}
    return {
        **{name: {"p50": round(percentile(v, 50), 1), "p99": round(percentile(v, 99), 1)} for name, v in times.items()},
        "step_ms": median(entry.step_ms for entry in found),
        "steps_lost": sum(entry.steps_lost for entry in found),
        "digests_equal": all(entry.digests_equal for entry in found),
        "is_good": all(entry.digests_equal and not entry.steps_lost for entry in found),
        "kills": len(found),
        "kills_of_rank_0": sum(entry.rank == 0 for entry in found),
    }


def in_ms(time_s: float) -> float:
    """Milliseconds, to the hundredth."""
    return round(time_s * 1e3, 2)
