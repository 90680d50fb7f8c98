"""Stages of operations on a device, for people: a table, and the slowest stage. Pure."""

from collections.abc import Sequence
from itertools import groupby
from typing import Final

from rich.table import Table

from ..plan import format_size
from ..stages import STAGES
from .result import Result, in_us

WHAT: Final = (
    "stages: p50 of each, of the slowest peer of a round; exchange: of the peer that waits least for copies of "
    "others, without the part during a copy to the host"
)


def make_stage_table(results: Sequence[Result]) -> Table:
    """A row for each size and contender that has stages."""
    table = Table(title="stages, p50 us", title_justify="left", padding=(0, 1, 0, 0), box=None)
    for heading in ("size", "algorithm", *STAGES, "slowest"):
        is_word = heading in ("algorithm", "slowest")
        table.add_column(heading, justify="left" if is_word else "right", no_wrap=True)
    for result in results:
        if stages := result.stages_p50_s:
            slowest = slowest_stage(stages)
            times = (f"{in_us(time_s):.1f}" for time_s in stages.values())
            share = f"{slowest} ({stages[slowest] / sum(stages.values()):.0%})"
            table.add_row(format_size(result.size_bytes), result.algorithm, *times, share)
    return table


def stages_in_words(results: Sequence[Result]) -> list[str]:
    """A line that explains the table, and one with the slowest stages; none if no contender has stages."""
    rows = [(result.algorithm, result.size_bytes, found) for result in results if (found := result.stages_p50_s)]
    if not rows:
        return []
    slowest = [(name, size, slowest_stage(found)) for name, size, found in rows]
    names = list(dict.fromkeys(name for name, _, _ in slowest))
    parts = [_of_one([(size, stage) for each, size, stage in slowest if each == name]) for name in names]
    if len(set(parts)) == 1:
        return [WHAT, f"slowest stage: {parts[0]}"]
    said = "; ".join(f"{name}: {part}" for name, part in zip(names, parts, strict=True))
    return [WHAT, f"slowest stage of {said}"]


def _of_one(found: Sequence[tuple[int, str]]) -> str:
    """The slowest stages of one contender, by rising size."""
    runs = [(stage, [size for size, _ in group]) for stage, group in groupby(found, key=lambda each: each[1])]
    if len(runs) == 1:
        return f"{runs[0][0]} at every size"
    return ", ".join(f"{stage} at {_span(sizes)}" for stage, sizes in runs)


def _span(sizes: Sequence[int]) -> str:
    first, last = format_size(sizes[0]), format_size(sizes[-1])
    return first if first == last else f"{first} to {last}"


def slowest_stage(stages: dict[str, float]) -> str:
    """The name of the stage with the longest time."""
    return max(stages, key=stages.__getitem__)
