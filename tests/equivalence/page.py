"""docs/training-code.md, made of the cases and of what the last full run found."""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from .registry import FAMILIES, Case, Verdict
from .results import Found

PAGE: Final = Path(__file__).parents[2] / "docs" / "training-code.md"

INTRODUCTION: Final = """# Training code

Common code around a model, in {number} small scripts. Each runs in one process that has all samples, with 2 and
with 3 peers, and under DistributedDataParallel (2 processes, Gloo). `make equivalence` runs them and writes this page,
which says what was found: {counts}. The scripts are in `tests/equivalence/families/`.

| word | means |
|---|---|
| equal | replicas are equal bit by bit; their losses and state are those of one process, within the number beside it |
| as DDP | what DDP computes, but not one process with all samples, since each script sees only its part |
| refused | a peer that does it raises an error with this text |
| warned | not what one process computes, and the log of each peer says this |
| **wrong** | known, and not right yet; a test fails when it is |

The state is everything that the next step depends on: parameters, buffers, moments, schedules, scalers, frozen layers.
A number in brackets is the allowed rounding, where that is above 2e-6. Where it says *coming and going*
({elastic} scripts), one of three peers is killed in a step, another joins, and one process replays what the receipts
say: the state is then equal, and each sample was counted once.

Of DDP: *diverges*, its replicas differ, without an error; *differs*, they agree, but not with one process; *fails*, it
raises an error; *-*, it has nothing of the kind."""

HEAD: Final = "| script | here | DDP | what is different |\n|---|---|---|---|"

MOST: Final = 190
"""Characters of an error."""


def render(cases: Mapping[str, Case], found: Mapping[str, Found]) -> str:
    """The whole page."""
    counts = Counter(each.outcome.verdict for each in found.values())
    words = ", ".join(f"{counts[verdict]} {verdict}" for verdict in Verdict if counts[verdict])
    elastic = sum(each.replayed is not None for each in found.values())
    parts = [INTRODUCTION.format(number=len(found), counts=words, elastic=elastic)]
    parts += ["## Where DDP is silently wrong, and shoal is not", "\n".join(better(cases, found))]
    for family, title in FAMILIES.items():
        rows = [row(case, found[name]) for name, case in cases.items() if case.family == family and name in found]
        parts += [f"## {title}", "\n".join([HEAD, *rows])]
    return "\n\n".join(parts) + "\n"


def better(cases: Mapping[str, Case], found: Mapping[str, Found]) -> Iterator[str]:
    for name, each in found.items():
        if each.outcome.ddp in ("diverges", "differs") and each.outcome.verdict in (Verdict.EQUAL, Verdict.REFUSED):
            how = "refused here" if each.outcome.verdict is Verdict.REFUSED else "equal here"
            yield f"- {cases[name].title}: {each.outcome.ddp}; {how}"


def row(case: Case, found: Found) -> str:
    outcome = found.outcome
    here = f"**{outcome.verdict}**" if outcome.verdict is Verdict.WRONG else str(outcome.verdict)
    if outcome.verdict is Verdict.EQUAL:
        here += f", {outcome.largest:.0e}" + (f" ({case.tolerance:.0e})" if case.rounding[1] else "")
    return f"| {case.title} | {here} | {outcome.ddp} | {'; '.join(notes(case, found))} |"


def notes(case: Case, found: Found) -> Iterator[str]:
    outcome, replayed = found.outcome, found.replayed
    if outcome.verdict in (Verdict.REFUSED, Verdict.WARNED):
        yield cell(outcome.text)
    elif case.text:
        yield case.text
    if case.rounding[1]:
        yield case.rounding[1]
    if outcome.ddp_text and outcome.ddp != "-":
        yield f"DDP: {cell(outcome.ddp_text) if outcome.ddp == 'fails' else outcome.ddp_text}"
    if replayed is not None:
        how = f"**{replayed.verdict}**" if replayed.verdict is Verdict.WRONG else str(replayed.verdict)
        why = cell(replayed.text) if replayed.verdict in (Verdict.REFUSED, Verdict.WARNED) else case.joiner_wrong
        yield f"coming and going: {how}" + (f", {replayed.largest:.0e}" if not why else f", {why}")


def cell(error: str) -> str:
    """An error as code, of one line."""
    short = error if len(error) <= MOST else f"{error[:MOST].rpartition(' ')[0]} ..."
    return "`" + short.replace("`", "'").replace("|", "/") + "`"
