"""Storms drawn by seeds: cut and flapping links, dying peers and hosts, with real swarms in a network lab.

`python -m tests.storms --seconds 600 --seed 0 --seeds 3` runs one storm per seed; tests/live/storms.py has the
invariants. Exits with 1, the seed and the last events if one does not hold.
"""

import argparse
from collections import Counter, defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory

from p2p.netlab.config import LabConfig
from p2p.netlab.lab import NetworkLab
from tests.live.storms import BACK_S, NUM_HOSTS, Event, Storm


def show(seed: int, events: list[Event], num_steps: int) -> None:
    stopped: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        cost = f"nobody committed for {event.stopped_s:.2f} s, all were back after {event.back_s:.2f} s"
        print(f"  {event.what}: {cost}, {event.steps_per_s:.1f} steps/s meanwhile")
        stopped[event.kind].append(event)
    print(f"seed {seed}: {num_steps} steps, {len(events)} events {dict(Counter(event.kind for event in events))}")
    for kind, found in stopped.items():
        worst = max(event.stopped_s for event in found), max(event.back_s for event in found)
        print(f"  {kind}: nobody committed for {worst[0]:.2f} s at most, all were back after {worst[1]:.2f} s at most")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0, help="of one run; no event begins later")
    parser.add_argument("--seed", type=int, default=0, help="the first")
    parser.add_argument("--seeds", type=int, default=1, help="number of runs")
    parser.add_argument("--net", default="delay=2ms,jitter=1ms", help="what the links are like, as of shoal lab")
    parser.add_argument("--policy", choices=("live", "majority"), default="live", help="as of shoal run")
    parser.add_argument("--kinds", nargs="*", default=(), help="these events, one after the other, instead")
    options = parser.parse_args()
    for seed in range(options.seed, options.seed + options.seeds):
        with (
            TemporaryDirectory(prefix="shoal-") as folder,
            NetworkLab(LabConfig.uniform(NUM_HOSTS, options.net)) as lab,
        ):
            storm = Storm(lab, Path(folder), seed, options.policy)
            try:
                receipts = storm.run(for_s=options.seconds, kinds=options.kinds)
            except AssertionError as error:
                print(error)
                return 1
            show(seed, storm.events, len(receipts))
            if late := storm.out_for_long():
                print(f"seed {seed}: {len(late)} times not all were back {BACK_S:g} s after the links were whole")
                return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
