"""`shoal experiment`: runs a plan as often as asked, and writes what came of it."""

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from ..benchmark.machine import commit, machine
from ..errors import ExperimentError, LaunchError
from ..launch.config import LaunchConfig
from ..netlab.lab import NetworkLab
from .config import Experiment
from .director import Director
from .folder import write_account
from .happened import Account, Process
from .plan import Plan, make_plan, to_toml
from .swarm import Started, Swarm
from .venue import Lab, Starter, ThisHost, Venue, execute

SWARM = "experiment"
LAST_BYTES = 1 << 14
"""Of output, in which the last line is looked for."""


@dataclass(frozen=True, slots=True)
class Conductor:
    """Runs experiments.

    Attributes:
        environ: what peers inherit; of what begins with SHOAL_, nothing.
        say: for people, a line at a time.
        start: how peers are started.
    """

    environ: Mapping[str, str]
    say: Callable[[str], None]
    start: Starter = execute

    def conduct(self, experiment: Experiment, plans: list[tuple[int, Plan]], out: Path) -> bool:
        """Run each plan once, into `out`; False: somebody interrupted it. What was run is there in any case.

        Raises:
            ExperimentError: nothing can be run, or written.
        """
        try:
            experiment.run.target(experiment.folder, out)
        except LaunchError as error:
            where = next((key for key in ("script", "module", "command") if getattr(experiment.run, key)), "")
            raise ExperimentError(f"{error}; [run] {where} says so") from None
        prepare(out)
        (out / "experiment.toml").write_text(experiment.text)
        for number, (seed, plan) in enumerate(plans, 1):
            if len(plans) > 1:
                self.say(f"run {number} of {len(plans)}, seed {seed}")
            try:
                self._run(experiment, seed, plan, out / f"run-{number}")
            except KeyboardInterrupt:
                self.say("interrupted: all peers are ended")
                return False
            except OSError as error:  # the disk is full, say
                self.say(f"all peers are ended: {error}")
                break
        return True

    def _run(self, experiment: Experiment, seed: int, plan: Plan, folder: Path) -> None:
        folder.mkdir()
        (folder / "schedule.toml").write_text(to_toml(experiment, plan))
        home = Path(tempfile.mkdtemp(prefix="shoal-"))  # `folder` may be too long a name for a socket
        config = LaunchConfig(
            target=experiment.run.target(experiment.folder, folder.absolute()),
            num_peers=experiment.run.peers,
            swarm=SWARM,
            receipts=folder / "receipts",
            policy=experiment.run.policy,
        )
        clean = {name: value for name, value in self.environ.items() if not name.startswith("SHOAL_")}
        began_ns, environment = time.monotonic_ns(), {**machine(), "commit": commit()}
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, home, ignore_errors=True)
            venue: Venue = ThisHost(home, self.start)
            if experiment.network is not None:
                venue = Lab(stack.enter_context(NetworkLab(experiment.network, seed=seed)), home)
            swarm = Swarm(config, folder, {**clean, **experiment.run.env}, venue, experiment.run.loss)
            director = Director(experiment, plan, swarm, self.say)
            try:
                with _signals():
                    director.run()
            finally:
                try:
                    swarm.close(time.monotonic_ns)
                finally:
                    write_account(folder, _account(experiment.name, seed, director, swarm, began_ns, environment))


def _account(
    name: str, seed: int, director: Director, swarm: Swarm, began_ns: int, environment: dict[str, object]
) -> Account:
    return Account(
        name=name,
        seed=seed,
        began_ns=began_ns,
        begun_ns=director.begun_ns,
        ended_ns=time.monotonic_ns(),
        ended_by=director.ended_by,
        processes=tuple(map(_process, swarm.started)),
        events=tuple(director.happened),
        losses=tuple(swarm.losses),
        usage=tuple(swarm.usage),
        environment=environment,
    )


def prepare(out: Path) -> None:
    """Make the folder. ExperimentError: it is not empty, or cannot be made."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()):
            raise ExperimentError(f"{out} is not empty: give --out a folder that is, or none")
    except OSError as error:
        raise ExperimentError(f"cannot make the folder {out}: {error.strerror}") from error


def plans(experiment: Experiment, seed: int, repeat: int) -> list[tuple[int, Plan]]:
    """One per repetition, each with a seed of its own. ExperimentError: an event cannot be."""
    return [(each, make_plan(experiment, each)) for each in range(seed, seed + repeat)]


def _process(started: Started) -> Process:
    peer, lines = started.peer, list[str]()
    with suppress(OSError), started.log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - LAST_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
    return Process(
        index=started.index,
        peer_id="" if peer is None else peer.peer_id,
        pid=started.process.pid,
        began_ns=started.began_ns,
        joined_ns=0 if peer is None else peer.tail.identity.joined_ns,
        ended_ns=started.ended_ns,
        code=started.code,
        missed=0 if peer is None else peer.tail.num_missed,
        was_ended=started.was_ended,
        last_line=next((line.strip() for line in reversed(lines) if line.strip()), ""),
    )


@contextmanager
def _signals() -> Iterator[None]:
    """SIGTERM ends a run as Ctrl-C does, which is heard also where a shell has started this in the background."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
