"""What does one slow peer cost the others, in rounds of so many steps and in rounds of so many seconds?

    python -m bench.timed_rounds [--seconds 10] [--round-s 0.5] [--json FILE]

Four peers of this host train a small model; a step takes 10 ms, since it waits, and one of one peer 50 ms. Inner
steps of the three others in a window of `--seconds`, as a share of those without a slow one. Then one of them is
killed, another joins, and all go on to the end without waiting. Ends with 1 if a sample is not on receipts exactly once
in each epoch, or if parameters are not the same at the end.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any, Final

import torch

import p2p
from bench.zygote import ONE_THREAD, ROOT
from p2p.benchmark.machine import commit, machine
from p2p.step.receipts import read_receipts

NUM_PEERS: Final = 4
NUM_SAMPLES: Final = 16_000
GLOBAL_BATCH: Final = 32
STEP_S: Final = 0.01
SLOWER: Final = 5
START_S: Final = 120.0
never = Event()


def train(folder: Path, kind: str, length: float, epochs: int, step_s: float) -> None:
    """One peer: writes when its steps were made, and what its parameters are at the end."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    inputs = torch.randn(NUM_SAMPLES, 16)
    model = torch.nn.Linear(16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    when: dict[str, Any] = {"round_s": length} if kind == "round_s" else {"inner_steps": int(length)}
    with p2p.join() as peer, (folder / f"{peer.peer_id}.steps").open("w", buffering=1) as steps:
        wrapped = p2p.DiLoCo(peer, model, optimizer, state_digest="all")
        dataset = torch.utils.data.TensorDataset(inputs)
        loader = peer.loader(dataset, global_batch=GLOBAL_BATCH, epochs=epochs, **when)
        for _ in loader.epochs():
            for (x,) in loader:
                loss = (wrapped(x) - x[:, :4]).pow(2).mean()
                optimizer.zero_grad()
                loss.backward()
                if not (folder / "quick").exists():
                    never.wait(step_s)
                optimizer.step()
                steps.write(f"{time.monotonic()} {peer.done} {peer.world_size}\n")
        digest = hashlib.sha1(model.weight.detach().numpy().tobytes()).hexdigest()
        (folder / f"{peer.peer_id}.end").write_text(digest)


class Peers:
    """Processes that train in one swarm."""

    def __init__(self, folder: Path, kind: str, length: float, epochs: int) -> None:
        self._folder = folder
        self._words = [
            sys.executable,
            "-m",
            "bench.timed_rounds",
            "--peer",
            str(folder),
            kind,
            str(length),
            str(epochs),
        ]
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, step_s: float, min_peers: int) -> None:
        named = {"SHOAL_HOME": str(self._folder), "SHOAL_RECEIPTS": str(self._folder), "SHOAL_QUIET": "1"}
        environ = {**os.environ, **ONE_THREAD, **named, "SHOAL_MIN_PEERS": str(min_peers), "PYTHONPATH": str(ROOT)}
        self.started.append(subprocess.Popen([*self._words, str(step_s)], env=environ))

    def steps(self) -> list[list[tuple[float, int, int]]]:
        """Of each peer that has begun: when, after which round, and among how many members each step was made."""
        files = [path.read_text().splitlines() for path in sorted(self._folder.glob("*.steps"))]
        return [[(float(at), int(done), int(size)) for at, done, size in map(str.split, each)] for each in files]

    def wait_until(self, is_so: Callable[[list[list[tuple[float, int, int]]]], bool], what: str) -> None:
        deadline = time.monotonic() + START_S
        while not is_so(self.steps()):
            never.wait(0.1)
            if time.monotonic() > deadline:
                raise SystemExit(f"not in {START_S:g} s: {what}")

    def stop(self) -> None:
        for each in self.started:
            each.kill()
            each.wait()


def run(kind: str, length: float, epochs: int, seconds: float, *, is_slow: bool) -> dict[str, Any]:
    """One setting: inner steps per second of each of the three others, and whether all went right."""
    with tempfile.TemporaryDirectory(prefix="shoal-", dir="/tmp") as name:
        folder = Path(name)
        peers = Peers(folder, kind, length, epochs)
        try:
            for number in range(NUM_PEERS):
                peers.start(STEP_S * (SLOWER if is_slow and not number else 1), NUM_PEERS)
            peers.wait_until(lambda steps: min((each[-1][1] for each in steps if each), default=0) >= 5, "round 5")
            began_s = time.monotonic()
            never.wait(seconds)
            ended_s = time.monotonic()
            rates = sorted(sum(began_s < at < ended_s for at, *_ in each) / seconds for each in peers.steps())
            peers.started[1].kill()
            peers.wait_until(lambda steps: any(each[-1][2] == NUM_PEERS - 1 for each in steps), "a view without it")
            peers.start(STEP_S, 1)
            peers.wait_until(lambda steps: sum(bool(each) for each in steps) > NUM_PEERS, "steps of the fifth peer")
            seen_s = time.monotonic()
            peers.wait_until(
                lambda steps: any(at > seen_s and size == NUM_PEERS for each in steps for at, _, size in each), "a seat"
            )
            (folder / "quick").touch()
            codes = [each.wait() for number, each in enumerate(peers.started) if number != 1]
        finally:
            peers.stop()
        digests = {path.read_text() for path in folder.glob("*.end")}
        used = Counter(
            position
            for receipt in {
                each.step: each for path in folder.glob("*.receipts.jsonl") for each in read_receipts(path)
            }.values()
            for part in receipt.contributions
            for first, number in part.samples
            for position in range(first, first + number)
        )
        is_once = used == dict.fromkeys(range(epochs * NUM_SAMPLES), 1)
    others = rates[1:] if is_slow else rates
    return {
        "kind": kind,
        "is_slow": is_slow,
        "steps_per_s": sum(others) / len(others),
        "slow_steps_per_s": rates[0] if is_slow else None,
        "each_sample_once": is_once,
        "are_equal": len(digests) == 1 and not any(codes),
    }


def main() -> int:
    """Measure, print a line per setting, and return the exit code."""
    if "--peer" in sys.argv:
        folder, kind, length, epochs, step_s = sys.argv[2:]
        train(Path(folder), kind, float(length), int(epochs), float(step_s))
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--round-s", type=float, default=0.5)
    parser.add_argument("--inner-steps", type=int, default=40)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = []
    for kind, length in (("round_s", options.round_s), ("inner_steps", options.inner_steps)):
        pair = [run(kind, length, options.epochs, options.seconds, is_slow=is_slow) for is_slow in (False, True)]
        found += pair
        ratio = pair[1]["steps_per_s"] / pair[0]["steps_per_s"]
        is_right = all(each["each_sample_once"] and each["are_equal"] for each in pair)
        print(
            f"{kind:11} {pair[0]['steps_per_s']:5.1f} inner steps/s, {pair[1]['steps_per_s']:5.1f} of the others "
            f"beside a slow one ({pair[1]['slow_steps_per_s']:.1f}): {ratio:.2f}; "
            f"{'each sample once, parameters equal' if is_right else 'WRONG'}",
            flush=True,
        )
    if options.json is not None:
        report = {"commit": commit(), "machine": machine(), "options": vars(options) | {"json": None}, "runs": found}
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0 if all(each["each_sample_once"] and each["are_equal"] for each in found) else 1


if __name__ == "__main__":
    sys.exit(main())
