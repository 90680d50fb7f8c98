"""What receipts prove about a run: no step is lost, all members agree, each sample counts once. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from ...data.ranges import Ranges, count, difference, union
from ...step.receipts import Receipt
from ..folder import Run


@dataclass(frozen=True, slots=True)
class ReceiptCheck:
    """Findings from the receipts of a run.

    Attributes:
        num_steps: steps that were committed and not lost.
        lost: (lineage, step) that were committed, or must have been, and are not part of the state that was continued.
        unequal: steps with different receipts at two peers.
        num_samples: samples counted in steps that are not lost.
        num_samples_lost: samples counted in lost steps.
        twice: positions that were counted in two steps that are not lost.
        missing: positions that were handed out and counted in no step, except those that no peer could load, and those
            that members had no time for in a round by time.
        recounted: per (lineage, step): positions that were handed out for this step and not counted in it, so that they
            are handed out again; without those that members had no time for.
        has_positions: the samples come from a `peer.loader`, so their positions are known.
        goodput: share of the computed samples that are counted; None: unknown.
    """

    num_steps: int
    lost: tuple[tuple[str, int], ...]
    unequal: tuple[int, ...]
    num_samples: int
    num_samples_lost: int
    twice: int
    missing: int
    recounted: dict[tuple[str, int], int]
    has_positions: bool

    @property
    def goodput(self) -> float | None:
        computed = self.num_samples + self.num_samples_lost + sum(self.recounted.values())
        return round(self.num_samples / computed, 6) if self.has_positions else None


def check(run: Run) -> ReceiptCheck:
    """Check all receipts of a run, which may have been restarted from checkpoints."""
    receipts = run.receipts()
    positions = {_key(receipt): _positions(receipt) for receipt in receipts}
    has_positions = all(count(positions[_key(each)]) == each.num_samples for each in receipts)
    found = [
        *_holes(receipts),
        *(_redone(receipts, positions) if has_positions else ()),
        *_with_all_members(run),
        *_lacking(run, receipts),
    ]
    lost = [*dict.fromkeys(found)]
    kept = [receipt for receipt in receipts if _key(receipt) not in set(lost) and receipt.step > 0]
    recounted, twice, missing = _follow(kept, positions) if has_positions else ({}, 0, 0)
    num_samples = sum(receipt.num_samples for receipt in kept)
    return ReceiptCheck(
        num_steps=len(kept),
        lost=tuple(lost),
        unequal=tuple(_unequal(run)),
        num_samples=num_samples,
        num_samples_lost=sum(receipt.num_samples for receipt in receipts) - num_samples,
        twice=twice,
        missing=missing,
        recounted=recounted,
        has_positions=has_positions and any(receipt.num_samples for receipt in kept),
    )


def _key(receipt: Receipt) -> tuple[str, int]:
    return receipt.lineage, receipt.step


def _positions(receipt: Receipt) -> Ranges:
    return union(part for entry in receipt.contributions for part in entry.samples)


def _holes(receipts: Sequence[Receipt]) -> list[tuple[str, int]]:
    """Steps without any receipt, between others of their lineage."""
    steps: dict[str, set[int]] = {}
    for receipt in receipts:
        steps.setdefault(receipt.lineage, set()).add(receipt.step)
    return [
        (lineage, step) for lineage, have in steps.items() for step in range(min(have), max(have)) if step not in have
    ]


def _lacking(run: Run, receipts: Sequence[Receipt]) -> list[tuple[str, int]]:
    """Steps that count a peer without a receipt of them, though the same incarnation has an earlier and a later one."""
    own: dict[tuple[str, str, int], set[int]] = {}
    for peer_id, track in run.tracks.items():
        for receipt in track.receipts:
            for entry in receipt.contributions:
                if entry.peer_id == peer_id:
                    own.setdefault((receipt.lineage, peer_id, entry.incarnation), set()).add(receipt.step)
    whole = {key: range(min(have), max(have) + 1) for key, have in own.items()}
    found = []
    for receipt in receipts:
        keys = [(receipt.lineage, entry.peer_id, entry.incarnation) for entry in receipt.contributions]
        if any(key in own and receipt.step in whole[key] and receipt.step not in own[key] for key in keys):
            found.append(_key(receipt))
    return found


def _with_all_members(run: Run) -> list[tuple[str, int]]:
    """Steps lost by the death of all members: those after the step whose state was continued."""
    continued = {each.lineage: each for track in run.tracks.values() for each in track.continued.values()}
    return [(each.lineage, step) for each in continued.values() for step in range(each.step + 1, each.last_step + 1)]


def _redone(receipts: Sequence[Receipt], positions: dict[tuple[str, int], Ranges]) -> list[tuple[str, int]]:
    """Steps whose samples a later lineage has counted again, because it continued from an earlier checkpoint."""
    later: dict[int, Ranges] = {}
    lost = []
    before: dict[int, Ranges] = {}
    lineage = ""
    for receipt in reversed(receipts):
        if receipt.lineage != lineage:
            lineage, before = receipt.lineage, dict(later)
        own = positions[_key(receipt)]
        again = before.get(receipt.loader, ())
        if own and again and count(difference(own, again)) < count(own):
            lost.append(_key(receipt))
        known = later.get(receipt.loader, ())
        later[receipt.loader] = union([*known, *difference(own, known)])
    return lost[::-1]


def _unequal(run: Run) -> list[int]:
    agreed: dict[tuple[str, int], Receipt] = {}
    found = set()
    for track in run.tracks.values():
        for receipt in track.receipts:
            if agreed.setdefault(_key(receipt), receipt) != receipt:
                found.add(receipt.step)
    return sorted(found)


def _follow(
    receipts: Sequence[Receipt], positions: dict[tuple[str, int], Ranges]
) -> tuple[dict[tuple[str, int], int], int, int]:
    """`recounted`, `twice` and `missing` of `ReceiptCheck`; positions are followed per loader."""
    ends: dict[int, int] = {}
    back: dict[int, Ranges] = {}
    lost: dict[int, Ranges] = {}  # of these: positions that were computed
    recounted, twice = {}, 0
    for receipt in receipts:
        own, came_back, end = positions[_key(receipt)], back.get(receipt.loader, ()), ends.get(receipt.loader, 0)
        new_end = max([end, *(first + number for first, number in (*own, *receipt.returned))])
        pool = union([*came_back, (end, new_end - end)])
        left = difference(pool, own)
        twice += count(own) - (count(pool) - count(left))
        idle = difference(came_back, (*lost.get(receipt.loader, ()), *receipt.returned))
        fresh = difference(left, (*came_back, *receipt.unused))
        recounted[_key(receipt)] = count(fresh) + count(difference(receipt.returned, fresh))
        lost[receipt.loader] = difference(left, (*idle, *receipt.unused))
        back[receipt.loader], ends[receipt.loader] = left, new_end
    failed: dict[int, Ranges] = {}
    for receipt in receipts:
        for entry in receipt.contributions:
            known = failed.get(receipt.loader, ())
            failed[receipt.loader] = union([*known, *difference(union(entry.failed), known)])
    missing = sum(count(difference(left, failed.get(loader, ()))) for loader, left in lost.items())
    return recounted, twice, missing
