"""`--plot`: four panels of a run, and one for the stages of each contender that has stages.

SVG and HTML are drawn here; PNG needs matplotlib, the extra `report`.
"""

from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from p2p.errors import LaunchError

from ..plan import CPU, format_size
from ..roles import ALL_REDUCE, what_of
from .charts import COLUMNS, Bars, Panel, Series, colours_of, draw_panels

SUFFIXES: Final = (".svg", ".png", ".html")
WIDE_INCHES: Final = 13.0
HIGH_INCHES: Final = 4.5
"""Height of a row of panels."""


def check_plot(path: Path) -> None:
    """Raise LaunchError if the format is unknown, or matplotlib is missing for it."""
    if path.suffix not in SUFFIXES:
        raise LaunchError(f"--plot is a file that ends with {', '.join(SUFFIXES)}, got {path}")
    if path.suffix == ".png" and find_spec("matplotlib") is None:
        raise LaunchError(
            "--plot FILE.png needs matplotlib: pip install 'shoal[report]', or take FILE.svg or FILE.html"
        )


def plot(report: Mapping[str, Any], suffix: str) -> str | bytes:
    """Contents of the plot's file; `report` as from `files.make_report`."""
    panels: list[Panel | Bars] = [*panels_of(report), *bars_of(report)]
    title = title_of(report)
    if suffix == ".png":
        return _png(panels, title)
    svg = draw_panels(panels, title)
    if suffix == ".svg":
        return svg
    said = "".join(f"<p>{_escape(line)}</p>" for line in (report["sentence"], *report["warnings"]))
    return f'<!doctype html><meta charset="utf-8"><title>{_escape(title)}</title>{svg}{said}\n'


def title_of(report: Mapping[str, Any]) -> str:
    config = report["config"]
    where = config["net"] or f"one host, {report['machine']['cpu']}"
    what = what_of(config.get("operation", ALL_REDUCE), config.get("root", 0))
    on = config.get("device", CPU)
    peers = f"{config['num_peers']} peers" + f" on {on}" * (on != CPU)
    return f"{what}, {config['dtype']}, {peers}, {where}"


def panels_of(report: Mapping[str, Any]) -> Iterator[Panel]:
    """Panels of times, bandwidth, speed-up, and the model's predictions, if there are any."""
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for row in report["results"]:
        rows.setdefault(row["algorithm"], []).append(row)
    sizes = {name: tuple(row["size_bytes"] for row in found) for name, found in rows.items()}

    def column(name: str, field: str, factor: float) -> tuple[float, ...]:
        return tuple(row[field] * factor for row in rows[name])

    percentiles = ("time_p50_us", "time_p5_us", "time_p95_us")
    times = [Series(name, sizes[name], *(column(name, field, 1e-3) for field in percentiles)) for name in rows]
    yield Panel("time: p50, and from p5 to p95", "bytes", "ms", tuple(times))
    busbw = [Series(name, sizes[name], column(name, "busbw_gb_per_s", 1e3)) for name in rows]
    yield Panel("bus bandwidth", "bytes", "MB/s", tuple(busbw))
    reference = "ring" if "ring" in rows else next(iter(rows))
    if faster := tuple(_speed_ups(report, reference)):
        yield Panel(f"speed-up over {reference}, 95 % of resamples", "bytes", "times", faster, level=1.0)
    predicted = [
        Series(name, column(name, "predicted_us", 1e-3), column(name, "time_p50_us", 1e-3))
        for name, found in rows.items()
        if all(row["predicted_us"] for row in found)
    ]
    if predicted:
        yield Panel("predicted against measured", "predicted ms", "measured ms", tuple(predicted), is_diagonal=True)


def bars_of(report: Mapping[str, Any]) -> Iterator[Bars]:
    """Bars of the stages of each contender that has stages, as shares of their sum, labelled with a round's time."""
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for row in report["results"]:
        if row.get("stages_p50_us"):
            rows.setdefault(row["algorithm"], []).append(row)
    for name, found in rows.items():
        times = [row["stages_p50_us"] for row in found]
        parts = {stage: tuple(each[stage] / (sum(each.values()) or 1.0) for each in times) for stage in times[0]}
        sizes = tuple(format_size(row["size_bytes"]) for row in found)
        above = tuple(f"{row['time_p50_us'] / 1e3:.3g}" for row in found)
        yield Bars(f"stages of {name}: shares; above: ms of a round, p50", "bytes", sizes, above, parts)


def _speed_ups(report: Mapping[str, Any], reference: str) -> Iterator[Series]:
    sizes = tuple(report["config"]["sizes_bytes"])
    for pair in report["pairs"]:
        ratios = pair["ratios"]
        if pair["b"] == reference:
            ratios = [[1 / value, 1 / high, 1 / low] for value, low, high in ratios]
        if reference in (pair["a"], pair["b"]):
            yield Series(pair["b"] if pair["a"] == reference else pair["a"], sizes, *zip(*ratios, strict=True))


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")


def _png(panels: Sequence[Panel | Bars], title: str) -> bytes:
    import io

    import matplotlib
    from matplotlib.figure import Figure

    colours = colours_of(panels)
    num_rows = -(-len(panels) // COLUMNS)
    with matplotlib.rc_context({"font.size": 9}):
        figure = Figure((WIDE_INCHES, HIGH_INCHES * num_rows), layout="constrained")
        figure.suptitle(title)
        for axes, panel in zip(figure.subplots(num_rows, COLUMNS, squeeze=False).flat, panels, strict=False):
            if isinstance(panel, Panel):
                _show(axes, panel, colours)
            else:
                _show_bars(axes, panel, colours)
        for axes in figure.axes[len(panels) :]:
            axes.remove()
        file = io.BytesIO()
        figure.savefig(file, format="png", dpi=120)
    return file.getvalue()


def _show(axes: Any, panel: Panel, colours: Mapping[str, str]) -> None:
    for each in panel.series:
        axes.plot(each.xs, each.ys, marker="o", label=each.name, color=colours[each.name])
        if each.lows:
            axes.fill_between(each.xs, each.lows, each.highs, alpha=0.2, color=colours[each.name])
    axes.set(xscale="log", yscale="log", title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
    if panel.level is not None:
        axes.axhline(panel.level, color="gray")
    if panel.is_diagonal:
        ends = [each for one in panel.series for each in (*one.xs, *one.ys)]
        axes.plot([min(ends), max(ends)], [min(ends), max(ends)], color="gray")
    axes.legend()


def _show_bars(axes: Any, bars: Bars, colours: Mapping[str, str]) -> None:
    bottoms = [0.0] * len(bars.names)
    for name, shares in bars.parts.items():
        axes.bar(bars.names, shares, bottom=bottoms, label=name, color=colours[name])
        bottoms = [below + share for below, share in zip(bottoms, shares, strict=True)]
    for place, said in enumerate(bars.above):
        axes.text(place, 1.01, said, ha="center")
    axes.set(title=bars.title, xlabel=bars.x_label, ylabel="share", ylim=(0, 1.2))
    axes.legend(loc="upper center", ncols=len(bars.parts))
