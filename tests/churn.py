"""Sequences of kills, joins and leaves of real processes, drawn by seeds.

`python -m tests.churn --events 150 --seed 0 --seeds 3` runs one schedule per seed; tests/live/churn.py has the
invariants. Exits with 1, the seed and the last events if one does not hold.
"""

import argparse
import time

from bench.here import environment
from p2p.forking.zygote import Zygote
from tests.live.churn import Churn


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=150, help="kills, joins and leaves of one run")
    parser.add_argument("--seed", type=int, default=0, help="the first")
    parser.add_argument("--seeds", type=int, default=1, help="number of runs")
    options = parser.parse_args()
    with Zygote(environment()) as zygote:
        for seed in range(options.seed, options.seed + options.seeds):
            churn, start_s = Churn(zygote, seed), time.monotonic()
            try:
                receipts = churn.run(options.events)
            except AssertionError as error:
                print(error)
                return 1
            views = len({receipt.view_number for receipt in receipts})
            time_s = time.monotonic() - start_s
            print(f"seed {seed}: {churn.events}, {len(receipts)} steps in {views} views, {time_s:.0f} s", end="")
            print(f"; longest time without a commit {churn.longest_gap_s * 1e3:.0f} ms", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
