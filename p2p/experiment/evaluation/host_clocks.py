"""How tightly and correctly records bound the clocks of hosts that share one clock: those of a lab. Pure."""

from collections.abc import Mapping, Sequence
from itertools import combinations

from ...errors import ExperimentError
from ..clocks import WINDOW, Bounds, ClocksDisagree, Moments, fit
from ..folder import Run, host_steps


def clock_metrics(run: Run) -> dict[str, float]:
    """The width of the bounds of two clocks, over 200 steps that both hosts were in, and how far 0 lies outside them.

    Returns:
        `clock_width_ms_max` and `clock_off_ms_max`; empty for one host, if no two hosts were in 200 steps together, or
        for a run without an account, whose hosts may have different clocks.

    Raises:
        ExperimentError: the records contradict each other under any clocks.
    """
    if run.log is None:
        return {}
    try:
        found = pair_bounds(host_steps(run))
    except ClocksDisagree:
        raise ExperimentError("a host has committed a step before another one had finished it, by any clocks") from None
    if not found:
        return {}
    return {
        "clock_width_ms_max": round(max(each.high_ns - each.low_ns for each in found) / 1e6, 3),
        "clock_off_ms_max": round(max(0, *(max(each.low_ns, -each.high_ns) for each in found)) / 1e6, 3),
    }


def pair_bounds(steps: Sequence[Mapping[str, Moments]]) -> list[Bounds]:
    """Bounds for each pair of hosts, one per 200 steps that both were in."""
    found: list[Bounds] = []
    for x, y in combinations(sorted({host for step in steps for host in step}), 2):
        both = [{x: step[x], y: step[y]} for step in steps if x in step and y in step]
        clocks = fit(both[: len(both) // WINDOW * WINDOW])
        found += [each for bounds in clocks.bounds.values() for each in bounds]
    return found
