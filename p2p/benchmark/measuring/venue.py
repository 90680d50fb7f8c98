"""Runs the peers of a benchmark: on this host, or on the hosts of a network lab.

They form a swarm of their own, in a folder that is removed at the end, also after failures.
"""

import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import Progress

from p2p.errors import LaunchError, ShoalError
from p2p.host.folders import default_home
from p2p.host.keys import write_key
from p2p.launch.config import LaunchConfig
from p2p.launch.launcher import Launcher
from p2p.launch.target import Target
from p2p.netlab.config import LabConfig
from p2p.netlab.devices import INSIDE
from p2p.netlab.run import Run, counts, warnings

from ..plan import HOST, OTHER_HOSTS, OWN_SWARM, Plan, is_wide

WORKER: Final = Path(__file__).with_name("worker.py")
OUR_SIGNALS: Final = frozenset(128 + number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))

Network = dict[str, Any]
"""Report of a lab: its configuration, how late it ran, and reasons why its times may mislead."""


def run_workers(
    plan: Plan, folder: Path, environ: Mapping[str, str], script: Path = WORKER
) -> tuple[int, Network | None]:
    """Run `script` as all workers until they end.

    Returns:
        0, or 128 + N if signal N has ended the run; and the report of the lab, if there was one.

    Raises:
        LaunchError: nothing was started.
        ShoalError: a peer ended before the results were complete.
        LabError: the lab could not be created, or ended early.
    """
    with tempfile.TemporaryFile(dir=folder) as said, shown_progress() as stdout:
        run = run_locally if plan.net is None else run_in_lab
        code, network = run(plan, folder, environ, script, (stdout, said.fileno()))
        said.seek(0)
        text = said.read().decode(errors="replace")
    if not code or code in OUR_SIGNALS:
        sys.stderr.write(text if code else "")
        return code, network
    if "Traceback" in text:
        sys.stderr.write(text)
    raise ShoalError(f"the run ended before there were results, with exit code {code}: {why(text)}")


def why(text: str) -> str:
    """The cause of a failure: the launcher's line about the first failed peer, else its first line, else a peer's."""
    lines = [line for line in text.splitlines() if "shoal: " in line]
    ours = [line for line in lines if line.startswith("shoal: ")]
    named = [line for line in ours if " failed first, " in line]
    return next(iter([*named, *ours, *lines, "no peer said why"])).replace("shoal: ", "", 1)


def run_locally(
    plan: Plan, folder: Path, environ: Mapping[str, str], script: Path, outputs: tuple[int, int]
) -> tuple[int, Network | None]:
    """Run all workers on this host; `outputs`: descriptors for stdout and stderr."""
    swarm = f"bench-{secrets.token_hex(4)}"
    write_key(folder / "swarm.key")
    for way, port in zip(OTHER_HOSTS, free_ports(len(OTHER_HOSTS)), strict=True):
        (folder / f"{way}.seed").write_text(f"127.0.0.1:{port}")
    config = LaunchConfig(
        target=Target.script(script, (str(folder), plan.to_json())),
        num_peers=plan.num_peers,
        swarm=swarm,
        verbosity=-1,
    )
    environ = {"SHOAL_HOME": str(folder), **environ}
    try:
        return Launcher(config, environ=environ, stdout=outputs[0], stderr=outputs[1]).run(), None
    finally:
        for name in (swarm, *(f"{swarm}-{way}" for way in OWN_SWARM)):
            shutil.rmtree(default_home(environ) / name, ignore_errors=True)


def run_in_lab(
    plan: Plan, folder: Path, environ: Mapping[str, str], script: Path, outputs: tuple[int, int]
) -> tuple[int, Network | None]:
    """Run `per_host` workers on each host of a lab, with a key; `outputs` as above."""
    assert plan.net is not None
    config = LabConfig.uniform(plan.num_hosts, plan.net)
    run = "-m", "p2p.cli", "run", "-n", str(plan.per_host), "--min-peers", str(plan.num_peers), "-q"
    words: tuple[str, ...] = ("env", "SHOAL_LAUNCH_INDEX=0", f"{HOST}={{host}}", sys.executable)
    words = *words, *(run if plan.per_host > 1 else ()), str(script), str(folder), plan.to_json()
    # The braces of JSON are no placeholders of the lab, which replaces only whole words such as {host}.
    config = replace(config, command=words)
    preset = "wan" if is_wide(config) else "lan"
    told = {
        "SHOAL_SWARM": "bench",
        "SHOAL_MIN_PEERS": str(plan.num_peers),
        "SHOAL_NETWORK": preset,
        "SHOAL_QUIET": "1",
        "GLOO_SOCKET_IFNAME": INSIDE,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    name, (stdout, stderr) = secrets.token_hex(4), outputs
    # A benchmark needs all of its peers, and the survivor of two would wait for the other's return.
    lab = Run(config, name=name, seed=0, stdout=stdout, stderr=stderr, environ=told, ends_together=True)
    code = lab.run()
    shown = lab.shown
    network = {"net": plan.net, "preset": preset, "said": counts(shown), "warnings": warnings(shown, config)}
    return code, network | {name: shown[name] for name in ("lateness_us", "num_missed", "pairs")}


def free_ports(number: int) -> list[int]:
    """Unused ports; the port after each is unused, too."""
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
