"""The director of `shoal bench all-reduce`: starts the workers, shows how far they are, and puts results together.

The peers meet in a swarm of their own, in a folder that is removed at the end, whatever the end is.
"""

import json
import os
import secrets
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from p2p.errors import LaunchError, ShoalError
from p2p.host.folders import default_home
from p2p.host.keys import write_key
from p2p.launch.config import LaunchConfig
from p2p.launch.launcher import Launcher
from p2p.launch.target import Target

from .machine import machine
from .plan import OTHER_HOSTS, OWN_SWARM, Plan
from .report import print_table, write_json
from .result import AllReduceResult, Measurement, combine


def bench_all_reduce(plan: Plan, environ: Mapping[str, str], json_path: Path | None = None) -> int:
    """Measure what `plan` says, print a table, write JSON if asked to.

    Returns:
        The exit code: 0 if every result was the exact sum.

    Raises:
        LaunchError: nothing was started, as the results could not be written.
    """
    if json_path is not None:
        check_writable(json_path)
    described = machine()
    with tempfile.TemporaryDirectory(prefix="shoal-") as name:
        folder = Path(name)
        # Receipts would put a file into what is timed.
        inherited = {key: value for key, value in environ.items() if key != "SHOAL_RECEIPTS"}
        code = run_workers(plan, folder, {"SHOAL_HOME": name, **inherited})
        if code:
            return code
        results = read_results(plan, folder)
    print_table(plan, results, described)
    if json_path is not None:
        write_json(json_path, plan, results, described)
    return 1 if any(result.wrong for result in results) else 0


def check_writable(path: Path) -> None:
    folder = path.absolute().parent
    if path.is_dir() or not os.access(folder, os.W_OK):
        raise LaunchError(f"--json is a file in a folder that can be written, got {path}")


def run_workers(plan: Plan, folder: Path, environ: Mapping[str, str]) -> int:
    """Run all workers to their end; returns the launcher's exit code."""
    swarm = f"bench-{secrets.token_hex(4)}"
    write_key(folder / "swarm.key")
    for way, port in zip(OTHER_HOSTS, free_ports(len(OTHER_HOSTS)), strict=True):
        (folder / f"{way}.seed").write_text(f"127.0.0.1:{port}")
    config = LaunchConfig(
        target=Target.script(Path(__file__).with_name("worker.py"), (str(folder), plan.to_json())),
        num_peers=plan.num_peers,
        swarm=swarm,
        verbosity=-1,
    )
    try:
        with shown_progress() as stdout:
            return Launcher(config, environ=environ, stdout=stdout, stderr=sys.stderr.fileno()).run()
    finally:
        for name in (swarm, *(f"{swarm}-{way}" for way in OWN_SWARM)):
            shutil.rmtree(default_home(environ) / name, ignore_errors=True)


def free_ports(number: int) -> list[int]:
    """Of ports that nobody uses, as is the next after each."""
    found: list[int] = []
    for port in range(23_000, 32_000, 2):
        with ExitStack() as stack, suppress(OSError):
            for each in (port, port + 1):
                stack.enter_context(socket.create_server(("127.0.0.1", each)))
            found.append(port)
        if len(found) == number:
            return found
    raise LaunchError("no two free ports in a row between 23000 and 32000")


@contextmanager
def shown_progress() -> Iterator[int]:
    """A descriptor for the workers' reports, shown as a bar on stderr if that is a terminal."""
    reading, writing = os.pipe()
    progress = Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
    task = progress.add_task("measuring", total=1.0)

    def follow() -> None:
        with open(reading, encoding="utf-8") as reports:
            for line in reports:
                progress.update(task, completed=float(line.split()[-1]))

    thread = threading.Thread(target=follow, name="shoal-bench-progress", daemon=True)
    with progress:
        thread.start()
        try:
            yield writing
        finally:
            os.close(writing)
            thread.join()


def read_results(plan: Plan, folder: Path) -> list[AllReduceResult]:
    """What the workers wrote, put together.

    Raises:
        ShoalError: a worker ended without.
    """
    return combine([read_measurements(folder / f"{index}.json") for index in range(plan.num_peers)])


def read_measurements(path: Path) -> list[Measurement]:
    if not path.is_file():
        raise ShoalError(f"peer {path.stem} ended without results; nothing can be said of the others")
    return [Measurement(**{**row, "times_s": tuple(row["times_s"])}) for row in json.loads(path.read_text())]
