"""Lines that explain which algorithm `auto` takes at each size, and why. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..plan import format_size


def explain(explained: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A line for each size, from the results of `peer.explain`."""
    for each in explained:
        yield f"{format_size(each['size_bytes'])}: auto takes {each['algorithm']}, {each['why']}"
        told = [
            f"{what} {_times(each[key])}"
            for what, key in (("expected", "expected_s"), ("predicted", "predicted_s"), ("measured", "measured_s"))
            if each[key]
        ]
        if told:
            yield f"    {'; '.join(told)}"


def _times(times_s: Mapping[str, float]) -> str:
    """The times in words, fastest first."""
    return ", ".join(
        f"{name} {1e3 * took_s:.1f} ms" for name, took_s in sorted(times_s.items(), key=lambda item: item[1])
    )
