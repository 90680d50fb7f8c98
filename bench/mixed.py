"""How far do peers with different rounding drift apart? `ATEN_CPU_CAPABILITY=default` beside this machine's own.

    python -m bench.mixed --json out.json
    python -m bench.mixed --peers 2+1 --steps 100

AdamW on a model of a million parameters. After every step each peer records a digest of all parameters, and 1 in 64 of
them. Parameters must be equal within each kind; between kinds the difference is counted in roundings: units of float32
precision at the step's greatest magnitude. Exits with 1 if receipts or parameters of one kind differ, or if kinds are
more than 200 roundings apart.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import p2p
from bench.here import ROOT
from p2p.benchmark.results.machine import commit, machine

MOST_ROUNDINGS: Final = 200
WIDTH: Final = 576
SHOWN: Final = 64
"""One in this many parameters is recorded in each step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """Drift of one run. `roundings`: for each step, the greatest distance of two peers."""

    peers: str
    classes: list[str]
    equal_receipts: bool
    equal_within_classes: bool
    steps_in_which_classes_differ: int
    roundings: list[float]

    @property
    def is_right(self) -> bool:
        return self.equal_receipts and self.equal_within_classes and max(self.roundings) <= MOST_ROUNDINGS


def train(folder: Path, num_steps: int) -> None:
    """Train as one peer."""
    torch.set_num_threads(1)
    layers = [torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    inputs = torch.from_numpy(np.random.default_rng(0).standard_normal((1024, WIDTH), np.float32))
    digests, shown = [], []
    with p2p.join() as peer:
        replica = p2p.DataParallel(peer, model, optimizer, state_digest="all")
        loader = peer.loader(torch.utils.data.TensorDataset(inputs, inputs.roll(1, 1)), global_batch=16, epochs=1000)
        for _ in loader.epochs():
            for x, y in loader:
                loss = (replica(x) - y).pow(2).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                flat = torch.cat([each.detach().flatten() for each in model.parameters()]).numpy()
                digests.append(hashlib.sha1(flat.tobytes()).hexdigest())
                shown.append(flat[::SHOWN].copy())
                if len(digests) == num_steps:
                    break
            if len(digests) == num_steps:
                break
        np.save(folder / f"{peer.peer_id}.npy", np.stack(shown))
        capability = torch.backends.cpu.get_cpu_capability()
        (folder / f"{peer.peer_id}.json").write_text(json.dumps({"class": capability, "digests": digests}))


def measure(peers: str, num_steps: int) -> Drift:
    """Run peers of both kinds; `peers`: the number of this machine's kind, a plus, the number of the other."""
    num_own, num_others = map(int, peers.split("+"))
    with tempfile.TemporaryDirectory(prefix="shoal-", dir="/tmp") as name:
        folder = Path(name)
        environ = {
            **os.environ,
            "SHOAL_HOME": str(folder),
            "SHOAL_SWARM": "mixed",
            "SHOAL_MIN_PEERS": str(num_own + num_others),
            "SHOAL_RECEIPTS": str(folder),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
        }
        command = [sys.executable, "-m", "bench.mixed", "--peer", name, "--steps", str(num_steps)]
        others = {**environ, "ATEN_CPU_CAPABILITY": "default"}
        started = [subprocess.Popen(command, env=each) for each in [environ] * num_own + [others] * num_others]
        codes = [process.wait() for process in started]
        if any(codes):
            raise SystemExit(f"peers ended with {codes}")
        return _compare(peers, folder)


def _compare(peers: str, folder: Path) -> Drift:
    receipts = {path.read_bytes() for path in folder.glob("*.receipts.jsonl")}
    found = [(path, json.loads(path.read_text())) for path in sorted(folder.glob("*.json"))]
    kinds: dict[str, list[list[str]]] = {}
    for _, each in found:
        kinds.setdefault(each["class"], []).append(each["digests"])
    values = np.stack([np.load(path.with_suffix(".npy")) for path, _ in found]).astype(np.float64)
    apart = np.ptp(values, axis=0).max(axis=1) / np.spacing(np.abs(values).max(axis=(0, 2)).astype(np.float32))
    return Drift(
        peers=peers,
        classes=sorted(kinds),
        equal_receipts=len(receipts) == 1,
        equal_within_classes=all(each == own[0] for own in kinds.values() for each in own),
        steps_in_which_classes_differ=sum(
            len({*step}) > 1 for step in zip(*(own[0] for own in kinds.values()), strict=True)
        ),
        roundings=[round(float(each), 2) for each in apart],
    )


def main() -> int:
    arguments = _arguments()
    if arguments.peer:
        train(Path(arguments.peer), arguments.steps)
        return 0
    drifts = [measure(peers, arguments.steps) for peers in arguments.peers.split(",")]
    table = Table(
        "peers", "kinds", "steps", "receipts", "within kinds", "kinds differ in", "roundings apart: p50", "most"
    )
    for each in drifts:
        yes = ["equal" if is_so else "DIFFER" for is_so in (each.equal_receipts, each.equal_within_classes)]
        steps, roundings = len(each.roundings), each.roundings
        middle = f"{np.median(roundings):.1f}", f"{max(roundings):.1f}"
        table.add_row(
            each.peers, " ".join(each.classes), str(steps), *yes, str(each.steps_in_which_classes_differ), *middle
        )
    Console().print(table)
    if arguments.json:
        results: dict[str, Any] = {"version": 2, "commit": commit(), "machine": machine()}
        Path(arguments.json).write_text(json.dumps({**results, "drifts": list(map(asdict, drifts))}) + "\n")
    return 0 if all(each.is_right for each in drifts) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.mixed", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--peers", default="1+1,2+1,2+2", help="of this machine's kind + others; default: %(default)s")
    parser.add_argument("--steps", type=int, default=500, help="default: %(default)s")
    parser.add_argument("--json", help="file for the results")
    parser.add_argument("--peer", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
