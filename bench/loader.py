"""What does the elastic loader cost, and does each sample count once while peers die and join?

    python -m bench.loader [--samples 10000] [--epochs 3] [--workers 2] [--changes 5] [--rounds 5] [--json FILE]

First one peer and a plain DataLoader take turns, round by round, with the same workers, images and model: images per
second of all epochs but the first. Then three peers train while others are killed and join, one after the other. Exits
with 1 if the receipts do not have each sample once in each epoch, or if a change of members delayed a peer for longer
than its workers need for their batches in progress and one more.
"""

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final

from bench.here import ROOT, environment
from bench.loader_peer import SHOAL, TORCH
from bench.swarm import Swarm
from bench.trace import Trace, are_equal, median_step_s
from p2p.benchmark.results.machine import commit, machine
from p2p.data.ranges import each
from p2p.forking.zygote import Zygote
from p2p.step.receipts import Receipt

SCRIPT: Final = ROOT / "bench" / "loader_peer.py"
NUM_PEERS: Final = 3
PREFETCH_FACTOR: Final = 2
"""Default of torch's DataLoader: batches in progress for each worker."""

END_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Exactness:
    """How often samples were counted.

    Attributes:
        num_steps: steps that counted samples.
        missing: samples of an epoch that are on no receipt.
        repeated: samples of an epoch that were counted more than once.
    """

    num_steps: int
    missing: int
    repeated: int


def count_samples(receipts: Mapping[int, Receipt], num_samples: int, epochs: int) -> Exactness:
    """Count samples over `receipts`, which are by step."""
    used = Counter(
        position
        for receipt in receipts.values()
        for contribution in receipt.contributions
        for position in each(contribution.samples)
    )
    missing = num_samples * epochs - sum(0 <= position < num_samples * epochs for position in used)
    return Exactness(
        sum(receipt.num_samples > 0 for receipt in receipts.values()),
        missing,
        sum(number > 1 for number in used.values()) + sum(position >= num_samples * epochs for position in used),
    )


def held_up_s(trace: Trace) -> list[float]:
    """Delays of one peer: for each change of members, the time from the first commit in the new view to the next."""
    views = {receipt.step: receipt.view_number for receipt in trace.receipts if receipt.num_samples}
    times = trace.commits_s
    steps = sorted(views.keys() & times.keys())
    is_new = [views[later] != views[earlier] for earlier, later in pairwise(steps)]
    return [
        times[after] - times[step]
        for (step, after), is_first in zip(pairwise(steps[1:]), is_new, strict=False)
        if is_first
    ]


def throughput(options: argparse.Namespace, zygote: Zygote) -> list[dict[str, float]]:
    """Images per second, for each round and way."""
    rounds = []
    for _ in range(options.rounds):
        rounds.append({way: rate(options, way, zygote) for way in (TORCH, SHOAL)})
    return rounds


def rate(options: argparse.Namespace, way: str, zygote: Zygote) -> float:
    with Swarm(SCRIPT, 1, arguments=arguments(options, way), zygote=zygote) as swarm:
        (peer,) = swarm.start()
        times_s = list(map(float, peer.stdout.readline().split()))
    return float(options.samples * len(times_s) / sum(times_s))


def changes(options: argparse.Namespace, zygote: Zygote) -> dict[str, Any]:
    """Kill and start peers while they train."""
    rng = random.Random(options.seed)
    every = options.samples * options.epochs // options.batch // (options.changes + 2)
    with Swarm(SCRIPT, NUM_PEERS, arguments=arguments(options, SHOAL), zygote=zygote) as swarm:
        swarm.start(NUM_PEERS)
        for number in range(options.changes):
            swarm.wait_for_steps(every // 2, f"the peers train before kill {number}")
            swarm.kill(rng.choice(swarm.peers))
            swarm.wait_for_steps(every // 2, f"the peers go on after kill {number}")
            swarm.start()
        codes = [peer.process.wait(END_S) for peer in swarm.peers]
        traces = swarm.traces()
    receipts = {receipt.step: receipt for trace in traces.values() for receipt in trace.receipts}
    found = count_samples(receipts, options.samples, options.epochs)
    joined = {part.peer_id for receipt in receipts.values() for part in receipt.contributions if part.num_samples}
    return {
        "codes": codes,
        "kills": options.changes,
        "peers_that_counted": len(joined),
        "steps": found.num_steps,
        "missing": found.missing,
        "repeated": found.repeated,
        "receipts_equal": are_equal(traces.values(), range(len(receipts))),
        "step_s": median_step_s(traces.values()),
        "held_up_s": sorted(time_s for trace in traces.values() for time_s in held_up_s(trace)),
    }


def arguments(options: argparse.Namespace, way: str) -> tuple[str, ...]:
    names = ("samples", "epochs", "batch", "workers", "size")
    return (way, *(str(getattr(options, name)) for name in names))


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print the results, and return the exit code."""
    options = parse(words)
    described = machine()
    with Zygote(environment()) as zygote:
        rounds = throughput(options, zygote)
        changed = changes(options, zygote)
    ratio = median(each_round[SHOAL] / each_round[TORCH] for each_round in rounds)
    per_second = {way: median(each_round[way] for each_round in rounds) for way in (TORCH, SHOAL)}
    batch_s = options.batch / per_second[TORCH] * max(options.workers, 1)  # by one worker on a core of its own
    most_s = (PREFETCH_FACTOR * options.workers + 1) * batch_s * NUM_PEERS + changed["step_s"]  # peers share the cores
    is_exact = not changed["missing"] and not changed["repeated"] and changed["receipts_equal"]
    is_good = is_exact and not any(changed["codes"])
    print(f"{options.workers} workers: torch {per_second[TORCH]:.0f} images/s, shoal {per_second[SHOAL]:.0f}", end="")
    print(f", ratio {ratio:.3f} (rounds: {', '.join(f'{r[SHOAL] / r[TORCH]:.3f}' for r in rounds)})")
    print(
        f"{changed['steps']} steps, {changed['kills']} kills and joins, {changed['peers_that_counted']} peers: ", end=""
    )
    print(f"{changed['missing']} samples missing, {changed['repeated']} repeated")
    held = changed["held_up_s"]
    print(f"first step after a change: p50 {1e3 * median(held):.0f} ms, most {1e3 * max(held):.0f} ms", end="")
    print(f", else {1e3 * changed['step_s']:.0f} ms; what workers have in hand, and one batch: {1e3 * most_s:.0f} ms")
    if options.json is not None:
        config = {**vars(options), "json": None}
        everything: dict[str, Any] = {"version": 1, "commit": commit(), "machine": described, "config": config}
        everything |= {"rounds": rounds, "ratio": ratio, "changes": changed, "in_hand_s": most_s}
        options.json.write_text(json.dumps(everything, indent=1) + "\n")
    return 0 if is_good and max(held) <= most_s else 1


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=48, help="samples per step, over all peers")
    parser.add_argument("--workers", type=int, default=2, help="of each peer")
    parser.add_argument("--size", type=int, default=128, help="of an image, in pixels")
    parser.add_argument("--changes", type=int, default=5, help="kills, and as many joins")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="also write the results here")
    options = parser.parse_args(words)
    if options.epochs < 2:
        parser.error(f"--epochs must be at least 2, since the first one is not timed; is {options.epochs}")
    for name in ("samples", "batch", "rounds", "changes", "size"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1, is {getattr(options, name)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
