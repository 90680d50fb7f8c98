"""Traces of peers, their receipts and records, and figures from them. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from p2p.step.receipts import Receipt
from p2p.telemetry.records import Kind, Record


@dataclass(frozen=True, slots=True)
class Trace:
    """Receipts and records of one peer."""

    receipts: Sequence[Receipt]
    records: Sequence[Record]

    @property
    def commits_s(self) -> dict[int, float]:
        """Commit time of each step, in order."""
        return {each.step: each.time_ns / 1e9 for each in self.records if each.kind == Kind.COMMITTED}


def are_equal(traces: Iterable[Trace], window: range) -> bool:
    """Whether no two traces differ in a receipt that both have."""
    agreed: dict[int, Receipt] = {}
    receipts = (receipt for trace in traces for receipt in trace.receipts if receipt.step in window)
    return all(agreed.setdefault(receipt.step, receipt) == receipt for receipt in receipts)


def median_step_s(traces: Iterable[Trace]) -> float:
    """Median time between consecutive commits of a peer; a few kills do not change it."""
    times = [trace.commits_s.values() for trace in traces]
    return median(later - earlier for of_peer in times for earlier, later in pairwise(of_peer))
