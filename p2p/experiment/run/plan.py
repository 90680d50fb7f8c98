"""The events of a run: drawn with a seed, checked against the peers that can exist, and written out. Pure."""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Final

from ...errors import ExperimentError
from ..config import Experiment, RunSettings
from ..events import AFTER, ENDS, HAVE_VICTIMS, IN_THE_LAB, MOST_PEERS, STATE, Event

MOST_EVENTS: Final = 10_000
MOST_DRAWN: Final = 3000
DIGITS: Final = 3
"""Decimal digits of drawn numbers, so that the written schedule repeats them exactly."""


@dataclass(frozen=True, slots=True)
class Plan:
    """All events of one run.

    Attributes:
        events: with fixed times; nothing is left to draw but the choice of targets at run time.
        num_left_out: drawn events that were dropped: they do not fit, such as those that would leave no peer, or more
            than twice as many as at the start.
    """

    events: tuple[Event, ...]
    num_left_out: int = 0


def make_plan(experiment: Experiment, seed: int) -> Plan:
    """Draw the events: the same seed gives the same plan.

    Raises:
        ExperimentError: an event is impossible; says its line.
    """
    rng = random.Random(seed)
    written: list[Event] = []
    drawn: list[Event] = []
    for event in _in_cycles(experiment):
        if event.random is None:
            single = event.do not in HAVE_VICTIMS
            written += [_with_draw(event, rng)] if single else [_with_draw(event, rng) for _ in range(event.number)]
        else:
            for each in _draw(event, experiment, rng):
                drawn.append(each)
                if len(drawn) > MOST_DRAWN:
                    raise ExperimentError(f"line {event.line}: random draws more than {MOST_DRAWN} events")
    if drawn and any(event.at_s is None for event in written):
        line = next(event.line for event in written if event.at_s is None)
        raise ExperimentError(f"line {line}: other events than random ones need at_s here, or their order is unknown")
    _check_order(written)
    _check_end(written, experiment.run)
    drawn.sort(key=lambda event: event.at_s or 0.0)
    if not drawn:
        _check_peers(written, experiment.run.peers, _num_hosts(experiment))
        return Plan(tuple(written))
    kept, num_left_out = _fitting(written, drawn, experiment.run.peers, _num_hosts(experiment))
    return Plan(tuple(kept), num_left_out)


def _with_draw(event: Event, rng: random.Random) -> Event:
    number = 1 if event.do in HAVE_VICTIMS else event.number
    draw = round(rng.random(), DIGITS) if event.draw is None and event.who == "random" else event.draw
    wait_s = event.wait_s
    if event.jitter_s:
        wait_s = round(wait_s + event.jitter_s * rng.random(), DIGITS)
    return replace(event, number=number, draw=draw if event.do in HAVE_VICTIMS else None, wait_s=wait_s, jitter_s=0.0)


def _in_cycles(experiment: Experiment) -> Sequence[Event]:
    """The events of all cycles: each cycle begins after the last event of the one before."""
    events, number = experiment.events, experiment.run.cycles
    if number == 1:
        return events
    where = experiment.where("cycles", "run")
    if not events:
        raise ExperimentError(f"{where}there are no events to repeat in {number} cycles")
    for index, event in enumerate(events):
        if event.random is not None or (index and not event.after):
            raise ExperimentError(
                f'line {event.line}: with cycles all events but the first need after = "{AFTER}": a time comes once'
            )
    num_events = number * sum(event.number if event.do in HAVE_VICTIMS else 1 for event in events)
    if num_events > MOST_EVENTS:
        raise ExperimentError(
            f"{where}cycles = {number} are {num_events} events, and a plan has {MOST_EVENTS} at most: ask for fewer"
        )
    again = (replace(events[0], at_step=None, at_s=None, after=AFTER), *events[1:])
    return (*events, *again * (number - 1))


def _draw(event: Event, experiment: Experiment, rng: random.Random) -> Iterator[Event]:
    """Draw the times of a random event: a Poisson process with its rate."""
    assert event.random is not None
    until_s = event.random.until_s if event.random.until_s is not None else experiment.run.until_s
    if until_s is None:
        raise ExperimentError(f"line {event.line}: random needs until_s, or [run] does")
    at_s = event.random.from_s
    while (at_s := at_s + rng.expovariate(event.random.per_minute / 60)) < until_s:
        yield _with_draw(replace(event, random=None, at_s=round(at_s, DIGITS)), rng)


def _check_order(events: Sequence[Event]) -> None:
    """ExperimentError: times or steps go backwards."""
    for unit, key in (("s", "at_s"), ("", "at_step")):
        before: Event | None = None
        for event in events:
            now = getattr(event, key)
            if now is None:
                continue
            if before is not None and now < getattr(before, key):
                was = getattr(before, key)
                raise ExperimentError(
                    f"line {event.line}: {key} goes backwards, from {was:g}{unit} (line {before.line}) to "
                    f"{now:g}{unit}: write events in their order"
                )
            before = event


def _check_end(events: Sequence[Event], run: RunSettings) -> None:
    """ExperimentError: an event would come after the end."""
    for event in events:
        for key, end, limit in (("at_step", "until_step", run.until_step), ("at_s", "until_s", run.until_s)):
            at = getattr(event, key)
            if at is not None and limit is not None and at >= limit:
                raise ExperimentError(f"line {event.line}: {key} = {at:g} would be after the end, {end} = {limit:g}")


def _check_peers(events: Sequence[Event], num_peers: int, num_hosts: int) -> None:
    """ExperimentError: a target cannot exist, no peer or host would be left, or there would be too many peers."""
    living = started = num_peers
    first = 0  # index of the first peer that the last restart has started
    has_joined = False
    ended: set[str | int] = set()  # peers by number, and hosts
    for event in events:
        if event.do == "join":
            living, started, has_joined = living + event.number, started + event.number, True
            if living > MOST_PEERS:
                raise ExperimentError(
                    f"line {event.line}: this join makes {living} peers, and {MOST_PEERS} is the most at a time"
                )
        elif event.do == "restart_all":
            ended |= set(range(first, started))
            first, started = started, started + living
        elif event.do in IN_THE_LAB:
            _check_host(event, ended, num_hosts)
            continue
        else:
            _check_who(event, living, started, has_joined=has_joined)
            _check_still_there(event, event.who, ended)
        if event.do in ENDS:
            living -= 1
            ended |= {event.who} if isinstance(event.who, int) else set()
            if not living:
                raise ExperimentError(
                    f"line {event.line}: this {event.do} would leave no peer: of {started} peers all others have ended "
                    "by then; restart_all ends all, and starts them again"
                )


def _check_host(event: Event, ended: set[str | int], num_hosts: int) -> None:
    """Check an action on hosts; adds a killed host to `ended`."""
    for host in (event.who, event.to):
        _check_still_there(event, host, ended)
    if event.do != "kill_host":
        return
    ended.add(event.who)
    if sum(isinstance(each, str) for each in ended) >= num_hosts:
        raise ExperimentError(
            f"line {event.line}: this kill_host would leave no host: of {num_hosts} all others are killed before"
        )


def _check_still_there(event: Event, who: str | int, ended: set[str | int]) -> None:
    if who in ended:
        name = f"peer {who}" if isinstance(who, int) else who
        raise ExperimentError(
            f"line {event.line}: there is no {name} any more for this {event.do}: an earlier event ended it"
        )


def _check_who(event: Event, living: int, started: int, *, has_joined: bool) -> None:
    rank = int(event.who[5:]) if isinstance(event.who, str) and event.who.startswith("rank ") else -1
    if rank >= living:
        raise ExperimentError(f"line {event.line}: there is no rank {rank}, with {living} peers at that time")
    if isinstance(event.who, int) and event.who >= started:
        raise ExperimentError(
            f"line {event.line}: there is no peer {event.who}: {started} have started by then, from 0 on"
        )
    if event.who == "donor" and not has_joined:
        raise ExperimentError(f"line {event.line}: who is the donor, but there is none: no peer has joined before")
    if event.during == STATE and not has_joined:
        raise ExperimentError(f"line {event.line}: no peer has joined before, so no state is on its way")


def _num_hosts(experiment: Experiment) -> int:
    return 0 if experiment.network is None else len(experiment.network.hosts)


def _fitting(
    written: Sequence[Event], drawn: Sequence[Event], num_peers: int, num_hosts: int
) -> tuple[list[Event], int]:
    """Written and drawn events in order, without drawn events that do not fit; and how many these are."""
    kept: list[Event] = []
    for event in sorted([*written, *drawn], key=lambda event: event.at_s or 0.0):
        try:
            _check_peers([*kept, event], num_peers, num_hosts)
        except ExperimentError:
            if event in written:
                raise
            continue
        if event.do == "join" and event not in written and _living([*kept, event], num_peers) > 2 * num_peers:
            continue
        kept.append(event)
    return kept, len(written) + len(drawn) - len(kept)


def _living(events: Sequence[Event], num_peers: int) -> int:
    return num_peers + sum(_more(event) for event in events)


def _more(event: Event) -> int:
    """The change in the number of peers by this event."""
    return {"join": 1, "leave": -1, "kill": -1}.get(event.do, 0) * event.number


def most_living(plan: Plan, num_peers: int) -> int:
    """The largest number of peers at the same time, if `num_peers` begin."""
    return max(accumulate(map(_more, plan.events), initial=num_peers))


def in_words(event: Event) -> str:
    """The action and its target: `kill rank 0`."""
    if event.do == "join":
        return "1 peer joins" if event.number == 1 else f"{event.number} peers join"
    if event.do == "restart_all":
        return "all are killed, and as many start again"
    if event.do in IN_THE_LAB:
        deed = {"cut": "cut apart" if event.to else "cut off", "heal": "heal", "link": "link of", "kill_host": "kill"}[
            event.do
        ]
        return (
            f"{deed} {event.who}"
            + (f" and {event.to}" if event.to else "")
            + (", what it sends" if event.one_way else "")
            + (f": {event.net}" if event.net else "")
            + (f" for {event.for_s:g} s" if event.for_s else "")
        )
    who = f"peer {event.who}" if isinstance(event.who, int) else event.who
    who = f"random ({event.draw:g})" if event.draw is not None else who
    during = f" in its {event.during}" if event.during else ""
    return f"{event.do} {who}{during}" + (f" for {event.for_s:g} s" if event.for_s else "")


def when(event: Event) -> str:
    """The time of an event in words: `step 50`."""
    if event.at_step is not None:
        text = f"step {event.at_step}"
    else:
        text = f"{event.at_s:g} s" if event.at_s is not None else event.after
    return text + (f" + {event.wait_s:g} s" if event.wait_s else "")


def timeline(experiment: Experiment, plan: Plan) -> list[str]:
    """The plan in words, one line per event."""
    run = experiment.run
    what = run.script or run.module or " ".join(run.command)
    lines = [f"{experiment.name}: {run.peers} peers run {' '.join([what, *run.args])}"]
    living = run.peers
    for number, event in enumerate(plan.events, 1):
        living = _living([event], living)
        lines.append(f"{number:3}  {when(event):>16}  {in_words(event)}; {living} peers then")
    if plan.num_left_out:
        lines.append(f"     {plan.num_left_out} drawn events are left out: too few peers, or too many, at their time")
    ends = [f"step {run.until_step}"] if run.until_step is not None else []
    ends += [f"{run.until_s:g} s"] if run.until_s is not None else []
    first = ", whichever is first" if len(ends) > 1 else ""
    lines.append(f"     all leave at {' or '.join(ends)}{first}" if ends else "     until the script ends")
    return lines


def to_toml(experiment: Experiment, plan: Plan) -> str:
    """The experiment as a TOML file with all events drawn: run again, it has the same events."""
    run = experiment.run
    settings = {
        "script": str(experiment.folder / run.script) if run.script else "",
        "module": run.module,
        "command": list(run.command),
        "args": list(run.args),
        "peers": run.peers,
        "until_step": run.until_step,
        "until_s": run.until_s,
        "limit_s": run.limit_s,
        "start": run.start,
        "imports": list(run.imports),
        "resident": run.resident,
        "policy": run.policy,
        "loss": run.loss,
    }
    parts = ["[run]", *_pairs(settings)]
    if run.env:
        parts.append("env = {" + ", ".join(f"{_quoted(k)} = {_quoted(v)}" for k, v in run.env.items()) + "}")
    parts += _network(experiment.network_table)
    for event in plan.events:
        keys = ("at_step", "at_s", "after", "wait_s", "during", "for_s", "to", "net", "draw")
        values = {"do": event.do, **{key: getattr(event, key) for key in keys}, "one_way": event.one_way or None}
        values |= {"who": event.who} if event.do in (*HAVE_VICTIMS, *IN_THE_LAB) else {"number": event.number}
        parts += ["", "[[event]]", *_pairs(values)]
    if experiment.expect:
        parts += ["", "[expect]", *(f"{key} = {_quoted(str(bound))}" for key, bound in experiment.expect.items())]
    return "\n".join(parts) + "\n"


def _network(table: Mapping[str, Any]) -> list[str]:
    if not table:
        return []
    simple = {key: value for key, value in table.items() if key not in ("host", "link")}
    tables = [(name, each) for name in ("host", "link") for each in table.get(name, ())]
    parts = ["", "[network]", *_pairs(simple)]
    return parts + [line for name, each in tables for line in ("", f"[[network.{name}]]", *_pairs(each))]


def _pairs(values: Mapping[str, object]) -> list[str]:
    """Lines of the values that are not empty."""
    empty = {"wait_s": 0.0, "for_s": 0.0}
    return [f"{key} = {_quoted(value)}" for key, value in values.items() if value not in (None, "", [], empty.get(key))]


def _quoted(value: object) -> str:
    """A value in TOML, whose quoted strings are those of JSON except for one character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
