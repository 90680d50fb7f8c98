"""Which member is the slowest, by what all have said of their steps in the counts. Pure; the same verdict at all.

A step takes as long as its slowest member. What each has needed for its own part, from one commit until it has
submitted all of the next, stands with the counts of the step behind, so it is committed before anybody judges it.
Leaves out slow links (R22 has what is measured of these), and how many samples a part has: all have about as many.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Final

WINDOW: Final = 20
"""Training steps of the same members that a verdict is over."""
LEAST_US: Final = 10_000
"""A smaller lag does not count as slow, whatever the factor: a busy host causes that to any peer."""

Named = tuple[str, int]
"""peer_id and incarnation."""


@dataclass(frozen=True, slots=True)
class Straggler:
    """A member that is slow.

    Attributes:
        took_us: of its step that is the median one, by how many times what the others needed it was.
        others_us: the median of the others in that step.
        num_steps: that were looked at.
    """

    who: Named
    took_us: int
    others_us: int
    num_steps: int

    def __str__(self) -> str:
        times = self.took_us / max(self.others_us, 1)
        return (
            f"its compute is {times:.1f} times the median of the others over {self.num_steps} steps "
            f"({self.took_us / 1e3:.1f} ms, {self.others_us / 1e3:.1f} ms)"
        )


def judge(rows: Sequence[Sequence[int]], members: Sequence[Named], factor: float) -> Straggler | None:
    """The slowest member, if it takes `factor` times as long as the others; of several, the first in rank order.

    Members are compared step by step: where a loop has steps of two kinds (discriminator and generator), half of them
    are cheap for all, and the median of one peer may be an expensive one by chance.

    `rows`: for each step, how long the members took, in microseconds, in rank order.
    """
    if len(members) < 2:
        return None
    medians = [_median_step([(row[place], _of_others(row, place)) for row in rows]) for place in range(len(members))]
    place = max(range(len(members)), key=lambda each: _times(medians[each]))
    own, others = medians[place]
    if own < factor * others or own - others < LEAST_US:
        return None
    return Straggler(members[place], own, others, len(rows))


def _of_others(row: Sequence[int], place: int) -> int:
    return median_low([*row[:place], *row[place + 1 :]])


def _median_step(steps: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """The step, own time and that of the others, in which the first is to the second as it is in the middle one."""
    return sorted(steps, key=_times)[(len(steps) - 1) // 2]


def _times(step: tuple[int, int]) -> float:
    own, others = step
    return own / max(others, 1)


class StragglerDetector:
    """Durations that the members have reported lately.

    Attributes:
        slowest: by the last `WINDOW` judged steps; None: no member is slow, or the members have changed since.
    """

    def __init__(self, factor: float, window: int = WINDOW) -> None:
        self.slowest: Straggler | None = None
        self._factor, self._window = factor, window
        self._members: tuple[Named, ...] = ()
        self._said: set[Named] = set()
        self._rows: deque[Sequence[int]] = deque(maxlen=window)

    def committed(self, number: int, members: tuple[Named, ...], took_us: Sequence[int]) -> Straggler | None:
        """Training step `number` is committed, in which each has said what it needed for the one before.

        Returns:
            Who is slow, if that was not said yet of these members.
        """
        if members != self._members:  # what they say now was of other members' shares
            self._members, self.slowest, self._said = members, None, set()
            self._rows.clear()
            return None
        self._rows.append(took_us)
        if number % self._window or len(self._rows) < self._window:
            return None
        self.slowest = found = judge(self._rows, members, self._factor)
        if found is None or found.who in self._said:
            return None
        self._said.add(found.who)
        return found
