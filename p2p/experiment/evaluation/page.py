"""report.html: one self-contained file without scripts; for light and dark screens, and for print. Pure."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final

from ..config import Bound
from .cost import Cost
from .drawing import EventMarker, Panel, Row, draw, middle
from .report import Evaluated, failures, metrics, planned_events
from .statistics import describe
from .steps import lanes, rates
from .suspicions import suspicions

STYLE: Final = """
:root{--back:#fff;--ink:#1c2430;--soft:#66707e;--rule:#e2e6eb;--line:#1f5fbf;--mark:#c2410c;--good:#15803d;--bad:#b91c1c;
--starting:#d3d8df;--observing:#9db8de;--counting:#1f5fbf;--paused:#e0a100}
@media (prefers-color-scheme:dark){:root{--back:#12161c;--ink:#e3e8ef;--soft:#98a2b0;--rule:#2a313b;--line:#7fb0ff;
--mark:#ff9a5c;--good:#5cd68a;--bad:#ff8080;--starting:#39424e;--observing:#44608c;--counting:#7fb0ff;--paused:#d8a21c}}
@media print{body{max-width:none}details{display:block}}
body{background:var(--back);color:var(--ink);font:14px/1.5 system-ui,sans-serif;max-width:1080px;
margin:2em auto;padding:0 1em}
h1{font-size:1.5em;margin:0}h2{font-size:1.1em;margin:2em 0 .5em}p.sub{color:var(--soft);margin:.2em 0 1em}
.good{color:var(--good)}.bad{color:var(--bad)}ul.bad{margin:.3em 0}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{text-align:right;padding:.25em .6em;border-bottom:1px solid var(--rule);vertical-align:top}
th{color:var(--soft);font-weight:500}td{white-space:nowrap}td.l,td.why{white-space:normal}
th.l,td.l{text-align:left}tr:target,.mark:target rect{outline:2px solid var(--mark)}
td.why{color:var(--soft);text-align:left;border-bottom:1px solid var(--rule);padding-left:2.2em}
a{color:inherit}.scroll{overflow-x:auto}
svg{width:100%;height:auto;font:10px system-ui,sans-serif;fill:var(--soft)}svg path{fill:none}
svg .title{fill:var(--ink);font-weight:600;font-size:11px}.grid{stroke:var(--rule)}.axis{stroke:var(--soft)}
.line{stroke:var(--line);stroke-width:1.2;stroke-linejoin:round}.behind{stroke:var(--soft);stroke-width:.6;opacity:.5}
.mark rect{fill:var(--mark);opacity:.14}.mark path{stroke:var(--mark);stroke-dasharray:3 3}
.many rect{opacity:.05}.many path{stroke-width:.4;stroke-dasharray:none}
.late{fill:var(--back)}.mark text{fill:var(--mark);font-weight:600}
.starting{fill:var(--starting)}.observing{fill:var(--observing)}.counting{fill:var(--counting)}.paused{fill:var(--paused)}
.key span{display:inline-block;width:.9em;height:.9em;margin:0 .3em 0 1em;vertical-align:-.1em}
pre{background:color-mix(in srgb,var(--soft) 10%,transparent);padding:.8em;overflow-x:auto;font-size:12px}
"""
MOST_SUSPICIONS: Final = 40
MOST_SPLITS: Final = 40
"""Rows of the table that splits step times."""

SHOWN_TIMES: Final = {"detected": "detected", "agreed": "agreed", "resumed": "resumed"}


@dataclass(frozen=True, slots=True)
class About:
    """The subject of a report.

    Attributes:
        name: of the experiment, or the folder.
        text: of the TOML file; empty: there is none.
        expect, loss: from the TOML file.
    """

    name: str
    text: str
    expect: Mapping[str, Bound]
    loss: str = ""


def page(about: About, evaluated: Sequence[Evaluated]) -> str:
    """The HTML of a report."""
    first = evaluated[0]
    parts = [
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(about.name)}</title>',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        f"<style>{STYLE}</style></head><body>",
        *_head(about, evaluated),
        _picture(evaluated),
        '<p class="key sub">Peers: <span style="background:var(--starting)"></span>starting'
        '<span style="background:var(--observing)"></span>joined, not counted yet'
        '<span style="background:var(--counting)"></span>counting'
        '<span style="background:var(--paused)"></span>paused</p>',
        "<h2>What each event has cost</h2>",
        *_events(first),
        *(_repeated(evaluated) if len(evaluated) > 1 else ()),
        *_suspicions(first),
        *_splits(first),
        *_environment(first),
        *([f"<h2>The experiment</h2><pre>{escape(about.text)}</pre>"] if about.text else ()),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _head(about: About, evaluated: Sequence[Evaluated]) -> Iterable[str]:
    found, wrong = metrics(evaluated), failures(evaluated, about.expect)
    chain = evaluated[0].chain
    yield f"<h1>{escape(about.name)}</h1>"
    runs = f"{len(evaluated)} runs; of the first: " if len(evaluated) > 1 else ""
    samples = f", {chain.num_samples:,} samples, {chain.twice} counted twice, {chain.missing} not counted"
    samples = samples if chain.has_positions else ""
    yield (
        f'<p class="sub">{runs}{chain.num_steps:,} steps, {len(chain.lost)} lost{samples}; '
        f"median step {found.get('step_ms_p50', 0):.1f} ms</p>"
    )
    if wrong:
        yield '<p class="bad"><b>Not as expected:</b></p><ul class="bad">'
        yield from (f"<li>{escape(each)}</li>" for each in [*wrong, *(f for e in evaluated for f in e.failed)])
        yield "</ul>"
    else:
        all_of = ", ".join(f"{key} {bound}" for key, bound in about.expect.items())
        yield f'<p class="good"><b>All as expected</b>{": " + escape(all_of) if all_of else ""}</p>'


# The picture.


def _picture(evaluated: Sequence[Evaluated]) -> str:
    return draw(*picture_of(evaluated))


def picture_of(evaluated: Sequence[Evaluated]) -> tuple[list[Panel], list[Row], list[EventMarker], float]:
    """The arguments of `draw`."""
    first, *others = evaluated
    origin = first.origin_ns
    account = first.run.log
    ends = [step.time_ns for step in first.steps[-1:]] + ([account.ended_ns] if account is not None else [])
    span_s = max((max(ends, default=origin) - origin) / 1e9, 0.001)
    took, *others_took = (_step_times(each) for each in evaluated)
    rate, *others_rate = (_rates(each) for each in evaluated)
    panels = [
        Panel(title="members", points=_sizes(first), is_steps=True, height=60),
        Panel(title="step time, ms (logarithmic)", points=took, behind=others_took, is_log=True),
        Panel(title="samples per second, over 20 steps", points=rate, behind=others_rate),
        _loss_panel(first),
    ]
    if others:
        lines = [took, *others_took]
        title = f"step time, ms: median of {len(lines)} runs"
        panels.insert(2, Panel(title=title, points=middle(lines, span_s), is_log=True, height=80))
    rows = [
        Row(lane.name, [(kind, (a - origin) / 1e9, (b - origin) / 1e9) for kind, a, b in lane.spans], lane.end)
        for lane in lanes(first.run, [cost.event for cost in first.costs])
    ]
    return panels, rows, [_mark(cost, origin) for cost in first.costs if cost.event.time_ns], span_s


def _sizes(each: Evaluated) -> list[tuple[float, float]]:
    """The number of members: a point at each change, and the last one."""
    found: list[tuple[float, float]] = []
    for step in each.steps:
        if not found or found[-1][1] != step.num_members or step is each.steps[-1]:
            found.append(((step.time_ns - each.origin_ns) / 1e9, float(step.num_members)))
    return found


def _step_times(each: Evaluated) -> list[tuple[float, float]]:
    return [((s.time_ns - each.origin_ns) / 1e9, s.took_ms) for s in each.steps if s.took_ms is not None]


def _rates(each: Evaluated) -> list[tuple[float, float]]:
    return [((time_ns - each.origin_ns) / 1e9, rate) for time_ns, rate in rates(each.steps)]


def _loss_panel(each: Evaluated) -> Panel:
    """The panel of losses; logarithmic if all are positive and differ by a large factor."""
    points = _losses(each)
    values = [value for _, value in points if math.isfinite(value)]
    is_log = bool(values) and min(values) > 0 and max(values) > 10 * min(values)
    return Panel(title="loss (logarithmic)" if is_log else "loss", points=points, is_log=is_log)


def _losses(each: Evaluated) -> list[tuple[float, float]]:
    account = each.run.log
    found = () if account is None else account.losses
    return sorted(((time_ns - each.origin_ns) / 1e9, loss) for time_ns, _, loss in found)


def _mark(cost: Cost, origin: int) -> EventMarker:
    start_s = (cost.event.time_ns - origin) / 1e9
    end_ms = cost.times_ms.get("back", cost.times_ms.get("resumed", 0.0))
    return EventMarker(
        cost.event.number, start_s, start_s + end_ms / 1e3, f"{cost.event.who}, at step {cost.event.at_step}"
    )


# Tables.


def _events(each: Evaluated) -> Iterable[str]:
    plus_minus_ms = 0.0 if each.run.clocks is None else each.run.clocks.plus_minus_ms
    headings = ("detected", "agreed", "resumed", "longest gap", "steps lost", "redone", "recounted")
    yield '<div class="scroll"><table><tr><th></th><th class="l">event</th><th class="l">planned</th><th>at step</th>'
    yield "".join(f"<th>{heading}</th>" for heading in headings) + "</tr>"
    for cost in each.costs:
        event = cost.event
        at = f'<a href="#e{event.number}">{event.at_step}</a>' if event.time_ns else "never"
        times = "".join(f"<td>{_ms(cost.times_ms.get(name), plus_minus_ms)}</td>" for name in SHOWN_TIMES)
        recounted = "–" if cost.recounted is None else str(cost.recounted)
        whom = f" → peer {', '.join(map(str, event.peers))}" if event.peers else ""
        yield (
            f'<tr id="row{event.number}"><td>{event.number}</td><td class="l">{escape(event.who)}{whom}</td>'
            f'<td class="l">{escape(event.planned)}</td><td>{at}</td>{times}<td>{_ms(cost.gap_ms, plus_minus_ms)}</td>'
            f"<td>{cost.lost}</td><td>{', '.join(map(str, cost.redone)) or '–'}</td><td>{recounted}</td></tr>"
        )
        if notes := _notes(cost):
            yield f'<tr><td></td><td class="why" colspan="10">{"<br>".join(map(escape, notes))}</td></tr>'
    yield "</table></div>"


def _notes(cost: Cost) -> list[str]:
    """The phases of an event, and why values are unknown."""
    notes = []
    if cost.phases_ms:
        notes.append("; ".join(f"{name} {time_ms:.1f} ms" for name, time_ms in cost.phases_ms.items()))
    if cost.at:
        notes.append(f"it was {cost.at}")
    if cost.by:
        last_ms = cost.times_ms.get("detected_last")
        notes.append(f"known by {cost.by}" + (f", to the last after {last_ms:.1f} ms" if last_ms is not None else ""))
    if "back_after_it_went_on" in cost.times_ms and "back after it went on" not in cost.phases_ms:
        notes.append(f"back {cost.times_ms['back_after_it_went_on']:.0f} ms after it went on")
    if "step_before" in cost.times_ms and "step_after" in cost.times_ms:
        notes.append(
            f"a step took {cost.times_ms['step_before']:.1f} ms before, {cost.times_ms['step_after']:.1f} after"
        )
    if cost.state_bytes:
        givers = f"{cost.donors} donors" if cost.donors > 1 else "one donor"
        rate = cost.state_bytes_per_s
        at = f", at {rate / 1e6:,.1f} MB/s" if rate is not None else ""
        notes.append(f"was given a state of {cost.state_bytes / 1e6:,.1f} MB by {givers}{at}")
    if cost.followed:
        notes.append(f"was fed {cost.followed} steps before it had its seat")
    return notes + [f"{name}: {why}" for name, why in cost.why.items()]


def _repeated(evaluated: Sequence[Evaluated]) -> Iterable[str]:
    yield f"<h2>Over {len(evaluated)} runs</h2>"
    yield '<p class="sub">ms: median, with the interval in which 95 % of resampled medians lie, and p99</p>'
    yield '<div class="scroll"><table><tr><th></th><th class="l">event</th>'
    names = (*SHOWN_TIMES, "longest gap")
    yield "".join(f"<th>{name}</th><th>p99</th>" for name in names) + "<th>runs</th></tr>"
    for number, who, same in planned_events(evaluated):
        cells = []
        for name in names:
            gaps = [cost.gap_ms for cost in same if cost.gap_ms is not None]
            values = gaps if name == "longest gap" else [c.times_ms[name] for c in same if name in c.times_ms]
            cells.append(_described(describe(values)))
        yield f'<tr><td>{number}</td><td class="l">{escape(who)}</td>{"".join(cells)}<td>{len(same)}</td></tr>'
    yield "</table></div>"


def _described(described: dict[str, Any]) -> str:
    if "p50" not in described:
        return "<td>–</td><td>–</td>"
    interval = described.get("interval")
    within = f" ({interval[0]:.1f} to {interval[1]:.1f})" if interval else ""
    return f"<td>{described['p50']:.1f}{within}</td><td>{described['p99']:.1f}</td>"


def _splits(each: Evaluated) -> Iterable[str]:
    account = each.run.log
    names = {} if account is None else {p.peer_id: f"peer {p.index}" for p in account.processes}
    yield "<h2>Where the time of a step goes</h2>"
    if not each.splits:
        yield '<p class="sub">Not known: only traces say when a step was submitted.</p>'
        return
    shown = sorted(each.splits.items(), key=lambda item: names.get(item[0], item[0]))
    of_how_many = ""
    if len(shown) > MOST_SPLITS:
        shown = sorted(shown, key=lambda item: item[1].last, reverse=True)[:MOST_SPLITS]
        of_how_many = f". Of {len(each.splits)} peers, those that were last most often; report.json has all"
    what = "Means, in ms, which add up; last: share of its steps that it was the last to submit"
    yield f'<p class="sub">{what}{of_how_many}</p>'
    names_of_parts = ("step", "compute", "exchange", "wait", "last")
    yield '<table><tr><th class="l">peer</th>' + "".join(f"<th>{name}</th>" for name in names_of_parts) + "</tr>"
    for peer_id, split in shown:
        times = "".join(f"<td>{value:.2f}</td>" for value in (split.step, split.compute, split.exchange, split.wait))
        yield f'<tr><td class="l">{names.get(peer_id, peer_id[:8])}</td>{times}<td>{split.last:.0%}</td></tr>'
    yield "</table>"
    if num_missed := each.run.num_missed:
        yield f"<p>{num_missed:,} records were overwritten before they were read: those steps are left out.</p>"
    slowest, split = max(shown, key=lambda item: item[1].last)
    if len(shown) > 1 and split.last:
        name = names.get(slowest, slowest[:8])
        yield f"<p>The others waited for {name} most often: in {split.last:.0%} of its steps.</p>"


def _suspicions(each: Evaluated) -> Iterable[str]:
    """The suspicions of a run, one per line."""
    found = suspicions(each.run)
    if found:
        yield "<h2>Suspected peers</h2><ul>"
    for one in found[:MOST_SUSPICIONS]:
        at = f"{(one.time_ns - each.origin_ns) / 1e9:.3f} s"
        how = "a probe of its own" if one.is_own else "the word of another"
        end = f"; after {one.lasted_s * 1e3:.0f} ms {one.end}" if one.end else ""
        yield f"<li>{at}: peer {one.peer_id[:8]} by {one.by[:8]}, by {how}{end}</li>"
    if found:
        more = len(found) - MOST_SUSPICIONS
        yield f"<li>{more} more are in report.json</li></ul>" if more > 0 else "</ul>"


def _environment(each: Evaluated) -> Iterable[str]:
    account = each.run.log
    if account is not None:
        text = json.dumps({"seed": account.seed, **account.environment}, indent=1)
        yield f"<h2>Environment</h2><pre>{escape(text)}</pre>"


def _ms(time_ms: float | None, plus_minus_ms: float) -> str:
    if time_ms is None:
        return "–"
    within = f" ± {plus_minus_ms:.1f}" if plus_minus_ms else ""
    return f"{time_ms:.1f}{within} ms" if time_ms < 1e4 else f"{time_ms / 1e3:.1f} s"
