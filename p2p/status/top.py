"""`shoal top`: one row per peer, with the durations of its last steps as a line of bars. Pure.

Rows are laid out here, as text: a `rich.Table` of 64 peers takes six times as long, which was most of a look's cost.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import median
from typing import Final

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions
from rich.segment import Segment

from .local import PeerStatus
from .report import events, headline, in_order, latest_snapshot, links, names_of, row_of, slowest

BARS: Final = "▁▂▃▄▅▆▇█"
NUM_BARS: Final = 30
MEDIAN_BAR: Final = 2

TITLES: Final = ("peer", "process", "seat", "step", "median", "slowest", f"last {NUM_BARS} steps", "is at", "logged")
NUMBERS: Final = range(3, 6)
"""Right-aligned columns."""
BARS_AT: Final = 6
WORDS: Final = range(7, 9)
"""Columns that are truncated if a line is too long: the second down to `LOGGED_SHARE` of their room, then the first."""
LOGGED_SHARE: Final = 1 / 3
GAP: Final = "  "

NUM_LATEST: Final = 8
"""Records of each half of a page, from which a peer's current activity follows."""


def spark(times: Sequence[float]) -> str:
    """The last steps as bars: the third height is the median, two heights more are a factor of 2."""
    if not times:
        return ""
    middle = median(times)
    heights = (MEDIAN_BAR + round(2 * math.log2(time / middle)) for time in times[-NUM_BARS:])
    return "".join(BARS[min(max(height, 0), len(BARS) - 1)] for height in heights)


@dataclass(frozen=True, slots=True)
class Screen:
    """Lines of text, and rows of a table, truncated at the console's width."""

    parts: Sequence[str | Sequence[Sequence[str]]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for part in self.parts:
            for line in [part] if isinstance(part, str) else _lines(part, options.max_width):
                yield Segment(_cut(line if line.isprintable() else _printable(line), options.max_width))
                yield Segment.line()


def screen(found: Mapping[str, Sequence[PeerStatus]], steps_us: Mapping[str, Sequence[int]]) -> Screen:
    """A table and the last events of each swarm. `steps_us`: durations of the last steps, by peer_id.

    With other hosts, also the links of the slowest peer, for which the others wait.
    """
    parts: list[str | Sequence[Sequence[str]]] = []
    for swarm, peers in in_order(found):
        latest, names = latest_snapshot(peers), names_of(peers)
        rows: list[Sequence[str]] = [TITLES]
        for looked in peers:
            name, process, seat, step, *_, at, logged = row_of(looked, latest, names)
            took = steps_us.get(looked.seen.identity.peer_id, ())
            words = [f"{value / 1e3:.3g} ms" for value in (median(took), max(took))] if took else ["", ""]
            rows.append((name, process, seat, step, *words, spark(took), at, logged))
        slow = slowest(peers)
        parts += [headline(swarm, peers, latest), rows]
        parts += [f"  {line}" for line in chain(links([slow] if slow else [], names), events(peers, latest, names))]
        parts.append("")
    return Screen(parts[:-1] if parts else ["no peer is here any more"])


def _lines(rows: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    """Lines of a table, at most `width` wide unless the columns that are never truncated need more."""
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    widths[BARS_AT] = max(widths[BARS_AT], NUM_BARS)
    at, logged = WORDS
    room = max(0, width - sum(widths[:at]) - len(GAP) * (len(widths) - 1))
    if widths[at] + widths[logged] > room:
        widths[logged] = min(widths[logged], max(room - widths[at], int(room * LOGGED_SHARE)))
        widths[at] = min(widths[at], room - widths[logged])
    for row in rows:
        cells = [
            _cell(text, each, index in NUMBERS) for index, (text, each) in enumerate(zip(row, widths, strict=True))
        ]
        yield GAP.join(cells).rstrip()


def _cell(text: str, width: int, is_number: bool) -> str:
    """The text padded or truncated to this width."""
    if text.isascii() and len(text) <= width:
        return text.rjust(width) if is_number else text.ljust(width)
    return set_cell_size(_cut(text, width), width)


def _cut(text: str, width: int) -> str:
    """The text truncated to this width; an ellipsis marks what is missing."""
    is_short = len(text) <= width if text.isascii() else cell_len(text) <= width
    return text if is_short else set_cell_size(text, max(0, width - 1)) + "…" if width else ""


def _printable(line: str) -> str:
    """The line with question marks for unprintable characters, which could move the cursor."""
    return "".join(each if each.isprintable() else "?" for each in line)
