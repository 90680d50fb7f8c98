"""The TOML file that describes an experiment, checked before anything starts. Pure, except `read`."""

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from ..benchmark.plan import parse_size
from ..errors import ExperimentError, LabError, LaunchError
from ..launch.config import OF_TORCHRUN
from ..launch.target import Target
from ..net.tcp import TCP_VARIABLES
from ..netlab.config import LabConfig
from .events import MOST_PEERS, Event, read_event
from .lines import Lines, check_keys, read_table

_EACH_PEER: Final = "each peer is given its own"
_EACH_RUN: Final = "each run has its own"
DECIDED: Final = {
    "SHOAL_HOME": _EACH_RUN,
    "SHOAL_SWARM": _EACH_RUN,
    "SHOAL_RECEIPTS": "they are in the folder of the run, --out",
    "SHOAL_TRACED": "traces are in the folder of the run, --out",
    "SHOAL_POLICY": "policy in [run] decides it",
    "SHOAL_MIN_PEERS": "peers in [run] decides it",
    "SHOAL_LOCAL_PEERS": "peers in [run] decides it",
    "SHOAL_ONLY": "do in [[event]] decides it",
    "SHOAL_LAUNCH_INDEX": _EACH_PEER,
    "SHOAL_LOCAL_INDEX": _EACH_PEER,
    **dict.fromkeys(TCP_VARIABLES, "peers are on this host, or in a [network], which is a lan"),
    "LOCAL_RANK": "each peer sees one device",
    **dict.fromkeys(OF_TORCHRUN, "it belongs to torchrun and changes, so peers get none"),
    "PYTHONUNBUFFERED": "each peer is given 1",
    "SHOAL_WEB": "it belongs to shoal run",
    "SHOAL_WEB_TOKEN": "it belongs to shoal run",
    "SHOAL_EXPORTED": "it belongs to shoal run",
}
"""Environment variables that `env` cannot set, and why."""

_BOUND: Final = re.compile(r"\s*(<=|>=|<|>|==?)?\s*([-+0-9.eE_]+)\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """`[run]`: what the peers run, and for how long.

    Attributes:
        script, module, command: exactly one of them: what each peer runs; `script` is relative to the file's folder.
        args: for a script or module; `{run}` in them stands for the folder of the run.
        peers: number of peers at the start.
        until_step, until_s: from then on no event begins but those `after` one that has happened; once all of these
            are over, all peers are asked to leave. Without both the script ends by itself.
        limit_s: for the whole run; a run that reaches it is ended, and counts as not as expected.
        start: `exec`: each peer is a separate program; `fork`: a fork of one process that has imported torch.
        cycles: how many times the list of events is run through.
        imports: modules, such as `transformers`, that the process imports beside torch before peers are forked.
        resident: extra memory that each peer holds, such as 2G; empty: none.
        env: environment variables for the peers.
        policy: which survivors continue after deaths: `live` or `majority`.
        loss: pattern, with one group, that finds the loss in the script's output; empty: taken from
            `peer.log(loss=...)`, if called.
    """

    script: str = ""
    module: str = ""
    command: Sequence[str] = ()
    args: Sequence[str] = ()
    peers: int = 2
    until_step: int | None = None
    until_s: float | None = None
    limit_s: float = 600.0
    start: str = "exec"
    imports: Sequence[str] = ()
    resident: str = ""
    cycles: int = 1
    env: Mapping[str, str] = field(default_factory=dict)
    policy: str = "live"
    loss: str = ""

    @property
    def resident_bytes(self) -> int:
        """`resident` in bytes. LaunchError: it is not a size."""
        return parse_size(self.resident) if self.resident else 0

    def target(self, folder: Path, run: Path) -> Target:
        """The program to start, with `{run}` replaced by the folder of the run. LaunchError: it does not exist."""
        args = [word.replace("{run}", str(run)) for word in self.args]
        if self.command:
            target = Target.of_command([word.replace("{run}", str(run)) for word in self.command])
        elif self.module:
            target = Target.module(self.module, args)
        else:
            target = Target.script(folder / self.script, args)
        target.check()
        return target


@dataclass(frozen=True, slots=True)
class Bound:
    """The expected value of a figure: `sign` is one of <, <=, ==, >=, >."""

    sign: str
    value: float

    def is_met(self, found: float) -> bool:
        """Whether `found` meets this bound; NaN never does."""
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
    """An experiment file that has been checked.

    Attributes:
        name: of the file.
        folder: that contains the file.
        text: of the file.
        network: hosts and the links between them; None: all peers run on this host.
        network_table: the table that `network` was parsed from.
    """

    name: str
    folder: Path
    text: str
    run: RunSettings
    network: LabConfig | None
    network_table: Mapping[str, Any]
    events: tuple[Event, ...]
    expect: Mapping[str, Bound]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read and check a file. ExperimentError says what is wrong, and in which line."""
        try:
            text = path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeError) as error:
            raise ExperimentError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
        try:
            return cls.parse(text, path.stem, path.absolute().parent)
        except ExperimentError as error:
            raise ExperimentError(f"{path}: {error}") from None

    @classmethod
    def parse(cls, text: str, name: str, folder: Path) -> Self:
        """Check the text of a file, like `read`."""
        try:
            tables = tomllib.loads(text)
        except ValueError as error:
            raise ExperimentError(f"no TOML: {error}") from error
        lines = Lines(text)
        check_keys(tables, ("run", "network", "event", "expect"), lines, "", 0)
        network = _network(tables["network"], lines) if "network" in tables else None
        run = read_table(RunSettings, tables.get("run", {}), lines, "run", 0)
        _check_run(run, lines)
        _check_start(run, lines, has_network=network is not None)
        _check_env(run, lines)
        found = tables.get("event", [])
        if not isinstance(found, list):
            raise ExperimentError(f"{lines.where('event')}events are written as [[event]], once for each")
        num_hosts = 0 if network is None else len(network.hosts)
        events = tuple(read_event(values, lines, index, num_hosts) for index, values in enumerate(found))
        expect = {key: _bound(key, value, lines) for key, value in tables.get("expect", {}).items()}
        return cls(
            name=name,
            folder=folder,
            text=text,
            run=run,
            network=network,
            network_table=tables.get("network", {}),
            events=events,
            expect=expect,
        )

    def where(self, key: str, table: str = "expect") -> str:
        """The line of an expectation, or of a key of another table, as the beginning of an error message."""
        return Lines(self.text).where(table, 0, key)


def _check_run(run: RunSettings, lines: Lines) -> None:
    if sum(map(bool, (run.script, run.module, run.command))) != 1:
        raise ExperimentError(f"{lines.where('run')}[run] needs one of script, module and command")
    if run.command and run.args:
        raise ExperimentError(
            f"{lines.where('run', 0, 'args')}args belong to a script or module; put them into command"
        )
    if run.cycles < 1:
        raise ExperimentError(f"{lines.where('run', 0, 'cycles')}cycles is at least 1, got {run.cycles}")
    if not 1 <= run.peers <= MOST_PEERS:
        raise ExperimentError(f"{lines.where('run', 0, 'peers')}peers is 1 to {MOST_PEERS}, got {run.peers}")
    if run.policy not in ("live", "majority"):
        where = lines.where("run", 0, "policy")
        raise ExperimentError(f"{where}policy is live or majority, got {run.policy!r}")
    try:
        groups = re.compile(run.loss).groups if run.loss else 1
    except re.error as error:
        raise ExperimentError(f"{lines.where('run', 0, 'loss')}loss is not a pattern: {error}") from None
    if groups != 1:
        raise ExperimentError(f"{lines.where('run', 0, 'loss')}loss has {groups} groups, and needs one, for the number")


def _check_start(run: RunSettings, lines: Lines, *, has_network: bool) -> None:
    where = lines.where("run", 0, "start")
    if run.start not in ("exec", "fork"):
        raise ExperimentError(f"{where}start is exec or fork, got {run.start!r}")
    if run.start == "fork" and run.command:
        raise ExperimentError(f"{where}a fork runs a script or module, not a command")
    if run.start == "fork" and has_network:
        raise ExperimentError(f'{where}peers on hosts of a [network] are separate programs: use start = "exec"')
    where = lines.where("run", 0, "imports")
    if run.imports and run.start != "fork":
        raise ExperimentError(f'{where}imports are for peers that are forked: use start = "fork"')
    for name in run.imports:
        if not all(part.isidentifier() for part in name.split(".")):
            raise ExperimentError(f"{where}imports takes names of modules, got {name!r}")
    where = lines.where("run", 0, "resident")
    if run.resident and run.command:
        raise ExperimentError(f"{where}resident works with a script or module, and this is a command")
    try:
        _ = run.resident_bytes
    except LaunchError as error:
        raise ExperimentError(f"{where}resident: {error}") from None


def _check_env(run: RunSettings, lines: Lines) -> None:
    for name, value in run.env.items():
        where = lines.where("run.env", 0, name) or lines.where("run", 0, "env")
        if not name or "=" in name or "\0" in name + value:
            raise ExperimentError(
                f"{where}env: a name is not empty and has no =, and no name and no value has a NUL character, "
                f"got {name!r} = {value!r}"
            )
        if name in DECIDED:
            raise ExperimentError(f"{where}env: {name} would have no effect: {DECIDED[name]}; leave it out")


def _network(table: Any, lines: Lines) -> LabConfig:
    if not isinstance(table, dict):
        raise ExperimentError(f"{lines.where('network')}[network] is a table, got {table!r}")
    try:
        return LabConfig.from_table(table)
    except LabError as error:
        raise ExperimentError(f"{lines.where('network')}[network]: {error}") from None


def _bound(key: str, value: Any, lines: Lines) -> Bound:
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return Bound("==", float(value))
    match = _BOUND.fullmatch(value) if isinstance(value, str) else None
    try:
        number = float(match.group(2)) if match else math.nan
    except ValueError:
        number = math.nan
    if match is None or not math.isfinite(number):
        where = lines.where("expect", 0, key)
        raise ExperimentError(f'{where}{key} is a number, or a bound like "< 300", got {value!r}')
    sign = match.group(1) or "=="
    return Bound("==" if sign == "=" else sign, number)
