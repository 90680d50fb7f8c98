"""What does the exchange cost a training step? A GPT of 10 million parameters, with and without.

    python -m bench.gpt_step [--peers 2] [--rounds 9] [--steps 3] [--batch 8] [--json FILE]
    python -m bench.gpt_step --device cuda --parameters 100M --autocast --batch 64

Each peer is a process with one thread for arithmetic, and trains the same model in three ways that take turns, block by
block, in one run: without any exchange, with shoal's DataParallel (including commit and digests), with torch's DDP over
Gloo. The time of a step is that of the slowest peer; the ratio to no exchange is taken round by round. Processor time,
of all threads of a peer, says less about overlap, but more on a machine with other load. The gradients of the first
step have to be the same with shoal and with DDP. On a GPU, which peers share if there are fewer, a step ends when the
device has finished all of it.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from bench.gpt_step_peer import ALONE, SIZES, WAYS
from bench.places import CPU, DEVICES, check
from p2p.benchmark.results.machine import commit, machine
from p2p.launch.config import LaunchConfig
from p2p.launch.launcher import Launcher
from p2p.launch.target import Target

ROOT: Final = Path(__file__).parents[1]
TOLERANCE: Final = 1e-4
TOLERANCE_IN_HALF: Final = 1e-2
OPTIONS: Final = ("peers", "rounds", "steps", "batch", "device", "parameters", "autocast")


def main() -> int:
    """Measure, print a table; returns the exit code."""
    options = parse()
    described = machine()
    with tempfile.TemporaryDirectory(prefix="shoal-") as name:
        folder = Path(name)
        config = LaunchConfig(
            target=Target.script(ROOT / "bench" / "gpt_step_peer.py", arguments_of(name, options)),
            num_peers=options.peers,
            swarm="gpt-step",
            verbosity=-1,
            home=folder,
        )
        environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        code = Launcher(config, environ=environ, stdout=sys.stdout.fileno(), stderr=sys.stderr.fileno()).run()
        if code:
            return code
        found = [json.loads((folder / f"{index}.json").read_text()) for index in range(options.peers)]
    rows = summarize([peer["times_s"] for peer in found])
    apart = max(peer["difference"] for peer in found)
    is_right = apart <= (TOLERANCE_IN_HALF if options.autocast else TOLERANCE) and all(
        peer["is_exchanged"] for peer in found
    )
    print(f"{options.peers} peers, {found[0]['num_parameters'] / 1e6:.1f} M parameters, {described['cores']} cores")
    print(f"{'':14}{'p50 ms':>8}{'ratio':>8}  {'of rounds: least, greatest':28}{'processor ms':>12}{'ratio':>8}")
    for row in rows:
        spread = f"{row['ratio_least']:.3f}, {row['ratio_greatest']:.3f}"
        cpu = f"{1e3 * row['p50_cpu_s']:12.1f}{row['cpu_ratio']:8.3f}"
        print(f"{row['way']:14}{1e3 * row['p50_s']:8.1f}{row['ratio']:8.3f}  {spread:28}{cpu}")
    print(f"gradients of the first step differ by {apart:.1e} of the largest: {'right' if is_right else 'WRONG'}")
    if options.json is not None:
        everything = {
            "version": 1,
            "commit": commit(),
            "machine": described,
            "config": {name: getattr(options, name) for name in OPTIONS},
            "num_parameters": found[0]["num_parameters"],
            "gradient_difference": apart,
            "ways": rows,
        }
        options.json.write_text(json.dumps(everything, indent=1) + "\n")
    return 0 if is_right else 1


def arguments_of(folder: str, options: argparse.Namespace) -> tuple[str, ...]:
    """Arguments of each peer."""
    counts = (str(getattr(options, name)) for name in ("rounds", "steps", "batch"))
    return folder, *counts, options.device, options.parameters, "autocast" if options.autocast else ""


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9, help="in each of which every way has a block of steps")
    parser.add_argument("--steps", type=int, default=3, help="of a block")
    parser.add_argument("--batch", type=int, default=8, help="samples of 64 bytes per peer and step")
    parser.add_argument("--device", choices=DEVICES, default=CPU, help="the times of the stand-in mean nothing")
    parser.add_argument("--parameters", choices=SIZES, default="10M", help="of the model")
    parser.add_argument("--autocast", action="store_true", help="forward passes in bfloat16")
    parser.add_argument("--json", type=Path, help="also write the results here")
    options = parser.parse_args()
    for name in ("peers", "rounds", "steps", "batch"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1, is {getattr(options, name)}")
    check(options.device)
    return options


def summarize(times: list[dict[str, list[list[tuple[float, float]]]]]) -> list[dict[str, Any]]:
    """For each way: p50 of all steps, and the ratios to no exchange, round by round.

    Args:
        times: per peer and way, for each step of all blocks, seconds and processor seconds.
    """
    slowest = {way: [merge(blocks) for blocks in zip(*(peer[way] for peer in times), strict=True)] for way in WAYS}
    alone = slowest[ALONE]
    rows = []
    for way, blocks in slowest.items():
        ratios = [p50(block, 0) / p50(other, 0) for block, other in zip(blocks, alone, strict=True)]
        cpu_ratios = [p50(block, 1) / p50(other, 1) for block, other in zip(blocks, alone, strict=True)]
        steps = [step for block in blocks for step in block]
        row = {"way": way, "p50_s": p50(steps, 0), "p50_cpu_s": p50(steps, 1), "ratio": median(ratios)}
        row |= {"ratio_least": min(ratios), "ratio_greatest": max(ratios), "cpu_ratio": median(cpu_ratios)}
        rows.append({**row, "times_s": blocks})
    return rows


def merge(blocks: Sequence[list[tuple[float, float]]]) -> list[tuple[float, float]]:
    """The slowest peer's times of each step, from blocks that peers ran at the same time."""
    return [(max(each[0] for each in step), max(each[1] for each in step)) for step in zip(*blocks, strict=True)]


def p50(steps: Sequence[tuple[float, float]], column: int) -> float:
    return median(step[column] for step in steps)


if __name__ == "__main__":
    sys.exit(main())
