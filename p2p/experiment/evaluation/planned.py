"""How many events happened at the step that they were planned for. Pure."""

import re
from collections.abc import Iterable
from typing import Final

from ..run_log import EventOutcome

NEAR: Final = 2
"""Steps."""
_AT_STEP: Final = re.compile(r"step (\d+)")
_IN_ITS: Final = " in its "


def off_share(events: Iterable[EventOutcome]) -> float | None:
    """The share of events planned for a step that happened more than 2 steps from it; None: there is no such event.

    Events that also wait for something else (`wait_s`, `during`) are left out; so are events that did not happen, which
    are counted elsewhere.
    """
    off = [
        abs(event.at_step - int(found[1])) > NEAR
        for event in events
        if event.time_ns and _IN_ITS not in event.who and (found := _AT_STEP.fullmatch(event.planned)) is not None
    ]
    return round(sum(off) / len(off), 4) if off else None
