"""What was found, in one sentence: who is faster where, with intervals, and what `auto` cost. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final

from .bootstrap import Interval
from .crossings import Crossing, Pair

SURE: Final = 0.95
"""Where fewer resamples agree, it is said how many do."""
HALF: Final = 0.5
"""Where fewer do, no place is named."""


def say_bytes(size_bytes: float) -> str:
    """In three digits: `643 KiB`."""
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size_bytes >= 1 << power:
            number = size_bytes / (1 << power)
            return f"{number:.{3 if number < 1000 else 4}g} {unit}"
    return f"{size_bytes:.0f} B"


def say_pair(pair: Pair, sizes_bytes: Sequence[int]) -> str:
    """One of the parts of the sentence."""
    if not pair.crossings:
        return _without(pair, sizes_bytes)
    if pair.share < HALF:
        return f"where {pair.a} and {pair.b} change places cannot be told: measure for longer"
    first, *more = pair.crossings
    said = f"{first.below} is faster than {first.above} below {_at(first)}, {first.above} above"
    said += "".join(f", {each.above} again above {_at(each)}" for each in more)
    if pair.share < SURE:
        said += f" (so in {int(100 * pair.share)} % of the resamples only: measure for longer)"
    return said


def _at(crossing: Crossing) -> str:
    at = crossing.at_bytes
    low, high = say_bytes(at.low), say_bytes(at.high)
    low = low.removesuffix(low[low.index(" ") :]) if low.split()[1] == high.split()[1] else low
    return f"{say_bytes(at.value)} (95 %: {low} to {high})"


def _without(pair: Pair, sizes_bytes: Sequence[int]) -> str:
    """They do not cross."""
    faster, slower = (pair.a, pair.b) if pair.ratios[0].value <= 1 else (pair.b, pair.a)
    unclear = [size for size, ratio in zip(sizes_bytes, pair.ratios, strict=True) if ratio.low <= 1 <= ratio.high]
    if len(unclear) == len(sizes_bytes):
        return f"{pair.a} and {pair.b} cannot be told apart at any size"
    said = f"{faster} is faster than {slower} at every size"
    if unclear:
        said += f", but not for certain (95 %) at {', '.join(map(say_bytes, unclear))}"
    return said


def say_regret(name: str, regrets: Sequence[Interval]) -> str:
    least, most = (max(0.0, each(regret.value for regret in regrets)) * 100 for each in (min, max))
    span = f"{least:.0f} to {most:.0f} %" if round(least) != round(most) else f"{most:.0f} %"
    worst = max(regrets, key=lambda regret: regret.value)
    low, high = (max(0.0, each) * 100 for each in (worst.low, worst.high))
    return f"{name} cost {span} more than the best (95 % where it is most: {low:.0f} to {high:.0f} %)"


def say(pairs: Sequence[Pair], regrets: Mapping[str, Sequence[Interval]], sizes_bytes: Sequence[int]) -> str:
    """All of it; empty where there is nothing to compare."""
    parts = [say_pair(pair, sizes_bytes) for pair in pairs]
    parts += [say_regret(name, found) for name, found in regrets.items()]
    return "; ".join(parts) + "." if parts else ""
