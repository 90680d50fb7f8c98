"""What does one slow peer cost the others, with rounds by steps and with rounds by time?

    python -m bench.timed_rounds [--seconds 8] [--round-s 0.5] [--json FILE]

Four peers of this host train a small model; a step takes 10 ms, by waiting, and 50 ms at the slow peer. Measures the
inner steps of the three others in a window of `--seconds`, as a share of those without a slow peer. Then one of them is
killed, another joins, and all finish without waiting in their steps. Exits with 1 if a sample is not on receipts
exactly once in each epoch, or if parameters differ at the end.
"""

import argparse
import json
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from bench.here import environment
from bench.swarm import Swarm, pause
from p2p.benchmark.results.machine import commit, machine
from p2p.forking.zygote import Zygote

NUM_PEERS: Final = 4
NUM_SAMPLES: Final = 16_000
GLOBAL_BATCH: Final = 32
STEP_S: Final = 0.01
SLOWER: Final = 5
LIMIT_S: Final = 100.0


def read(folder: Path) -> dict[str, list[tuple[float, int]]]:
    """When each step was done, and with how many members, by peer_id."""
    lines = {path.stem: path.read_text().split("\n")[:-1] for path in folder.glob("*.steps")}
    pairs = {name: [each.split() for each in found] for name, found in lines.items()}
    return {name: [(float(at), int(size)) for at, size in found] for name, found in pairs.items()}


def run(zygote: Zygote, kind: str, length: str, options: argparse.Namespace, *, is_slow: bool) -> dict[str, Any]:
    """Run one setting: inner steps per second of each of the three others, and whether the run was correct."""
    script = Path(__file__).with_name("timed_rounds_peer.py")
    with tempfile.TemporaryDirectory(prefix="shoal-") as name, ExitStack() as stack:
        folder = Path(name)
        words = name, kind, length, str(options.epochs), str(SLOWER if is_slow else 1)
        swarm = stack.enter_context(Swarm(script, NUM_PEERS, arguments=words, zygote=zygote))
        peers = swarm.start(NUM_PEERS)
        swarm.wait_for_steps(5, "round 5")
        began_s = swarm.now()
        pause(options.seconds)
        ended_s = swarm.now()
        rates = sorted(
            sum(began_s < at < ended_s for at, _ in each) / options.seconds for each in read(folder).values()
        )
        swarm.kill(peers[1])
        swarm.wait_until(lambda: any(each[-1][1] == NUM_PEERS - 1 for each in read(folder).values()), "one less")
        (joiner,) = swarm.start()
        swarm.wait_until(lambda: any(size == NUM_PEERS for _, size in read(folder)[joiner.peer_id]), "a seat")
        (folder / "quick").touch()
        remaining, swarm.peers = swarm.peers, []
        codes = [peer.process.wait(LIMIT_S) for peer in remaining]
        digests = {path.read_text() for path in folder.glob("*.end")}
        receipts = {each.step: each for trace in swarm.traces().values() for each in trace.receipts}
        parts = [each for receipt in receipts.values() for entry in receipt.contributions for each in entry.samples]
        used = Counter(position for first, number in parts for position in range(first, first + number))
    others = rates[1:] if is_slow else rates
    return {
        "kind": kind,
        "is_slow": is_slow,
        "steps_per_s": sum(others) / len(others),
        "slow_steps_per_s": rates[0] if is_slow else None,
        "each_sample_once": used == dict.fromkeys(range(options.epochs * NUM_SAMPLES), 1),
        "are_equal": len(digests) == 1 and not any(codes),
    }


def main() -> int:
    """Measure, print a line per setting, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--round-s", default="0.5")
    parser.add_argument("--inner-steps", default="40")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = []
    with Zygote(environment()) as zygote:
        for kind, length in (("round_s", options.round_s), ("inner_steps", options.inner_steps)):
            alone, beside = (run(zygote, kind, length, options, is_slow=is_slow) for is_slow in (False, True))
            found += [alone, beside]
            is_right = all(each["each_sample_once"] and each["are_equal"] for each in (alone, beside))
            slow, rates = beside["slow_steps_per_s"], (alone["steps_per_s"], beside["steps_per_s"])
            print(
                f"{kind:11} {rates[0]:5.1f} inner steps/s; beside a slow one ({slow:.1f}) {rates[1]:5.1f}: "
                f"{rates[1] / rates[0]:.2f}; {'each sample once, parameters equal' if is_right else 'WRONG'}",
                flush=True,
            )
    if options.json is not None:
        report = {"commit": commit(), "machine": machine(), "peers": NUM_PEERS, "runs": found}
        report |= {"seconds": options.seconds, "round_s": options.round_s, "inner_steps": options.inner_steps}
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0 if all(each["each_sample_once"] and each["are_equal"] for each in found) else 1


if __name__ == "__main__":
    sys.exit(main())
