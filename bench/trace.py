"""What peers wrote, receipts and moments, and what follows from it. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from p2p.step.receipts import Moment, Receipt


@dataclass(frozen=True, slots=True)
class Trace:
    """What one peer wrote."""

    receipts: Sequence[Receipt]
    moments: Sequence[Moment]


def are_equal(traces: Iterable[Trace], window: range) -> bool:
    """Whether no two traces differ in a receipt that both have."""
    agreed: dict[int, Receipt] = {}
    receipts = (receipt for trace in traces for receipt in trace.receipts if receipt.step in window)
    return all(agreed.setdefault(receipt.step, receipt) == receipt for receipt in receipts)


def median_step_s(traces: Iterable[Trace]) -> float:
    """Between one commit and the next of the same peer; a kill now and then does not move it."""
    times = [[m.time_s for m in trace.moments if m.event == "committed"] for trace in traces]
    return median(later - earlier for of_peer in times for earlier, later in pairwise(of_peer))
