"""`shoal experiment`: run all repetitions of an experiment, and write the log of each."""

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

from ...benchmark.results.machine import commit, machine
from ...errors import ExperimentError, LaunchError, ShoalError
from ...forking.program import ImportFailed
from ...forking.program import command as with_memory
from ...forking.zygote import WITH_TORCH, Zygote
from ...forking.zygote import Child as Forked
from ...host.memory_left import memory_bytes
from ...launch.config import LaunchConfig, peer_environment
from ...launch.target import Target
from ...netlab.lab import NetworkLab
from ..config import Experiment
from ..folder import has_begun, write_log
from ..run_log import Process, RunLog
from .director import Director
from .plan import Plan, make_plan, most_living, to_toml
from .swarm import PeerProcess, Swarm
from .testbed import LabTestbed, LocalTestbed, Starter, Testbed, execute

SWARM = "experiment"
LAST_BYTES = 1 << 14
"""The end of the output, in which the last line is searched."""


@dataclass(frozen=True, slots=True)
class ExperimentRunner:
    """Runs experiments.

    Attributes:
        environ: environment that peers inherit, without variables that begin with SHOAL_.
        say: prints a line.
        start: starts a peer; None: as `[run]` says.
    """

    environ: Mapping[str, str]
    say: Callable[[str], None]
    start: Starter | None = None

    def run(self, experiment: Experiment, plans: list[tuple[int, Plan]], out: Path) -> bool:
        """Run each plan once, into `out`; False: interrupted. Folders of completed runs remain in any case.

        Raises:
            ExperimentError: no run is possible, or a file cannot be written.
            LabError: a lab is not possible here.
        """
        self.check(experiment, plans, out)
        prepare(out)
        (out / "experiment.toml").write_text(experiment.text)
        with self._starting(experiment, out) as start:
            for number, (seed, plan) in enumerate(plans, 1):
                if len(plans) > 1:
                    self.say(f"run {number} of {len(plans)}, seed {seed}")
                try:
                    self._run(experiment, seed, plan, out / f"run-{number}", start)
                except KeyboardInterrupt:
                    self.say("interrupted: all peers are ended")
                    return False
                except (OSError, ShoalError) as error:  # the disk is full, say, or the fork server or lab has died
                    self._give_up(error, out)
                    break
        return True

    def check(self, experiment: Experiment, plans: list[tuple[int, Plan]], out: Path) -> None:
        """Check that program and memory are available, without changing anything. ExperimentError: what is missing."""
        run = experiment.run
        where = next((key for key in ("script", "module", "command") if getattr(run, key)), "")
        try:
            target = run.target(experiment.folder, out)
            program = target.command[0]
            if shutil.which(program, path=self._environ(experiment).get("PATH")) is None:
                raise LaunchError(f"there is no program {program} that can be run")
        except LaunchError as error:
            raise ExperimentError(f"{experiment.where(where, 'run')}{error}") from None
        check_memory(experiment, [plan for _, plan in plans])

    def _give_up(self, error: OSError | ShoalError, out: Path) -> None:
        """Say why no more runs follow; if no step was committed, raise it: an OSError as an ExperimentError."""
        why = str(error)
        if isinstance(error, OSError):
            why = f"{error.filename}: {error.strerror}" if error.filename else error.strerror or why
        if has_begun(out):
            self.say(f"all peers are ended: {why}")
        elif isinstance(error, OSError):
            raise ExperimentError(f"all peers are ended, and nothing is left to report: {why}") from error
        else:
            raise error

    @contextmanager
    def _starting(self, experiment: Experiment, out: Path) -> Iterator[Starter]:
        """Yield the function that starts a peer. ExperimentError: the process to fork peers from cannot be started."""
        run = experiment.run
        if self.start is not None or run.start == "exec":
            yield self.start or execute
            return
        config = LaunchConfig(target=run.target(experiment.folder, out), num_peers=run.peers, swarm=SWARM)
        try:
            environ = peer_environment(config, 0, self._environ(experiment))
            made = Zygote(environ, (*WITH_TORCH, *run.imports))
        except ImportFailed as error:
            if error.module not in run.imports:
                raise ExperimentError(
                    f'[run] start = "fork": {error}; with "exec" peers import for themselves'
                ) from error
            where = experiment.where("imports", "run")
            raise ExperimentError(
                f"{where}{error}; imports are installed modules, or of PYTHONPATH, and start no threads"
            ) from error
        except LaunchError as error:
            raise ExperimentError(f'[run] start = "fork": {error}; with "exec" peers import for themselves') from error
        with made as zygote:

            def fork(words: Sequence[str], environ: Mapping[str, str], output: int) -> Forked:
                return zygote.start_program(words[1:], environ, output, output, resident_bytes=run.resident_bytes)

            yield fork

    def _environ(self, experiment: Experiment) -> dict[str, str]:
        clean = {name: value for name, value in self.environ.items() if not name.startswith("SHOAL_")}
        return {**clean, **experiment.run.env}

    def _run(self, experiment: Experiment, seed: int, plan: Plan, folder: Path, start: Starter) -> None:
        folder.mkdir()
        (folder / "schedule.toml").write_text(to_toml(experiment, plan))
        config = LaunchConfig(
            target=self._target(experiment, folder.absolute()),
            num_peers=experiment.run.peers,
            swarm=SWARM,
            receipts=folder / "receipts",
            is_traced=True,
            policy=experiment.run.policy,
        )
        began_ns, environment = time.monotonic_ns(), {**machine(), "commit": commit()}
        with _signals() as is_interrupted, ExitStack() as stack:
            home = Path(tempfile.mkdtemp(prefix="shoal-"))  # `folder` may be too long a name for a socket
            stack.callback(shutil.rmtree, home, ignore_errors=True)
            venue: Testbed = LocalTestbed(home, start)
            if experiment.network is not None:
                venue = LabTestbed(stack.enter_context(NetworkLab(experiment.network, seed=seed)), home)
            swarm = Swarm(config, folder, self._environ(experiment), venue, experiment.run.loss)
            director = Director(experiment, plan, swarm, self.say, is_interrupted)
            try:
                director.run()
            finally:
                try:
                    swarm.close(time.monotonic_ns)
                finally:
                    write_log(folder, _account(experiment.name, seed, director, swarm, began_ns, environment))

    def _target(self, experiment: Experiment, folder: Path) -> Target:
        run = experiment.run
        target = run.target(experiment.folder, folder)
        is_plain = not run.resident_bytes or run.start == "fork"
        return target if is_plain else replace(target, command=with_memory(target.command, run.resident_bytes))


def _account(
    name: str, seed: int, director: Director, swarm: Swarm, began_ns: int, environment: dict[str, object]
) -> RunLog:
    return RunLog(
        name=name,
        seed=seed,
        began_ns=began_ns,
        first_step_ns=director.first_step_ns,
        ended_ns=time.monotonic_ns(),
        ended_by=director.ended_by,
        processes=tuple(map(_process, swarm.started)),
        events=tuple(director.happened),
        losses=tuple(swarm.losses),
        usage=tuple(swarm.usage),
        environment=environment,
    )


def prepare(out: Path) -> None:
    """Create the folder. ExperimentError: it is not empty, or cannot be created."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()):
            raise ExperimentError(f"{out} is not empty: give --out a folder that is, or none")
    except OSError as error:
        raise ExperimentError(f"cannot make the folder {out}: {error.strerror}") from error


def check_memory(experiment: Experiment, plans: Sequence[Plan]) -> None:
    """ExperimentError: peers would hold more resident memory than is available, so the kernel would kill a process."""
    each_bytes = experiment.run.resident_bytes
    most = max((most_living(plan, experiment.run.peers) for plan in plans), default=0)
    if each_bytes and most * each_bytes > (free_bytes := memory_bytes()):
        raise ExperimentError(
            f"{experiment.where('resident', 'run')}{most} peers with resident = {experiment.run.resident} keep "
            f"{most * each_bytes / 1e9:.1f} GB, and {free_bytes / 1e9:.1f} GB are available: ask for less"
        )


def plans(experiment: Experiment, seed: int, repeat: int) -> list[tuple[int, Plan]]:
    """(seed, plan) of each repetition, with consecutive seeds. ExperimentError: an event is impossible."""
    return [(each, make_plan(experiment, each)) for each in range(seed, seed + repeat)]


def _process(started: PeerProcess) -> Process:
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
        ended_by_experiment=started.ended_by_experiment,
        last_line=next((line.strip() for line in reversed(lines) if line.strip()), ""),
    )


@contextmanager
def _signals() -> Iterator[Callable[[], bool]]:
    """Defer SIGINT, SIGTERM and SIGHUP until the end of `with`; the yielded function tells whether one has arrived.

    So no signal interrupts a start or a clean-up. SIGINT is handled even if a shell started this in the background.

    Raises:
        KeyboardInterrupt: at the end, if a signal has arrived.
    """
    came: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup says that it must not matter
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield lambda: bool(came)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        raise KeyboardInterrupt
