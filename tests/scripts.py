"""Ordinary scripts drawn by seeds, run by real peers that die, join, leave, are stopped, and are resumed.

`python -m tests.scripts --seconds 300 --seed 0` runs as many as fit; tests/live/drawn.py has the invariants. After all
scripts, exits with 1 and the seeds of those that failed.
"""

import argparse
import time
from collections.abc import Callable, Sized
from itertools import count
from typing import Protocol

from bench.here import environment
from p2p.forking.zygote import WITH_TORCH, Zygote
from tests.live.drawn import Drawn


class Draw(Protocol):
    """A run drawn by a seed. `run` raises AssertionError if it breaks an invariant."""

    @property
    def events(self) -> Sized: ...

    def run(self) -> None: ...


def run_seeds(description: str | None, draw: Callable[[Zygote, int], Draw]) -> int:
    """Run as many seeds as fit into the time that the command line gives. Returns the exit code."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seed", type=int, default=0, help="the first")
    options = parser.parse_args()
    end_s, num_failed, num_events = time.monotonic() + options.seconds, 0, 0
    with Zygote(environment(), WITH_TORCH) as zygote:
        for seed in count(options.seed):
            if time.monotonic() >= end_s:
                break
            drawn = draw(zygote, seed)
            try:
                drawn.run()
            except AssertionError as error:
                num_failed += 1
                print(f"seed {seed}: {error}", flush=True)
            num_events += len(drawn.events)
    print(f"seeds {options.seed} to {seed - 1}: {num_events} events, {num_failed} failed")
    return int(num_failed > 0)


if __name__ == "__main__":
    raise SystemExit(run_seeds(__doc__, Drawn))
