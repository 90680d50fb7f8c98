"""Do four peers train like one process? Replays a run from its receipts, and compares the losses.

    python -m bench.replay [--steps 50] [--kill N] [--json FILE]

Four peers train the small GPT of examples/gpt.py. With --kill 1 one of them dies by SIGKILL between two buckets of a
step, with --kill 2 another one later, between two steps. Then one process trains on the samples of each receipt as one
batch. In each step the peers' mean loss over their own samples, weighted by their number, has to equal the loss of that
batch, within 1e-3 of it. All replicas have to be equal bit by bit, in each step and after the last.
"""

import argparse
import json
import signal
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from bench.here import ROOT, environment
from bench.replay_peer import (
    BETWEEN_BUCKETS,
    BETWEEN_STEPS,
    GLOBAL_BATCH,
    SEED,
    Victim,
    make_training,
    train_step,
)
from bench.swarm import Swarm
from p2p.benchmark.results.machine import commit, machine
from p2p.data.ranges import union
from p2p.data.sampler import Order, Sampler
from p2p.forking.zygote import Zygote
from p2p.step.receipts import Receipt, read_receipts

SCRIPT: Final = ROOT / "bench" / "replay_peer.py"
LIMIT_S: Final = 600.0
NUM_PEERS: Final = 4
TOLERANCE: Final = 1e-3
SECOND_VICTIM: Final = 3

Losses = Mapping[tuple[int, str], tuple[float, int]]
"""Per step and peer_id: mean loss over its own samples, and their number."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One step, trained by the peers on its receipt and replayed by one process."""

    step: int
    num_peers: int
    peers_loss: float
    replayed_loss: float

    @property
    def difference(self) -> float:
        """Relative difference of the losses."""
        return abs(self.peers_loss - self.replayed_loss) / abs(self.replayed_loss)


def main() -> int:
    """Train, replay, compare; returns the exit code."""
    options = parse()
    kill_step = options.kill_step or options.steps * 2 // 5
    victims = [
        Victim(options.victim, kill_step, BETWEEN_BUCKETS),
        Victim(SECOND_VICTIM, max(kill_step + 1, options.steps * 7 // 10), BETWEEN_STEPS),
    ]
    arguments = str(options.steps), *(f"{v.index}:{v.step}:{v.place}" for v in victims[: options.kill])
    with Zygote(environment()) as zygote, Swarm(SCRIPT, NUM_PEERS, arguments=arguments, zygote=zygote) as swarm:
        train(swarm, options.kill)
        receipts = agreed_receipts(swarm.receipts)
        losses = read_losses(swarm.receipts)
        ends = {path.read_text() for path in swarm.receipts.glob("*.end")}
    counted = indices_of(receipts, options.steps)
    replayed = replay(counted, options.steps)
    compared = [compare(receipt, losses, loss) for receipt, loss in zip(receipts, replayed, strict=True)]
    problems = check(compared, counted, options.steps, num_left=NUM_PEERS - options.kill)
    if len(ends) != 1 or not all(receipt.state_digest for receipt in receipts):
        problems.append(f"the peers end with {len(ends)} different models, or did not compare them")
    report(compared, problems, num_killed=options.kill, json_path=options.json)
    return 1 if problems else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50, help="about how many steps to train")
    parser.add_argument("--kill", type=int, default=0, choices=range(3), help="so many peers kill themselves")
    parser.add_argument("--kill-step", type=int, help="the first of them in this step; default: after two fifths")
    parser.add_argument("--victim", type=int, default=1, choices=range(SECOND_VICTIM), help="which one is the first")
    parser.add_argument("--json", type=Path, help="also write the results here")
    options = parser.parse_args()
    if options.steps < 5:
        parser.error(f"--steps must be at least 5, got {options.steps}")
    if options.kill_step is not None and not 1 <= options.kill_step <= options.steps:
        parser.error(f"--kill-step must be one of the {options.steps} steps, got {options.kill_step}")
    return options


def train(swarm: Swarm, num_killed: int) -> None:
    """Run the peers until they end.

    Raises:
        RuntimeError: a peer, apart from the victims, fails, or a victim does not die.
    """
    peers = swarm.start(NUM_PEERS)
    codes = sorted(peer.process.wait(LIMIT_S) for peer in peers)
    if codes != [-signal.SIGKILL] * num_killed + [0] * (NUM_PEERS - num_killed):
        logs = "\n".join(peer.log.read_text(errors="replace") for peer in peers)
        raise RuntimeError(f"{num_killed} peers should be killed, and the others end with 0: {codes}\n{logs}")


def agreed_receipts(folder: Path) -> list[Receipt]:
    """Receipts of the steps that count samples, equal at all peers.

    Raises:
        RuntimeError: two receipts of a step differ, or one is missing.
    """
    agreed: dict[int, Receipt] = {}
    for path in sorted(folder.glob("*.receipts.jsonl")):
        for receipt in read_receipts(path):
            if agreed.setdefault(receipt.step, receipt) != receipt:
                raise RuntimeError(f"peer {path.name.partition('.')[0]} has another receipt of step {receipt.step}")
    if sorted(agreed) != list(range(len(agreed))):
        raise RuntimeError(f"steps are missing: the receipts are of {sorted(agreed)}")
    return [agreed[step] for step in sorted(agreed) if agreed[step].num_samples]


def read_losses(folder: Path) -> Losses:
    rows = [
        json.loads(line)
        for path in folder.glob("*.losses.jsonl")
        for line in path.read_text(encoding="utf-8").splitlines(keepends=True)
        if line.endswith("\n")
    ]
    return {(row["step"], row["peer_id"]): (row["loss"], row["num_samples"]) for row in rows}


def indices_of(receipts: Sequence[Receipt], num_steps: int) -> list[list[int]]:
    """The samples of each receipt, as indices into the dataset."""
    num_samples = num_steps * GLOBAL_BATCH
    order = Order(Sampler(num_samples, GLOBAL_BATCH, seed=SEED))
    return [order.indices(union(part for c in receipt.contributions for part in c.samples)) for receipt in receipts]


def replay(counted: Sequence[Sequence[int]], num_steps: int) -> list[float]:
    """Train in this process, one step on each batch; returns their losses."""
    windows, model, optimizer = make_training(num_steps)
    return [train_step(model, optimizer, windows[np.array(indices)]) for indices in counted]


def compare(receipt: Receipt, losses: Losses, replayed_loss: float) -> Compared:
    """Compare the loss of the peers on `receipt`, weighted by their samples; peers that do not count are left out."""
    total = 0.0
    for entry in receipt.contributions:
        if entry.num_samples:
            loss, num_samples = losses[receipt.step, entry.peer_id]
            assert num_samples == entry.num_samples
            total += loss * num_samples
    return Compared(receipt.step, len(receipt.contributions), total / receipt.num_samples, replayed_loss)


def check(compared: Sequence[Compared], counted: Sequence[Sequence[int]], num_steps: int, num_left: int) -> list[str]:
    """Problems, in sentences."""
    problems = [
        f"step {row.step}: the peers had a loss of {row.peers_loss:.6f}, the replay {row.replayed_loss:.6f}"
        for row in compared
        if not row.difference <= TOLERANCE
    ]
    uses = Counter(index for indices in counted for index in indices)
    if set(uses) != set(range(num_steps * GLOBAL_BATCH)) or max(uses.values()) > 1:
        problems.append(f"of {num_steps * GLOBAL_BATCH} samples {len(uses)} count, one of them {max(uses.values())}x")
    if compared[-1].num_peers != num_left:
        problems.append(f"{compared[-1].num_peers} peers are on the last receipt, not {num_left}")
    return problems


def report(compared: Sequence[Compared], problems: Sequence[str], *, num_killed: int, json_path: Path | None) -> None:
    largest = max(compared, key=lambda row: row.difference)
    how = ("none killed", "one killed between two buckets", "one killed between two buckets, one between two steps")
    print(
        f"{NUM_PEERS} peers, {how[num_killed]}, {len(compared)} steps, loss {compared[0].peers_loss:.4f} to "
        f"{compared[-1].peers_loss:.4f}: largest relative difference {largest.difference:.1e}, at step {largest.step}"
    )
    for problem in problems:
        print(problem)
    if json_path is not None:
        rows = [[row.step, row.num_peers, row.peers_loss, row.replayed_loss] for row in compared]
        everything = {
            "version": 1,
            "commit": commit(),
            "machine": machine(),
            "config": {"peers": NUM_PEERS, "kill": num_killed},
            "columns": ["step", "peers", "peers_loss", "replayed_loss"],
            "steps": rows,
            "largest_relative_difference": largest.difference,
            "problems": list(problems),
        }
        json_path.write_text(json.dumps(everything, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
