"""What the processes of a case ended with, in comparison: is it what one process ends with?"""

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .registry import Case, Verdict

Result = Mapping[str, Any]
"""`rows` and `state`, or `error`; and `warnings` of the log, as peer.py prints it."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The largest one, and where it is; infinite where values cannot be compared."""

    size: float = 0.0
    place: str = ""

    def __str__(self) -> str:
        return f"{self.place} differs by {self.size:.0e}" if self.place else "no difference"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one case.

    Attributes:
        verdict: of shoal.
        text: why it is not EQUAL.
        largest: difference from one process.
        ddp: how DDP went, in a word or two.
        ddp_text: why that is not `equal`.
    """

    verdict: Verdict
    text: str
    largest: float
    ddp: str
    ddp_text: str


def judge(case: Case, alone: Result, swarms: Sequence[Sequence[Result]], ddp: Sequence[Result]) -> Outcome:
    """Of one process, of swarms of several sizes, and of DDP."""
    assert "error" not in alone, f"{case.name} does not run in one process: {alone['error']}"
    found, found_text = judge_ddp(case, alone, ddp)
    verdict, text, largest = Verdict.EQUAL, "", 0.0
    for results in swarms:
        worse, why, size = judge_swarm(case, alone, results, ddp if len(ddp) == len(results) else ())
        largest = max(largest, size)
        if worse is Verdict.WRONG and (said := warning(case.warned, results)):
            worse, why = Verdict.WARNED, said
        order = [Verdict.EQUAL, Verdict.AS_DDP, Verdict.REFUSED, Verdict.WARNED, Verdict.WRONG]
        if order.index(worse) > order.index(verdict):
            verdict, text = worse, why
    return Outcome(verdict, text, largest, found, found_text)


def judge_swarm(
    case: Case, alone: Result, results: Sequence[Result], ddp: Sequence[Result]
) -> tuple[Verdict, str, float]:
    """Verdict, why it is not EQUAL, the largest difference from one process. `ddp` has as many processes, or none."""
    errors = [result["error"] for result in results if "error" in result]
    first = scrub(next((each for each in errors if case.refused in each), "".join(errors[:1])))
    if len(errors) == len(results):
        return Verdict.REFUSED, first, 0.0
    if errors and case.expected is Verdict.REFUSED:
        return Verdict.REFUSED, f"{first} ({len(errors)} of {len(results)} peers; the others go on)", 0.0
    if errors:
        return Verdict.WRONG, f"{len(errors)} of {len(results)} peers end with {first}", 0.0
    for other in results[1:]:
        if other["state"] != results[0]["state"]:
            return Verdict.WRONG, f"replicas: {compare(results[0]['state'], other['state'])}", 0.0
    difference = max(compare(results[0]["state"], alone["state"]), compare_losses(results, alone), key=size_of)
    if difference.size <= case.tolerance:
        return Verdict.EQUAL, "", difference.size
    as_ddp = case.expected is Verdict.AS_DDP and (
        not ddp or ("error" not in ddp[0] and trained(results[0], ddp[0]).size <= case.tolerance)
    )
    return Verdict.AS_DDP if as_ddp else Verdict.WRONG, str(difference), difference.size


def warning(expected: str, results: Sequence[Result]) -> str:
    """What the logs of all of them have said of it, as the first one has; nothing, if one has not."""
    said = [[line for line in each.get("warnings", ()) if expected in line] for each in results]
    return scrub(said[0][0]) if expected and all(said) and not any("error" in each for each in results) else ""


def judge_ddp(case: Case, alone: Result, results: Sequence[Result]) -> tuple[str, str]:
    """`equal`, `differs`, `diverges` (its replicas do), `fails`, or `-` where it has nothing of the kind; and why."""
    errors = [result["error"] for result in results if "error" in result]
    if errors:
        return ("-" if errors[0].startswith("NotThere") else "fails"), scrub(errors[0])
    apart = max((trained(results[0], other) for other in results[1:]), key=size_of)
    if apart.size:
        return "diverges", f"between its replicas {apart}"
    difference = max(trained(results[0], alone), compare_losses(results, alone), key=size_of)
    if difference.size > case.tolerance:
        return "differs", str(difference)
    local = max((compare(results[0]["state"], other["state"]) for other in results[1:]), key=size_of)
    return "equal", f"but between its replicas {local}" if local.size else ""


def scrub(error: str) -> str:
    """The same from run to run: its first line, without digests and names of peers."""
    return re.sub(r"(?<!\.)\b[0-9a-f]{16,}\b", "...", error.partition("\n")[0])


def size_of(difference: Difference) -> float:
    return difference.size


def compare(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Difference:
    """Numbers relative to the largest of their tensor, if that is above 1; everything else has to be the same."""
    if ours.keys() != theirs.keys():
        return Difference(math.inf, f"what only one has ({', '.join(sorted(ours.keys() ^ theirs.keys())[:3])})")
    differences = [Difference(distance(ours[path], theirs[path]), path) for path in ours]
    return max((each for each in differences if each.size > 0), key=size_of, default=Difference())


def distance(ours: Any, theirs: Any) -> float:
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        scale = max((abs(each) for each in theirs if isinstance(each, float) and math.isfinite(each)), default=1.0)
        return max(map(distance, ours, theirs), default=0.0) / max(scale, 1.0)
    if isinstance(ours, float) and isinstance(theirs, float) and not (math.isnan(ours) and math.isnan(theirs)):
        return 0.0 if ours == theirs else math.inf if math.isnan(ours - theirs) else abs(ours - theirs)
    return 0.0 if repr(ours) == repr(theirs) else math.inf


def trained(ours: Result, theirs: Result) -> Difference:
    """Of the parameters alone."""
    return compare(
        *(
            {key: value for key, value in each["state"].items() if key.startswith("parameter.")}
            for each in (ours, theirs)
        )
    )


def compare_losses(results: Sequence[Result], alone: Result) -> Difference:
    """Of each step that the processes have logged, the mean over their samples."""
    ours, theirs = means(results), means([alone])
    return compare(ours, theirs) if ours.keys() == theirs.keys() else Difference(math.inf, "the number of losses")


def means(results: Sequence[Result]) -> dict[str, list[float]]:
    sums: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for result in results:
        for step, loss, weight in result["rows"]:
            sums[step].append((loss, weight))
    return {f"loss of step {step}": [weighted(pairs)] for step, pairs in sorted(sums.items())}


def weighted(pairs: Sequence[tuple[float, float]]) -> float:
    total = sum(weight for _, weight in pairs)
    return sum(loss * weight for loss, weight in pairs if weight) / total if total else math.nan


def problems(case: Case, outcome: Outcome) -> Iterator[str]:
    """Where a case is not what it is expected to be."""
    found = outcome.text or f"{outcome.largest:.0e}"
    if outcome.verdict is not case.expected:
        advice = "take the expectation out of its case" if outcome.verdict is Verdict.EQUAL else "or say so in its case"
        yield f"{case.name} is {outcome.verdict} ({found}) instead of {case.expected} ({case.text}): {advice}"
    elif (case.refused or case.warned) not in outcome.text:
        yield f"{case.name} is {outcome.verdict} with another text: {outcome.text!r} instead of {case.text!r}"
