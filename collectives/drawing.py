"""A play (pricing.py) as an SVG: time runs to the right, each rank has a lane, each chunk a colour.

In a lane the upper bar is the uplink, the lower one the downlink; a line connects the end of sending a message with its
arrival. The mark at the end of a lane is the time at which the rank has its result.
"""

from collections.abc import Iterator
from typing import Final
from xml.sax.saxutils import escape

from collectives.pricing import Sent, SimulatedRun

WIDTH: Final = 1000
LEFT, RIGHT, TOP, BOTTOM = 60, 20, 40, 30
LANE: Final = 44
BAR: Final = 12
_STEPS: Final = (1, 2, 5)


def draw_simulation(play: SimulatedRun, title: str) -> str:
    """The text of an SVG file."""
    end_ns = max(play.time_ns, 1)
    height = TOP + LANE * len(play.done_ns) + BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-size="15">{escape(title)}</text>',
        *_axis(end_ns, height),
        *_lanes(play, end_ns),
    ]
    chunks = 1 + max((sent.chunk for sent in play.sent), default=0)
    for sent in play.sent:
        parts += _message(sent, end_ns, hue=360 * sent.chunk // chunks)
    return "\n".join([*parts, "</svg>", ""])


def _x(at_ns: int, end_ns: int) -> float:
    return round(LEFT + (WIDTH - LEFT - RIGHT) * at_ns / end_ns, 1)


def _axis(end_ns: int, height: int) -> Iterator[str]:
    """At most nine marks, at round numbers of the unit."""
    unit_ns, unit = next((n, u) for n, u in ((10**9, "s"), (10**6, "ms"), (10**3, "us"), (1, "ns")) if end_ns >= n)
    step = next(s * 10**power * unit_ns for power in range(19) for s in _STEPS if end_ns <= 8 * s * 10**power * unit_ns)
    for at_ns in range(0, end_ns + 1, step):
        x = _x(at_ns, end_ns)
        yield f'<line x1="{x}" x2="{x}" y1="{TOP - 6}" y2="{height - BOTTOM}" stroke="#ddd"/>'
        yield f'<text x="{x}" y="{height - 10}" text-anchor="middle">{at_ns // unit_ns} {unit}</text>'


def _lanes(play: SimulatedRun, end_ns: int) -> Iterator[str]:
    for rank, done_ns in enumerate(play.done_ns):
        y, x = TOP + LANE * rank, _x(done_ns, end_ns)
        yield f'<text x="8" y="{y + 20}">rank {rank}</text>'
        yield f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y + 16}" y2="{y + 16}" stroke="#bbb"/>'
        yield f'<line x1="{x}" x2="{x}" y1="{y}" y2="{y + 32}" stroke="black" stroke-width="2"/>'


def _message(sent: Sent, end_ns: int, hue: int) -> Iterator[str]:
    up, down = TOP + LANE * sent.source + 3, TOP + LANE * sent.peer + 17
    starts, leaves = _x(sent.start_ns, end_ns), _x(sent.left_ns, end_ns)
    reached, arrived = _x(sent.reached_ns, end_ns), _x(sent.arrived_ns, end_ns)
    colour = f"hsl({hue},65%,50%)"
    name = f"chunk {sent.chunk}, {sent.num_bytes} bytes, rank {sent.source} to {sent.peer}"
    bar = f'height="{BAR}" fill="{colour}" stroke="white" stroke-width="0.5"'
    yield f"<g><title>{name}</title>"
    yield f'<rect x="{starts}" y="{up}" width="{max(0.5, round(leaves - starts, 1))}" {bar}/>'
    yield f'<rect x="{reached}" y="{down}" width="{max(0.5, round(arrived - reached, 1))}" {bar} fill-opacity="0.5"/>'
    yield f'<line x1="{leaves}" y1="{up + BAR}" x2="{arrived}" y2="{down}" stroke="{colour}" stroke-opacity="0.6"/></g>'
