"""Cost of a checkpoint for the steps during which it is written: one peer, a state of 500 MB, on two cores.

    python -m bench.checkpoint [--megabytes 500] [--every 20] [--checkpoints 5] [--json FILE]

Prints the times of steps with a copy, and of those while one was written, beside the median of all others, and of a
memcpy of as many bytes into memory that is mapped already. A step is timed from its end to that of the next one; the
copy comes before the forward pass. On a machine with other load, processor time says more than the clock.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from p2p.benchmark.results.machine import commit, machine
from p2p.launch.config import LaunchConfig
from p2p.launch.launcher import Launcher
from p2p.launch.target import Target

ROOT: Final = Path(__file__).parents[1]


WARM_UP: Final = 5


class Step(NamedTuple):
    """One step; the state is copied in steps that `every` divides."""

    number: int
    clock_s: float
    processor_s: float
    is_writing: bool


def main() -> int:
    """Measure, print; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=500, help="of the state")
    parser.add_argument("--every", type=int, default=20, help="steps from one to the next")
    parser.add_argument("--checkpoints", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="shoal-") as name:
        words = (name, str(options.megabytes), str(options.every), str(options.checkpoints))
        config = LaunchConfig(
            target=Target.script(ROOT / "bench" / "checkpoint_peer.py", words),
            num_peers=1,
            swarm="checkpoint",
            verbosity=-1,
            home=Path(name),
        )
        environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        code = Launcher(config, environ=environ, stdout=sys.stdout.fileno(), stderr=sys.stderr.fileno()).run()
        if code:
            return code
        measured: dict[str, Any] = json.loads((Path(name) / "measured.json").read_text())
    report(measured, options.every)
    if options.json is not None:
        everything = {"version": 1, "commit": commit(), "machine": machine(), **measured}
        options.json.write_text(json.dumps(everything, indent=1) + "\n")
    return 0


def report(measured: dict[str, Any], every: int) -> None:
    """Print the results, in wall-clock time and in processor time of the training thread."""
    steps = [Step(*row) for row in measured["steps"] if row[0] > WARM_UP]
    print(f"{measured['bytes'] / 1e6:.0f} MB")
    for name in ("clock", "processor"):
        times = [(step, getattr(step, f"{name}_s")) for step in steps]
        memcpy = median(measured[f"memcpy_{name}_s"])
        quiet = sorted(time for step, time in times if not step.is_writing and step.number % every)
        copies = [time for step, time in times if step.number % every == 0]
        others = [time for step, time in times if step.is_writing and step.number % every]
        usual = median(quiet)
        print(f"{name}: a memcpy {memcpy * 1e3:.0f} ms, a step {usual * 1e3:.0f} ms (median of {len(quiet)}; ", end="")
        print(f"longest {quiet[-1] / usual:.2f} of it)")
        print(f"  with the copy: the median and {words((time - usual) / memcpy for time in copies)} memcpys")
        print(f"  while one was written: {words(time / usual for time in others)} of the median")


def words(numbers: Iterable[float]) -> str:
    """The numbers in words, with two decimal places."""
    return ", ".join(f"{number:.2f}" for number in numbers) or "none"


if __name__ == "__main__":
    sys.exit(main())
