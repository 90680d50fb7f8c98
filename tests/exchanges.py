"""Operations as seeds draw them, among peers that die, join and are stopped; their results against plain sums.

`python -m tests.exchanges --seconds 300 --seed 0` runs as many as fit; tests/live/exchanged.py says what must hold.
Ends with 1 if something does not, after all the others, with its seed.
"""

import argparse
import time
from itertools import count

from bench.here import environment
from p2p.forking.zygote import WITH_TORCH, Zygote
from tests.live.exchanged import Exchanged


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seed", type=int, default=0, help="the first")
    options = parser.parse_args()
    end_s, num_failed, num_events = time.monotonic() + options.seconds, 0, 0
    with Zygote(environment(), WITH_TORCH) as zygote:
        for seed in count(options.seed):
            if time.monotonic() >= end_s:
                break
            exchanged = Exchanged(zygote, seed)
            try:
                exchanged.run()
            except AssertionError as error:
                num_failed += 1
                print(f"seed {seed}: {error}", flush=True)
            num_events += len(exchanged.events)
    print(f"seeds {options.seed} to {seed - 1}: {num_events} events, {num_failed} failed")
    return int(num_failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
