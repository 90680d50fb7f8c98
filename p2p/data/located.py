"""Positions of a receipt's samples in the stream of their loader, by the plan of the step."""

from dataclasses import replace

from ..step.receipts import FAILS_BEHIND, Contribution, Receipt
from .ranges import Ranges, count, difference, union
from .sampler import Plan, Slice


def located(receipt: Receipt, plan: Plan) -> tuple[list[Contribution], list[tuple[int, str]]]:
    """Each member's contribution, with positions; and positions that could not be loaded, with the peer_id that tried.

    An empty slice means that the sample at its start could not be loaded.
    """
    contributions, failures = [], list[tuple[int, str]]()
    for each in receipt.contributions:
        ((start, number),) = each.samples or ((-1, 0),)
        has_failed = start >= 0 and not number
        if start <= FAILS_BEHIND:
            start, has_failed = FAILS_BEHIND - start, True
        failed = plan.positions(Slice(start + number, 1)) if has_failed else ()
        contributions.append(replace(each, samples=plan.positions(Slice(start, number)), failed=failed))
        failures += [(position, each.peer_id) for position, _ in failed]
    return contributions, failures


def with_rest(receipt: Receipt, plan: Plan, *, is_timed: bool) -> Receipt:
    """The located receipt with what was planned and not added: `unused`, if the round is timed, and `returned`."""
    if receipt.num_samples == count(plan.batch):
        return receipt
    added = [part for each in receipt.contributions for part in each.samples]
    unused = _unused(receipt, plan) if is_timed else ()
    return replace(receipt, unused=unused, returned=difference(plan.batch, (*added, *unused)))


def _unused(receipt: Receipt, plan: Plan) -> Ranges:
    """In a timed round, positions that were planned for members but not used, of members that have added samples."""
    left: list[tuple[int, int]] = []
    for each in receipt.contributions:
        part = plan.slices.get(each.peer_id)
        if part is not None and 0 < each.num_samples < part.length:
            left += plan.positions(Slice(part.start + each.num_samples, part.length - each.num_samples))
    return union(left)
