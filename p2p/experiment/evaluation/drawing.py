"""Charts over time as SVG, without a library: stacked panels that share one time axis. Pure.

Lines with more points than pixels are thinned per column of pixels: the minimum and the maximum of each stay.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from statistics import median
from typing import Final

LEFT, RIGHT, WIDTH = 78, 12, 1000
INNER: Final = WIDTH - LEFT - RIGHT
GAP, TOP, BOTTOM = 26, 34, 28
THIN_COLUMNS: Final = 220
"""Columns of the lines in the background."""

ROW, LOW_ROW = 16, 6
MANY: Final = 40
"""Rows or marks; more than that are drawn smaller and thinner."""

MOST_ASIDE: Final = 24
"""The largest distance of a number from its mark; a number that needs more is left out, and only the title remains."""

Points = Sequence[tuple[float, float]]
"""(seconds, value)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One chart.

    Attributes:
        points: of its line.
        behind: thin lines in the background, of other repetitions.
        is_log: the axis of values is logarithmic.
        is_steps: the line stays level up to the next point.
    """

    title: str
    points: Points
    behind: Sequence[Points] = ()
    is_log: bool = False
    is_steps: bool = False
    height: int = 110


@dataclass(frozen=True, slots=True)
class EventMarker:
    """An event: a line through all panels at `start_s`, shaded up to `end_s`."""

    number: int
    start_s: float
    end_s: float
    text: str


@dataclass(frozen=True, slots=True)
class Row:
    """A lane: spans (class, from, to) in seconds."""

    name: str
    spans: Sequence[tuple[str, float, float]]
    end: str


def thin(points: Points, span_s: float, columns: int = INNER) -> list[tuple[float, float]]:
    """At most two points per column: the minimum and the maximum, in their original order."""
    by_column: dict[int, list[tuple[float, float]]] = {}
    for time_s, value in points:
        if math.isfinite(value):
            by_column.setdefault(int(time_s / span_s * columns), []).append((time_s, value))
    found: list[tuple[float, float]] = []
    for _, group in sorted(by_column.items()):
        low, high = (choose(group, key=lambda point: point[1]) for choose in (min, max))
        found += sorted({low, high})
    return found


def middle(lines: Sequence[Points], span_s: float) -> list[tuple[float, float]]:
    """The median of several lines, per column."""
    found = []
    for column in range(THIN_COLUMNS):
        start, end = column * span_s / THIN_COLUMNS, (column + 1) * span_s / THIN_COLUMNS
        each = [[value for time_s, value in line if start <= time_s < end] for line in lines]
        if medians := [median(values) for values in each if values]:
            found.append(((start + end) / 2, median(medians)))
    return found


def draw(panels: Sequence[Panel], rows: Sequence[Row], marks: Sequence[EventMarker], span_s: float) -> str:
    """Draw all panels, rows and marks as one SVG."""
    panels = [panel for panel in panels if panel.points]
    is_many = len(rows) > MANY
    shared = shared_rows(rows, apart_s=span_s / INNER) if is_many else [[row] for row in rows]
    row_height = LOW_ROW if is_many else ROW
    height = TOP + sum(panel.height + GAP for panel in panels) + row_height * len(shared) + BOTTOM
    parts = [f'<svg viewBox="0 0 {WIDTH} {height}" role="img" xmlns="http://www.w3.org/2000/svg">']
    parts += _marks(marks, span_s, height - BOTTOM)
    y = TOP
    for panel in panels:
        parts += _panel(panel, y, span_s)
        y += panel.height + GAP
    if is_many:
        parts.append(f'<text x="{LEFT - 6}" y="{y + 7}" text-anchor="end">{len(rows)} peers</text>')
    for sharing in shared:
        for row in sharing:
            parts += _low_row(row, y, span_s) if is_many else _row(row, y, span_s)
        y += row_height
    parts += _time_axis(span_s, y + 4)
    return "\n".join([*parts, "</svg>"])


def shared_rows(rows: Sequence[Row], apart_s: float) -> list[list[Row]]:
    """Rows grouped into lanes: rows of a lane do not overlap, and are at least `apart_s` apart.

    Each row takes the first lane that is free, in order of beginnings, so there are as few lanes as possible.
    """
    lanes: list[list[Row]] = []
    ends: list[float] = []
    for row in sorted((row for row in rows if row.spans), key=lambda row: min(start for _, start, _ in row.spans)):
        begins, until = min(start for _, start, _ in row.spans), max(end for *_, end in row.spans)
        free = next((number for number, end in enumerate(ends) if begins >= end + apart_s), len(lanes))
        if free == len(lanes):
            lanes.append([])
            ends.append(until)
        lanes[free].append(row)
        ends[free] = until
    return lanes


def _x(time_s: float, span_s: float) -> float:
    return LEFT + min(max(time_s / span_s, 0.0), 1.0) * INNER


def _marks(marks: Sequence[EventMarker], span_s: float, bottom: float) -> Iterable[str]:
    free = float("-inf")
    kind = "mark" if len(marks) <= MANY else "mark many"
    for mark in sorted(marks, key=lambda mark: mark.start_s):
        x, end = _x(mark.start_s, span_s), _x(mark.end_s, span_s)
        number, at = "", max(x, free)  # numbers are placed side by side if events are close
        if at - x <= MOST_ASIDE:
            free = at + 7 + 6 * len(str(mark.number))
            text = f'<text x="{at:.1f}" y="{TOP - 18}" text-anchor="middle">{mark.number}</text>'
            number = f'<a href="#row{mark.number}">{text}</a>'
        width, shade = max(end - x, 1.0), ""
        if width > 1.0 or len(marks) <= MANY:
            shade = f'<rect x="{x:.1f}" y="{TOP - 8}" width="{width:.1f}" height="{bottom - TOP + 8:.0f}"/>'
        yield (
            f'<g class="{kind}" id="e{mark.number}"><title>{escape(mark.text)}</title>{shade}'
            f'<path d="M{x:.1f} {TOP - 8}V{bottom:.0f}"/>'
            f"{number}</g>"
        )


def _panel(panel: Panel, y: float, span_s: float) -> Iterable[str]:
    values = [value for line in (panel.points, *panel.behind) for _, value in line if math.isfinite(value)]
    values = [value for value in values if value > 0] if panel.is_log else values
    if not values:
        return
    low, high = _bounds(min(values), max(values), is_log=panel.is_log)

    def place(value: float) -> float:
        share = (math.log(value / low) / math.log(high / low)) if panel.is_log else (value - low) / (high - low)
        return y + panel.height * (1 - min(max(share, 0.0), 1.0))

    yield f'<text class="title" x="{LEFT}" y="{y - 5}">{escape(panel.title)}</text>'
    for tick in _ticks(low, high, is_log=panel.is_log):
        at = place(tick)
        yield f'<path class="grid" d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}"/>'
        yield f'<text x="{LEFT - 6}" y="{at + 3.5:.1f}" text-anchor="end">{_number(tick)}</text>'
    for line in panel.behind:
        yield f'<path class="behind" d="{_path(thin(line, span_s, THIN_COLUMNS), panel, place, span_s)}"/>'
    points = list(panel.points) if panel.is_steps else thin(panel.points, span_s)
    yield f'<path class="line" d="{_path(points, panel, place, span_s)}"/>'


def _path(points: Points, panel: Panel, place: Callable[[float], float], span_s: float) -> str:
    words: list[str] = []
    before = ""
    for time_s, value in points:
        if panel.is_log and value <= 0:
            continue
        x, y = f"{_x(time_s, span_s):.1f}", f"{place(value):.1f}"
        if not words:
            words.append(f"M{x} {y}")
        elif panel.is_steps:
            words.append(f"H{x}" + (f"V{y}" if y != before else ""))
        else:
            words.append(f"L{x} {y}")
        before = y
    return "".join(words)


def _row(row: Row, y: float, span_s: float) -> Iterable[str]:
    yield f'<text x="{LEFT - 6}" y="{y + 10}" text-anchor="end">{escape(row.name)}</text>'
    yield from _spans(row, y, span_s)
    if row.end and row.spans:
        x = _x(max(end_s for *_, end_s in row.spans), span_s)
        is_late = x > WIDTH - 130
        place = f'x="{x - 4 if is_late else x + 4:.1f}" y="{y + 10}" text-anchor="{"end" if is_late else "start"}"'
        yield f'<text class="{"late" if is_late else "end"}" {place}>{escape(row.end)}</text>'


def _low_row(row: Row, y: float, span_s: float) -> Iterable[str]:
    """A row drawn low, as one of many: its name is only in its title."""
    said = ", ".join(f"{kind} {start_s:.2f} to {end_s:.2f} s" for kind, start_s, end_s in row.spans)
    yield f"<g><title>{escape(row.name)}: {said}{'; ' if row.end else ''}{escape(row.end)}</title>"
    for kind, start_s, end_s in row.spans:
        x, width = _x(start_s, span_s), max(_x(end_s, span_s) - _x(start_s, span_s), 0.6)
        yield f'<path class="{kind}" d="M{x:.1f} {y + 1}h{width:.1f}v{LOW_ROW - 2}h-{width:.1f}z"/>'
    yield "</g>"


def _spans(row: Row, y: float, span_s: float) -> Iterable[str]:
    for kind, start_s, end_s in row.spans:
        x, end = _x(start_s, span_s), _x(end_s, span_s)
        title = f"{row.name} {kind}, {start_s:.2f} to {end_s:.2f} s"
        place = f'x="{x:.1f}" y="{y + 1}" width="{max(end - x, 0.6):.1f}" height="11"'
        yield f'<rect class="{kind}" {place}><title>{escape(title)}</title></rect>'


def _time_axis(span_s: float, y: float) -> Iterable[str]:
    yield f'<path class="axis" d="M{LEFT} {y}H{WIDTH - RIGHT}"/>'
    for tick in _ticks(0.0, span_s, is_log=False):
        x = _x(tick, span_s)
        yield f'<path class="axis" d="M{x:.1f} {y}v4"/>'
        yield f'<text x="{x:.1f}" y="{y + 16}" text-anchor="middle">{tick:g} s</text>'


def _bounds(low: float, high: float, *, is_log: bool) -> tuple[float, float]:
    if is_log:
        return (low, high) if high > 1.2 * low else (low / 1.1, high * 1.1)
    low = min(low, 0.0)
    return low, high if high > low else low + 1.0


def _ticks(low: float, high: float, *, is_log: bool) -> list[float]:
    """Round numbers between the two: about five, or, if logarithmic, powers of ten times 1, 2 and 5."""
    if is_log:
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        factors = (1, 2, 5) if last - first <= 3 else (1,)
        ticks = [factor * 10.0**power for power in range(first, last + 1) for factor in factors]
        return [tick for tick in ticks if low <= tick <= high]
    raw = (high - low) / 5
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= raw)
    return [round(index * step, 10) for index in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"
