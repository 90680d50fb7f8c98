"""Panels with logarithmic axes, and stacked bars, as SVG. Pure."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 560, 380
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 34, 44
TITLE: Final = 34
COLUMNS: Final = 2
ROOM_ABOVE: Final = 34
"""Height above bars, for the legend and the labels at their ends."""
COLOURS: Final = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#777777", "#000000")
GREY: Final = "#999999"
_UNITS: Final = ((1 << 30, "Gi"), (1 << 20, "Mi"), (1 << 10, "Ki"))


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a panel: points, with a band between `lows` and `highs`; no band if both are empty."""

    name: str
    xs: tuple[float, ...]
    ys: tuple[float, ...]
    lows: tuple[float, ...] = ()
    highs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel with logarithmic axes. `level`: a marked value of y; `is_diagonal`: the line y = x is marked."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    level: float | None = None
    is_diagonal: bool = False


@dataclass(frozen=True, slots=True)
class Bars:
    """Stacked bars of equal height.

    Attributes:
        names: of the bars.
        above: label at the end of each bar.
        parts: by name, from below: the part's share of each bar; the shares of a bar add up to 1.
    """

    title: str
    x_label: str
    names: tuple[str, ...]
    above: tuple[str, ...]
    parts: dict[str, tuple[float, ...]]


class _Axis:
    """Maps values to coordinates, logarithmically."""

    def __init__(self, values: Sequence[float], begin: float, end: float, *, is_binary: bool) -> None:
        self._is_binary = is_binary
        low, high = min(values), max(values)
        if low == high:
            low, high = low / 2, high * 2
        margin = (high / low) ** 0.04
        self.low, self.high = low / margin, high * margin
        self._begin, self._end = begin, end

    def place(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return round(self._begin + share * (self._end - self._begin), 1)

    def ticks(self) -> Iterator[tuple[float, str]]:
        """Powers of 4 for bytes; otherwise powers of 10, with 2 and 5, or with tenths, where the range is narrow."""
        if self._is_binary:
            values = [4.0**power for power in range(1, 24)]
        else:
            factors: tuple[float, ...] = (1, 2, 5) if self.high / self.low < 300 else (1,)
            if self.high / self.low < 3:
                factors = tuple(tenths / 10 for tenths in range(10, 100, 1 if self.high / self.low < 1.5 else 2))
            values = [factor * 10.0**power for power in range(-6, 10) for factor in factors]
        for value in values:
            if self.low <= value <= self.high:
                yield self.place(value), self._say(value)

    def _say(self, value: float) -> str:
        unit = next(((size, name) for size, name in _UNITS if value >= size), (1, "")) if self._is_binary else (1, "")
        return f"{value / unit[0]:g}{unit[1]}"


def colours_of(panels: Sequence[Panel | Bars]) -> dict[str, str]:
    """Colour of each name, the same in all panels; parts of bars begin again with the first colour."""
    lines = dict.fromkeys(each.name for panel in panels if isinstance(panel, Panel) for each in panel.series)
    parts = dict.fromkeys(name for panel in panels if isinstance(panel, Bars) for name in panel.parts)
    return {name: COLOURS[index % len(COLOURS)] for names in (parts, lines) for index, name in enumerate(names)}


def draw_panels(panels: Sequence[Panel | Bars], title: str) -> str:
    """The text of an SVG file, two panels in a row."""
    rows = -(-len(panels) // COLUMNS)
    width, height = WIDTH * COLUMNS, TITLE + HEIGHT * rows
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{LEFT}" y="24" font-size="16">{escape(title)}</text>',
    ]
    colours = colours_of(panels)
    for index, panel in enumerate(panels):
        x, y = WIDTH * (index % COLUMNS), TITLE + HEIGHT * (index // COLUMNS)
        drawn = _panel(panel, colours) if isinstance(panel, Panel) else _bars(panel, colours)
        parts += [f'<g transform="translate({x},{y})">', *drawn, "</g>"]
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: Panel, colours: dict[str, str]) -> Iterator[str]:
    xs = [x for each in panel.series for x in each.xs]
    ys = [y for each in panel.series for values in (each.ys, each.lows, each.highs) for y in values if y > 0]
    ys += [] if panel.level is None else [panel.level]
    x_axis = _Axis(xs, LEFT, WIDTH - RIGHT, is_binary=panel.x_label == "bytes")
    y_axis = _Axis(ys or [1.0], HEIGHT - BOTTOM, TOP, is_binary=False)
    yield from _frame(panel, x_axis, y_axis)
    if panel.level is not None:
        at = y_axis.place(panel.level)
        yield f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at}" y2="{at}" stroke="{GREY}" stroke-width="2"/>'
    if panel.is_diagonal and (low := max(x_axis.low, y_axis.low)) < (high := min(x_axis.high, y_axis.high)):
        ends = (x_axis.place(low), y_axis.place(low), x_axis.place(high), y_axis.place(high))
        yield '<line x1="{}" y1="{}" x2="{}" y2="{}" stroke="{}" stroke-width="2"/>'.format(*ends, GREY)
    for each in panel.series:
        yield from _series(each, x_axis, y_axis, colours[each.name])
    for number, each in enumerate(panel.series):
        y = TOP + 16 + 15 * number
        yield f'<rect x="{LEFT + 8}" y="{y - 8}" width="9" height="9" fill="{colours[each.name]}"/>'
        yield f'<text x="{LEFT + 22}" y="{y}">{escape(each.name)}</text>'


def _bars(bars: Bars, colours: dict[str, str]) -> Iterator[str]:
    top, bottom = TOP + ROOM_ABOVE, HEIGHT - BOTTOM
    width = (WIDTH - RIGHT - LEFT) / len(bars.names)
    yield f'<text x="{LEFT}" y="{TOP - 8}" font-size="13">{escape(bars.title)}</text>'
    yield f'<text x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 10}" text-anchor="middle">{escape(bars.x_label)}</text>'
    for percent in range(0, 101, 20):
        y = round(bottom - percent / 100 * (bottom - top), 1)
        yield f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{percent} %</text>'
    for index, name in enumerate(bars.names):
        x, y = LEFT + (index + 0.1) * width, float(bottom)
        for part, shares in bars.parts.items():
            height = shares[index] * (bottom - top)
            y -= height
            where = f'x="{x:.1f}" y="{y:.1f}" width="{0.8 * width:.1f}" height="{height:.1f}"'
            yield f'<rect class="part" {where} fill="{colours[part]}"/>'
        middle = round(LEFT + (index + 0.5) * width, 1)
        yield f'<text x="{middle}" y="{bottom + 15}" text-anchor="middle">{escape(name)}</text>'
        yield f'<text x="{middle}" y="{top - 4}" text-anchor="middle">{escape(bars.above[index])}</text>'
    for index, part in enumerate(bars.parts):
        x = LEFT + 90 * index
        yield f'<rect x="{x}" y="{TOP}" width="9" height="9" fill="{colours[part]}"/>'
        yield f'<text x="{x + 14}" y="{TOP + 8}">{escape(part)}</text>'


def _frame(panel: Panel, x_axis: _Axis, y_axis: _Axis) -> Iterator[str]:
    bottom = HEIGHT - BOTTOM
    yield f'<text x="{LEFT}" y="{TOP - 8}" font-size="13">{escape(panel.title)}</text>'
    for x, text in x_axis.ticks():
        yield f'<line x1="{x}" x2="{x}" y1="{TOP}" y2="{bottom}" stroke="#e4e4e4"/>'
        yield f'<text x="{x}" y="{bottom + 15}" text-anchor="middle">{text}</text>'
    for y, text in y_axis.ticks():
        yield f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}" stroke="#e4e4e4"/>'
        yield f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{text}</text>'
    yield f'<text x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 10}" text-anchor="middle">{escape(panel.x_label)}</text>'
    yield f'<text x="14" y="{TOP - 8}">{escape(panel.y_label)}</text>'


def _series(each: Series, x_axis: _Axis, y_axis: _Axis, colour: str) -> Iterator[str]:
    """A band, a line, and its points; zeros, which a logarithmic axis cannot show, are left out."""

    def line(values: Sequence[float]) -> list[str]:
        return [f"{x_axis.place(x)},{y_axis.place(y)}" for x, y in zip(each.xs, values, strict=True) if y > 0]

    if each.lows:
        band = " ".join([*line(each.lows), *reversed(line(each.highs))])
        yield f'<polygon points="{band}" fill="{colour}" fill-opacity="0.2"/>'
    points = line(each.ys)
    yield f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="1.6"/>'
    for x, y in (point.split(",") for point in points):
        yield f'<circle cx="{x}" cy="{y}" r="2.6" fill="{colour}"/>'
