"""What a checkpoint costs the steps while it is written: one peer, a state of 500 MB, on two cores.

    python -m bench.checkpoint [--megabytes 500] [--every 20] [--checkpoints 5] [--json FILE]

Prints the median of all steps before the first checkpoint, the step of each copy, and the longest of the steps while
one was written, beside a memcpy of as many bytes into memory that is there already. A step is timed from batch to batch,
the copy, which comes before the next forward pass, included.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any, Final

from p2p.benchmark.machine import commit, machine
from p2p.launch.config import LaunchConfig
from p2p.launch.launcher import Launcher
from p2p.launch.target import Target

ROOT: Final = Path(__file__).parents[1]


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
    """Print what came out."""
    steps: list[tuple[int, float, bool]] = measured["steps"]
    usual = median(time for step, time, is_writing in steps if 5 < step and not is_writing and step % every)
    copies = [time for step, time, _ in steps if step % every == 0]
    others = [time for step, time, is_writing in steps if is_writing and step % every]
    memcpy = median(measured["memcpy_s"])
    print(
        f"{measured['bytes'] / 1e6:.0f} MB; a memcpy of it {memcpy * 1e3:.0f} ms; a step {usual * 1e3:.0f} ms (median)"
    )
    extra = ", ".join(f"{(time - usual) / memcpy:.2f}" for time in copies)
    print(
        f"steps with the copy: {', '.join(f'{time * 1e3:.0f}' for time in copies)} ms: the median and {extra} memcpys"
    )
    print(
        f"{len(others)} steps while one was written: median {median(others) / usual:.2f}, "
        f"longest {max(others) / usual:.2f} of the usual one"
    )
    quiet = sorted(time for step, time, is_writing in steps if 5 < step and not is_writing and step % every)
    print(f"{len(quiet)} other steps: p99 {quiet[len(quiet) * 99 // 100] / usual:.2f}, longest {quiet[-1] / usual:.2f}")


if __name__ == "__main__":
    sys.exit(main())
