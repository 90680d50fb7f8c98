"""`shoal report --plot DIR`: the picture of a report, for a paper; SVG, and PNG and PDF by matplotlib."""

from collections.abc import Sequence
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Final

from .drawing import EventMarker, Panel, draw
from .page import STYLE, picture_of
from .report import Evaluated

INCHES: Final = (8.0, 2.0)
"""Size of a panel."""


def plot(evaluated: Sequence[Evaluated], folder: Path) -> list[Path]:
    """Draw the first run, with the others in the background. Returns the files. OSError: they cannot be written."""
    folder.mkdir(parents=True, exist_ok=True)
    panels, rows, marks, span_s = picture_of(evaluated)
    svg = draw(panels, rows, marks, span_s)
    head, _, rest = svg.partition(">")
    written = {"svg": f"{head}><style>{STYLE}</style>{rest}\n".encode()}
    panels = [panel for panel in panels if panel.points]
    if panels and find_spec("matplotlib") is not None:
        written |= _by_matplotlib(panels, marks, span_s)
    paths = {suffix: folder / f"timeline.{suffix}" for suffix in written}
    for suffix, content in written.items():
        paths[suffix].write_bytes(content)
    return list(paths.values())


def _by_matplotlib(panels: Sequence[Panel], marks: Sequence[EventMarker], span_s: float) -> dict[str, bytes]:
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"font.size": 9}):
        figure = Figure((INCHES[0], INCHES[1] * len(panels)), layout="constrained")
        all_axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
        for axes, panel in zip(all_axes, panels, strict=True):
            for points in panel.behind:
                axes.plot(*zip(*points, strict=True), color="gray", linewidth=0.5, alpha=0.5)
            style = "steps-post" if panel.is_steps else "default"
            axes.plot(*zip(*panel.points, strict=True), drawstyle=style, linewidth=0.8)
            axes.set(title=panel.title, yscale="log" if panel.is_log else "linear", xlim=(0, span_s))
            for mark in marks:
                axes.axvspan(mark.start_s, max(mark.end_s, mark.start_s), color="tab:orange", alpha=0.2)
                axes.axvline(mark.start_s, color="tab:orange", linewidth=0.8, linestyle="--")
        all_axes[-1].set_xlabel("seconds")
        written = {}
        for suffix in ("png", "pdf"):
            file = BytesIO()
            figure.savefig(file, format=suffix, dpi=150)
            written[suffix] = file.getvalue()
    return written
