"""A worker of `shoal bench --device cuda` whose GPU is the stand-in, and the director of such workers.

    python -m tests.p2p.staging.bench_worker PLAN FILE...    # as `shoal bench --explain`, with files by their suffixes

Processes and copies are real, and times mean nothing. STAND_IN: there is `none`, or it is `full`, or it `refuses` to
register memory.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from p2p.benchmark.director import Outputs, run_bench
from p2p.benchmark.measuring.worker import run
from p2p.benchmark.plan import Plan
from p2p.device import FoundDevice
from p2p.errors import ShoalError
from tests.p2p.staging.standin import StandIn

VARIABLE = "STAND_IN"


def find() -> tuple[tuple[FoundDevice, ...], str]:
    """The devices of this process, as `p2p.staging.cuda_devices`."""
    how = os.environ.get(VARIABLE, "")
    if how == "none":
        return (), "the stand-in is told to be none"
    device = StandIn(int(os.environ.get("SHOAL_LAUNCH_INDEX", "0")))
    if how == "full":
        device.capacity = 1 << 10
    if how == "refuses":
        device.refuses_every = 1
    return (FoundDevice("cpu", device, 0, 0),), ""


def direct(text: str, files: Sequence[str]) -> int:
    """Start workers for a plan; returns the exit code of `shoal bench`."""
    paths = {Path(each).suffix[1:]: Path(each) for each in files}
    outputs = Outputs(json=paths.get("json"), csv=paths.get("csv"), plot=paths.get("svg"), explains=True)
    try:
        return run_bench(Plan.from_json(text), os.environ, outputs, Path(__file__))
    except ShoalError as error:
        print(f"shoal: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    if "SHOAL_SWARM" in os.environ:  # the process was started as a peer
        run(find)
    else:
        sys.exit(direct(sys.argv[1], sys.argv[2:]))
