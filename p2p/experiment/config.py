"""What an experiment is: a TOML file, checked before anything starts. Pure, but for `read`."""

import difflib
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from types import UnionType
from typing import Any, Final, Self, get_args

from ..errors import ExperimentError
from ..launch.target import Target

DOS: Final = ("join", "leave", "kill", "pause", "restart_all")
IN_THE_LAB: Final = ("cut", "heal", "link", "kill_host")
ENDS: Final = ("leave", "kill")
HAVE_VICTIMS: Final = (*ENDS, "pause")
AFTER: Final = "previous resumed"
_WHO: Final = re.compile(r"rank (\d+)|random|newest|donor")
_BOUND: Final = re.compile(r"\s*(<=|>=|<|>|==?)?\s*([-+0-9.eE_]+)\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """`[run]`: what is run.

    Attributes:
        script, module, command: one of them: what each peer runs; `script` from the folder of the file.
        args: of a script or module; `{run}` in them is the folder of the run.
        peers: that begin.
        until_step, until_s: from then on nothing is begun but what comes after something that was, and once all that is
            over, all are asked to leave; without both the script ends as it does.
        limit_s: of the whole run; it is ended then, and not as expected.
        env: for the peers.
        policy: who goes on after deaths: `live` or `majority`.
        loss: a pattern of what the script prints, with one group; empty: by `peer.log(loss=...)`, if at all.
    """

    script: str = ""
    module: str = ""
    command: Sequence[str] = ()
    args: Sequence[str] = ()
    peers: int = 2
    until_step: int | None = None
    until_s: float | None = None
    limit_s: float = 600.0
    env: Mapping[str, str] = field(default_factory=dict)
    policy: str = "live"
    loss: str = ""

    def target(self, folder: Path, run: Path) -> Target:
        """What to start; `{run}` in its words is the folder of the run. LaunchError: it is not there."""
        args = [word.replace("{run}", str(run)) for word in self.args]
        if self.command:
            target = Target.of_command([word.replace("{run}", str(run)) for word in self.command])
        elif self.module:
            target = Target.module(self.module, args)
        else:
            target = Target.script(folder / self.script, args)
        target.check()
        return target


@dataclass(frozen=True, slots=True, kw_only=True)
class Random:
    """`random = {per_minute = 6, until_s = 60}`: at moments that a seed draws.

    Attributes:
        per_minute: so often on average.
        from_s, until_s: between these times.
    """

    per_minute: float = 0.0
    from_s: float = 0.0
    until_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """`[[event]]`: what is done, when, and to whom.

    Attributes:
        do: one of `DOS`.
        at_step: as soon as anybody has committed this step.
        at_s: so long after the first committed step.
        after: `previous resumed`: once the event before it has been dealt with.
        random: many events, at moments that are drawn.
        wait_s: so much later than that.
        who: `rank K`, `newest`, `random`, `donor` (who feeds a joiner), or the number of a peer in the order of starts.
        number: of peers that join; of equal events for the others.
        for_s: how long a pause takes.
        draw: decides who is `random`, from 0 up to 1; None: the seed draws it.
        line: in the file.
    """

    do: str = ""
    at_step: int | None = None
    at_s: float | None = None
    after: str = ""
    random: Random | None = None
    wait_s: float = 0.0
    who: str | int = "random"
    number: int = 1
    for_s: float = 0.0
    draw: float | None = None
    line: int = 0


@dataclass(frozen=True, slots=True)
class Bound:
    """What a figure is expected to be: `sign` is one of <, <=, ==, >=, >."""

    sign: str
    value: float

    def is_met(self, found: float) -> bool:
        """NaN meets nothing."""
        match self.sign:
            case "<":
                return found < self.value
            case "<=":
                return found <= self.value
            case ">":
                return found > self.value
            case ">=":
                return found >= self.value
            case _:
                return found == self.value

    def __str__(self) -> str:
        return f"{self.sign} {self.value:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A checked file.

    Attributes:
        name: of the file.
        folder: where it lies.
        text: of the file.
    """

    name: str
    folder: Path
    text: str
    run: RunSettings
    events: tuple[Event, ...]
    expect: Mapping[str, Bound]

    @classmethod
    def read(cls, path: Path) -> Self:
        """ExperimentError says what is wrong, and in which line."""
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeError) as error:
            raise ExperimentError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
        try:
            return cls.parse(text, path.stem, path.absolute().parent)
        except ExperimentError as error:
            raise ExperimentError(f"{path}: {error}") from None

    @classmethod
    def parse(cls, text: str, name: str, folder: Path) -> Self:
        """The same of its text."""
        try:
            tables = tomllib.loads(text)
        except ValueError as error:
            raise ExperimentError(f"no TOML: {error}") from error
        lines = Lines(text)
        if "network" in tables:
            where = lines.where("network")
            raise ExperimentError(
                f"{where}experiments have no [network] yet: peers live on this host; `shoal lab` makes hosts and links"
            )
        _check_keys(tables, ("run", "event", "expect"), lines, "", 0)
        run = _table(RunSettings, tables.get("run", {}), lines, "run", 0)
        _check_run(run, lines)
        found = tables.get("event", [])
        if not isinstance(found, list):
            raise ExperimentError(f"{lines.where('event')}events are written as [[event]], once for each")
        events = tuple(_event(values, lines, index) for index, values in enumerate(found))
        expect = {key: _bound(key, value, lines) for key, value in tables.get("expect", {}).items()}
        return cls(name=name, folder=folder, text=text, run=run, events=events, expect=expect)

    def where(self, key: str) -> str:
        """The line of an expectation, for an error."""
        return Lines(self.text).where("expect", 0, key)


class Lines:
    """Where in the text something is said; tomllib does not tell."""

    def __init__(self, text: str) -> None:
        self._lines = text.splitlines()

    def number(self, table: str, index: int = 0, key: str = "") -> int:
        """Line of a key, else of its table, counted from 1; 0: it is not found."""
        seen, within = -1, table == ""
        found = 0
        for number, line in enumerate(self._lines, 1):
            if header := re.match(r"\s*\[+\s*([\w.\"-]+)\s*\]+", line):
                within = False
                if header.group(1) == table:
                    seen += 1
                    within = seen == index
                    found = number if within else found
            if within and key and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*[=.]", line):
                return number
        return found

    def where(self, table: str, index: int = 0, key: str = "") -> str:
        """As the beginning of a message."""
        number = self.number(table, index, key)
        return f"line {number}: " if number else ""


def nearest(word: str, known: Sequence[str]) -> str:
    """A question, for a message."""
    close = difflib.get_close_matches(word, known, 1, 0.5)
    return f", did you mean {close[0]}?" if close else f"; known are {', '.join(known)}"


def _check_keys(values: Mapping[str, Any], known: Sequence[str], lines: Lines, table: str, index: int) -> None:
    for key in values:
        if key not in known:
            where = lines.where(table, index, key) or lines.where(key)
            place = f" in [{table}]" if table == "run" else f" in [[{table}]]" if table else ""
            raise ExperimentError(f"{where}unknown key {key}{place}{nearest(key, known)}")


def _table(kind: type[Any], values: Any, lines: Lines, table: str, index: int) -> Any:
    """An instance of a config class, each value of its type."""
    if not isinstance(values, dict):
        raise ExperimentError(f"{lines.where(table, index)}{table} is a table, got {values!r}")
    known = {entry.name: entry for entry in fields(kind) if entry.name != "line"}
    _check_keys(values, tuple(known), lines, table, index)
    checked = {}
    for key, value in values.items():
        try:
            checked[key] = _value(known[key], value)
        except ValueError as error:
            raise ExperimentError(f"{lines.where(table, index, key)}{key} {error}, got {value!r}") from None
    return kind(**checked)


def _value(entry: Field[Any], value: Any) -> Any:
    """`value` as its field has it. ValueError says what that is."""
    kinds = get_args(entry.type) if isinstance(entry.type, UnionType) else (entry.type,)
    if Random in kinds:
        return _table(Random, value, Lines(""), "random", 0)
    if entry.name in ("command", "args"):
        if not isinstance(value, list) or not all(isinstance(word, str | int | float) for word in value):
            raise ValueError("is a list of words")
        return tuple(map(str, value))
    if entry.default is MISSING:
        if not isinstance(value, dict):
            raise ValueError("is a table")
        return {name: str(each) for name, each in value.items()}
    if isinstance(value, bool):
        raise ValueError("is no yes or no")
    if float in kinds and isinstance(value, int | float):
        if not 0 <= value < math.inf:
            raise ValueError("is a number from 0 on")
        return float(value)
    if int in kinds and isinstance(value, int) and value >= 0:
        return value
    if str in kinds and isinstance(value, str):
        return value
    words = {float: "a number", int: "a whole number from 0 on", str: "a text"}
    raise ValueError("is " + " or ".join(words[kind] for kind in kinds if kind in words))


def _check_run(run: RunSettings, lines: Lines) -> None:
    if sum(map(bool, (run.script, run.module, run.command))) != 1:
        raise ExperimentError(f"{lines.where('run')}[run] needs one of script, module and command")
    if run.command and run.args:
        raise ExperimentError(f"{lines.where('run', 0, 'args')}args are of a script or module; put them into command")
    if run.peers < 1:
        raise ExperimentError(f"{lines.where('run', 0, 'peers')}peers is at least 1, got {run.peers}")
    if run.policy not in ("live", "majority"):
        where = lines.where("run", 0, "policy")
        raise ExperimentError(f"{where}policy is live or majority, got {run.policy!r}")
    try:
        groups = re.compile(run.loss).groups if run.loss else 1
    except re.error as error:
        raise ExperimentError(f"{lines.where('run', 0, 'loss')}loss is no pattern: {error}") from None
    if groups != 1:
        raise ExperimentError(f"{lines.where('run', 0, 'loss')}loss has {groups} groups, and needs one, for the number")


def _event(values: Any, lines: Lines, index: int) -> Event:
    event: Event = _table(Event, values, lines, "event", index)
    event = Event(
        **{entry.name: getattr(event, entry.name) for entry in fields(Event) if entry.name != "line"},
        line=lines.number("event", index),
    )
    where = lines.where("event", index, "do")
    if event.do in IN_THE_LAB:
        raise ExperimentError(
            f"{where}{event.do} needs [network], and experiments have none yet: `shoal lab` changes links by hand"
        )
    if event.do not in DOS:
        raise ExperimentError(f"{where}do is {event.do!r}{nearest(event.do, DOS)}")
    given = [key for key in ("at_step", "at_s", "after", "random") if getattr(event, key) not in (None, "")]
    if len(given) != 1:
        said = f", and has {' and '.join(given)}" if given else ""
        raise ExperimentError(f"{where}an event needs one of at_step, at_s, after and random{said}")
    if event.after not in ("", AFTER):
        where = lines.where("event", index, "after")
        raise ExperimentError(f'{where}after is "{AFTER}", got {event.after!r}')
    if event.after and not index:
        raise ExperimentError(f"{lines.where('event', index, 'after')}the first event comes after none")
    _check_what(event, lines, index)
    return event


def _check_what(event: Event, lines: Lines, index: int) -> None:
    if isinstance(event.who, str) and not _WHO.fullmatch(event.who):
        where = lines.where("event", index, "who")
        raise ExperimentError(f'{where}who is "rank 0", "newest", "random", "donor" or a number, got {event.who!r}')
    if event.do == "pause" and not event.for_s:
        raise ExperimentError(f"{lines.where('event', index)}a pause needs for_s, in seconds")
    if event.do != "pause" and event.for_s:
        raise ExperimentError(f"{lines.where('event', index, 'for_s')}for_s is of a pause, and this is a {event.do}")
    if not 1 <= event.number <= 64:
        where = lines.where("event", index, "number")
        raise ExperimentError(f"{where}number is 1 to 64, got {event.number}")
    if event.random is not None and not event.random.per_minute:
        raise ExperimentError(f"{lines.where('event', index, 'random')}random needs per_minute, more than 0")


def _bound(key: str, value: Any, lines: Lines) -> Bound:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Bound("==", float(value))
    match = _BOUND.fullmatch(value) if isinstance(value, str) else None
    try:
        number = float(match.group(2)) if match else math.nan
    except ValueError:
        number = math.nan
    if match is None or math.isnan(number):
        where = lines.where("expect", 0, key)
        raise ExperimentError(f'{where}{key} is a number, or a bound like "< 300", got {value!r}')
    sign = match.group(1) or "=="
    return Bound("==" if sign == "=" else sign, number)
