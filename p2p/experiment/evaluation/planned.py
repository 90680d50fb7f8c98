"""Whether events came about at the steps that they were planned for. Pure."""

import re
from collections.abc import Iterable
from typing import Final

from ..happened import Happened

NEAR: Final = 2
"""Steps."""
_AT_STEP: Final = re.compile(r"step (\d+)")
_IN_ITS: Final = " in its "


def off_share(events: Iterable[Happened]) -> float | None:
    """The share of events of a step that came more than 2 steps from it; None: there is no such event.

    Those that wait for something besides (`wait_s`, `during`) come when they may, and those that did not happen are
    counted elsewhere.
    """
    off = [
        abs(event.at_step - int(found[1])) > NEAR
        for event in events
        if event.time_ns and _IN_ITS not in event.who and (found := _AT_STEP.fullmatch(event.planned)) is not None
    ]
    return round(sum(off) / len(off), 4) if off else None
