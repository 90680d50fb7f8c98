"""The link that makes steps longer after a `link` event, from the times at which hosts finish and commit. Pure.

B commits no step before it hears that A has finished it. So the minimum of B's commit minus A's finish, over some
steps, is the delay from A to B, plus whatever else B had to wait for in each of these. Needs one clock, as in a lab.
"""

from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Final

from ..clocks import Moments
from ..folder import Run, host_steps, hosts_of
from .cost import Cost
from .costs import NUM_BESIDE

LEAST_SHARE: Final = 0.2
"""Share of the growth of the step time: a link whose delay grew by less is no cause."""
ALIKE_MS: Final = 1.0
"""Links whose delays grew equally, within this tolerance, are slower for the same reason.

While B waits for a late message of A, C's message seems to be late, too, except by the most that C has finished later
than A in some step: hosts that always finish together cannot be told apart.
"""

Pair = tuple[str, str]


def name_links(run: Run, found: Sequence[Cost]) -> None:
    """Name in `why` of each `link` event the link that made steps longer, if one did."""
    if run.log is None or not any("step_after" in cost.times_ms for cost in found):
        return
    steps, names = host_steps(run), _names(run)
    for cost in found:
        at = cost.event.time_ns
        before_ms, after_ms = (cost.times_ms.get(name, 0.0) for name in ("step_before", "step_after"))
        if cost.event.do != "link" or not 0 < before_ms < after_ms:
            continue
        begin, end = run.log.adjacent_ns(at)
        before = [step for step in steps if begin < _began_ns(step) and _committed_ns(step) <= at][-NUM_BESIDE:]
        after = [step for step in steps if at < _began_ns(step) and _committed_ns(step) < end][:NUM_BESIDE]
        cause = slower(delays_ms(before), delays_ms(after), names)
        if cause is not None and cause[1] >= LEAST_SHARE * (after_ms - before_ms):
            cost.why["longer"] = f"step {before_ms:.0f} -> {after_ms:.0f} ms: link {cause[0]} +{cause[1]:.0f} ms"


def delays_ms(steps: Sequence[Mapping[str, Moments]]) -> dict[Pair, float]:
    """Upper bounds, from these steps, on the delay from each host to each other."""
    found: dict[Pair, float] = {}
    for step in steps:
        for x, y in permutations(step, 2):
            delay_ms = (step[y].committed_ns - step[x].finished_ns) / 1e6
            found[x, y] = min(delay_ms, found.get((x, y), delay_ms))
    return found


def slower(
    before: Mapping[Pair, float], after: Mapping[Pair, float], names: Mapping[str, str]
) -> tuple[str, float] | None:
    """The link whose delay grew most, in words, and by how many ms; None: none did."""
    grown = {pair: after[pair] - before[pair] for pair in before.keys() & after.keys()}
    if not grown or max(grown.values()) <= 0:
        return None
    source, target = max(sorted(grown), key=lambda pair: grown[pair])
    most = grown[source, target]
    of_source = [each for (x, _), each in grown.items() if x == source]
    of_target = [each for (_, y), each in grown.items() if y == target]
    leave, come = (
        min(each) if len(each) > 1 and min(each) >= most - ALIKE_MS else 0.0 for each in (of_source, of_target)
    )
    if leave and leave >= come:
        return f"{names[source]} -> the others", most
    if come:
        return f"the others -> {names[target]}", most
    return f"{names[source]} -> {names[target]}", most


def _names(run: Run) -> dict[str, str]:
    """Names of hosts as in the file: the first peers were started one on each host, in order."""
    assert run.log is not None
    index = {each.peer_id: each.index for each in run.log.processes}
    found: dict[str, int] = {}
    for peer_id, host in hosts_of(run).items():
        found[host] = min(index.get(peer_id, 1 << 30), found.get(host, 1 << 30))
    return {host: f"host {number}" for host, number in found.items()}


def _began_ns(step: Mapping[str, Moments]) -> int:
    return min(each.finished_ns for each in step.values())


def _committed_ns(step: Mapping[str, Moments]) -> int:
    return min(each.committed_ns for each in step.values())
