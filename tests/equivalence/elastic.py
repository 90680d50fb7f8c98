"""A case whose peers come and go: of three one is killed in a step, another joins; then one process replays it.

The receipts say which samples each step has counted. The script that the peers have run takes these, one batch per
step, in one process, and has to end with what they have: parameters, moments, schedules, statistics, masks.
"""

import json
import signal
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.replay import agreed_receipts
from p2p.data.ranges import each, union
from p2p.step.receipts import Receipt
from tests.live.swarm import Swarm

from .compared import Result, compare, compare_losses, scrub, size_of, warning
from .data import NUM_SAMPLES
from .harness import Runner, start
from .peer import DIES_IN, SIZE_AT_THE_END
from .registry import Case, Verdict, verdict

TOLERANCE: Final = 1e-5
"""Of a hundred steps and more."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """What came of it.

    Attributes:
        verdict: EQUAL, REFUSED where the joiner alone is, WARNED or WRONG.
        text: why it is not EQUAL.
        num_steps: that were committed.
        largest: difference between the peers and the replay.
    """

    verdict: Verdict
    text: str
    num_steps: int
    largest: float


def run_elastic(swarm: Swarm, folder: Path, case: Case) -> Replayed:
    """Train with a kill and a join, replay, compare.

    Raises:
        AssertionError: a process does not do its part.
        RuntimeError: peers have different receipts.
    """
    *stayed, joined = [peer.result(case.name) for peer in train(swarm, folder, case)]
    refusal = joined.get("error", "")
    if refusal.startswith("RemovedFromView"):  # after it was seated, which it should not have been; at random
        return Replayed(Verdict.WRONG, scrub(refusal), 0, 0.0)
    results = stayed if refusal else [*stayed, joined]
    for result in results:
        if "error" in result:
            return Replayed(Verdict.WRONG, scrub(result["error"]), 0, 0.0)
    receipts = agreed_receipts(swarm.receipts)
    batches = [row for receipt in receipts if (row := positions(receipt))]  # of the first update with each
    (folder / f"{case.name}.batches.json").write_text(json.dumps([[p % NUM_SAMPLES for p in row] for row in batches]))
    alone = start(swarm, "alone", 0, 1, folder, [case.name])
    replayed = alone.result(case.name)
    assert alone.process.end() == 0
    weights = {step: receipt.weight for step, receipt in enumerate(receipts, start=1)}
    largest, problem = differences(results, replayed, weights, max(case.tolerance, TOLERANCE))
    problem = problem or uncounted(receipts, batches, size=len(results))
    if problem and (said := warning(case.joiner_warned, results)):
        return Replayed(Verdict.WARNED, said, len(receipts), largest)
    verdict = Verdict.WRONG if problem else Verdict.REFUSED if refusal else Verdict.EQUAL
    return Replayed(verdict, problem or scrub(refusal), len(receipts), largest)


def elastic_problems(case: Case, found: Replayed) -> Iterator[str]:
    """Where a case is not what it is expected to be when peers come and go."""
    expected = verdict(case.joiner_refused, case.joiner_warned, "", case.joiner_wrong)
    why = case.joiner_refused or case.joiner_warned
    text = found.text or f"{found.largest:.0e}"
    if found.verdict is not expected or why not in found.text:
        yield f"{case.name} with a kill and a join is {found.verdict} ({text}) instead of {expected}" + (
            f" ({why or case.joiner_wrong})" if expected is not Verdict.EQUAL else ""
        )


def train(swarm: Swarm, folder: Path, case: Case) -> list[Runner]:
    """The peers that are there at the end."""
    roles = ("dies", "waits", "stays")
    victim, waits, stays = (start(swarm, role, 0, SIZE_AT_THE_END, folder, [case.name]) for role in roles)
    assert victim.process.end() == -signal.SIGKILL, victim.process.report()
    waits.process.expect("waits")
    joins = start(swarm, "joins", 0, SIZE_AT_THE_END, folder, [case.name])
    joins.process.expect("here")
    waits.process.tell("go on")
    peers = [waits, stays, joins]
    assert [peer.process.end() for peer in peers] == [0] * 3, "\n".join(peer.process.report() for peer in peers)
    return peers


def positions(receipt: Receipt) -> list[int]:
    """In the stream of samples, which counts on from epoch to epoch."""
    return list(each(union(part for entry in receipt.contributions for part in entry.samples)))


def differences(
    results: Sequence[Result], replayed: Result, weights: Mapping[int, int], tolerance: float
) -> tuple[float, str]:
    """The largest, and what is wrong with it; `weights` are those of the steps on the receipts."""
    for other in results[1:]:
        if other["state"] != results[0]["state"]:
            return 0.0, f"replicas: {compare(results[0]['state'], other['state'])}"
    logged: Counter[int] = Counter()
    for step, _, weight in (row for result in results for row in result["rows"]):
        logged[step] += weight
    # Whoever was killed or refused has taken its losses along.
    ours, (theirs,) = (
        [{**each, "rows": [row for row in each["rows"] if logged[row[0]] == weights[row[0]]]} for each in group]
        for group in (results, [replayed])
    )
    difference = max(compare(results[0]["state"], replayed["state"]), compare_losses(ours, theirs), key=size_of)
    return difference.size, str(difference) if difference.size > tolerance else ""


def uncounted(receipts: Sequence[Receipt], batches: Sequence[Sequence[int]], size: int) -> str:
    """Whether samples were counted twice or never, and peers came and went as they should; in words."""
    counted = sorted(position for batch in batches for position in batch)
    if counted != list(range(len(counted))) or len(counted) % NUM_SAMPLES:
        return f"{len(counted)} samples were counted, {len(set(counted))} of them different"
    sizes = [len(receipt.contributions) for receipt in receipts]
    before = [size for receipt, size in zip(receipts, sizes, strict=True) if receipt.step < DIES_IN]
    if (before[-1], min(sizes), sizes[-1]) != (SIZE_AT_THE_END, SIZE_AT_THE_END - 1, size):
        return f"{sizes[-1]} peers are on the last receipt, {min(sizes)} on the smallest"
    return ""
