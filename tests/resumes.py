"""Runs that are killed as a whole at random moments, and resume from their checkpoints, repeatedly.

`python -m tests.resumes --kills 30 --seed 0`; tests/live/resumes.py has the invariants. Exits with 1 if one does not
hold.
"""

import argparse
import tempfile
import time
from pathlib import Path

from bench.here import environment
from p2p.forking.zygote import Zygote
from tests.live.resumes import Killed
from tests.live.swarm import Swarm


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=int, default=10, help="steps between two checkpoints")
    parser.add_argument("--width", type=int, default=512, help="of the model: how long a checkpoint takes")
    options = parser.parse_args()
    start_s = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="shoal-", dir="/tmp") as home,
        tempfile.TemporaryDirectory(prefix="shoal-") as folder,
        Zygote(environment()) as zygote,
    ):
        swarm = Swarm(Path(home), Path(folder), zygote)
        swarm.leaves_files = True
        checkpoints = Path(folder) / "checkpoints"
        killed = Killed(swarm, checkpoints, options.seed, every=options.every, width=options.width)
        try:
            killed.run(options.kills)
        except AssertionError as error:
            print(f"seed {options.seed}: {error}")
            return 1
        finally:
            for process in killed.processes:
                process.kill()
        swarm.close()
    print(
        f"seed {options.seed}: {options.kills} kills, {killed.num_unfinished} of them while a checkpoint was written; "
        f"at most {killed.most_lost} steps done over, {options.every} between two; each sample once an epoch, "
        f"losses as replayed; {time.monotonic() - start_s:.0f} s"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
