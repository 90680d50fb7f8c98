"""`shoal top`: one row per peer, with what its last steps took as a line of bars. Pure."""

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from .local import Looked
from .report import events, headline, in_order, latest_snapshot, names_of, row_of

BARS: Final = "▁▂▃▄▅▆▇█"
NUM_BARS: Final = 30
MEDIAN_BAR: Final = 2


def spark(times: Sequence[float]) -> str:
    """The last steps: the third bar is their median, two bars more are a factor of 2."""
    if not times:
        return ""
    middle = median(times)
    heights = (MEDIAN_BAR + round(2 * math.log2(time / middle)) for time in times[-NUM_BARS:])
    return "".join(BARS[min(max(height, 0), len(BARS) - 1)] for height in heights)


def screen(found: Mapping[str, Sequence[Looked]], steps_us: Mapping[str, Sequence[int]]) -> RenderableType:
    """A table for each swarm, and what happened last in it. `steps_us`: what the last steps took, by peer_id."""
    parts: list[RenderableType] = []
    for swarm, peers in in_order(found):
        latest, names = latest_snapshot(peers), names_of(peers)
        table = Table("peer", "process", "seat", box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for column in ("step", "median", "slowest"):
            table.add_column(column, justify="right", no_wrap=True)
        table.add_column(f"last {NUM_BARS} steps", no_wrap=True, min_width=NUM_BARS)
        for column in ("is at", "logged"):
            table.add_column(column, no_wrap=True, overflow="ellipsis")
        for looked in peers:
            name, process, seat, step, *_, at, logged = row_of(looked, latest, names)
            took = steps_us.get(looked.seen.identity.peer_id, ())
            words = [f"{value / 1e3:.3g} ms" for value in (median(took), max(took))] if took else ["", ""]
            table.add_row(*map(Text, (name, process, seat, step, *words, spark(took), at, logged)))
        parts += [Text(headline(swarm, peers, latest)), table]
        parts += [Text(f"  {line}") for line in events(peers, latest, names)]
        parts.append(Text(""))
    return Group(*parts[:-1]) if parts else Text("nobody is here any more")
