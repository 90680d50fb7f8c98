"""The results in one sentence: which contender is faster at which sizes, with intervals; the cost of `auto`. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final

from .bootstrap import Interval
from .crossings import Crossing, Pair
from .regret import Cost

SURE: Final = 0.95
"""If a smaller share of the resamples agrees, the sentence states the share."""
HALF: Final = 0.5
"""If a smaller share agrees, the sentence names no size."""


def say_bytes(size_bytes: float) -> str:
    """The size in three digits: `643 KiB`."""
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size_bytes >= 1 << power:
            number = size_bytes / (1 << power)
            return f"{number:.{3 if number < 1000 else 4}g} {unit}"
    return f"{size_bytes:.0f} B"


def say_pair(pair: Pair, sizes_bytes: Sequence[int]) -> str:
    """The part of the sentence about two contenders."""
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
    """The part of the sentence about two contenders that do not cross."""
    faster, slower = (pair.a, pair.b) if pair.ratios[0].value <= 1 else (pair.b, pair.a)
    unclear = [size for size, ratio in zip(sizes_bytes, pair.ratios, strict=True) if ratio.low <= 1 <= ratio.high]
    if len(unclear) == len(sizes_bytes):
        return f"{pair.a} and {pair.b} cannot be told apart at any size"
    said = f"{faster} is faster than {slower} at every size"
    if unclear:
        said += f", but not for certain (95 %) at {', '.join(map(say_bytes, unclear))}"
    return said


def say_regret(name: str, costs: Sequence[Cost]) -> str:
    """The part about an `auto`: its choice against the best, and its overhead against the same algorithms by name."""
    said = f"{name} cost {_more([each.choice for each in costs])} more than the best, by what it took"
    said += f" ({_where_most([each.choice for each in costs])})"
    overheads = [each.overhead for each in costs if each.overhead is not None]
    if overheads and all(each.low <= 0 <= each.high for each in overheads):
        said += f", and as much as the same by name, as far as can be told ({_where_most(overheads)})"
    elif overheads:
        said += f", and {_more(overheads)} more than the same by name ({_where_most(overheads)})"
    if unnamed := {name: sum(name in each.unnamed for each in costs) for each in costs for name in each.unnamed}:
        told = " and ".join(f"{name} at {number} of {len(costs)} sizes" for name, number in unnamed.items())
        said += f"; it took {told}, not measured by name"
    return said


def _more(shares: Sequence[Interval]) -> str:
    least, most = (round(100 * each(share.value for share in shares)) for each in (min, max))
    return f"{least} to {most} %" if least != most else f"{most} %"


def _where_most(shares: Sequence[Interval]) -> str:
    worst = max(shares, key=lambda share: share.value)
    return f"95 % where it is most: {round(100 * worst.low)} to {round(100 * worst.high)} %"


def say(pairs: Sequence[Pair], regrets: Mapping[str, Sequence[Cost]], sizes_bytes: Sequence[int]) -> str:
    """The whole sentence; empty if there is nothing to compare."""
    parts = [say_pair(pair, sizes_bytes) for pair in pairs]
    parts += [say_regret(name, found) for name, found in regrets.items()]
    return "; ".join(parts) + "." if parts else ""
