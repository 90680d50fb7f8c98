"""What do exchanges cost over slow links? Tokens per second of four distant hosts, by strategy.

    python -m bench.wan_rounds [--net rate=50mbit,delay=40ms] [--steps 240] [--rounds 2] [--codec int4] [--json FILE]

The hosts are those of a network lab, with a key. In each round of the benchmark they train the GPT of examples/gpt.py
with 8 windows each: without any exchange, in rounds of 30 and of 10 inner steps, and as `DataParallel`. Exits with 1 if
replicas differ at the end of a run.
"""

import argparse
import hashlib
import json
import os
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch

import p2p
from bench.lab import Told
from examples.gpt import CONTEXT, GPT, load_text
from p2p.benchmark.results.machine import commit, machine
from p2p.netlab.config import LabConfig
from p2p.netlab.lab import NetworkLab

NUM_HOSTS: Final = 4
NUM_WINDOWS: Final = 8
WARM_UP: Final = 30
"""Steps of warm-up: whole rounds of every strategy."""

STRATEGIES: Final = ("alone", "rounds-30", "rounds-10", "parallel")
SHORTER: Final = {"parallel": 8}
"""Divisors of the number of steps."""


def train(strategy: str, codec: str, steps: int) -> dict[str, Any]:
    """Train as one peer: its step times, and a digest of its parameters at the end."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    windows = load_text(1 << 20)
    kind, _, inner_steps = strategy.partition("-")
    with p2p.join() as peer:
        wrapped: torch.nn.Module = model
        if kind == "rounds":
            wrapped = p2p.DiLoCo(peer, model, optimizer, codec=codec, inner_steps=int(inner_steps))
        elif kind == "parallel":
            wrapped = p2p.DataParallel(peer, model, optimizer)
        peer.wait_view()
        generator = torch.Generator().manual_seed(peer.rank)

        def step() -> None:
            batch = windows[torch.randint(len(windows), (NUM_WINDOWS,), generator=generator)]
            loss = wrapped(batch[:, :-1], batch[:, 1:])
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

        for _ in range(WARM_UP):
            step()
        peer.barrier()
        began_s = time.perf_counter()
        for _ in range(steps):
            step()
        elapsed_s = time.perf_counter() - began_s
        flat = torch.cat([each.detach().flatten() for each in model.parameters()]).numpy()
        peer.barrier()
        return {"elapsed_s": elapsed_s, "digest": hashlib.sha1(flat.tobytes()).hexdigest(), "steps": steps}


def run(net: str, strategy: str, codec: str, steps: int) -> dict[str, Any]:
    """Run one strategy on all hosts."""
    steps //= SHORTER.get(strategy, 1)
    with NetworkLab(LabConfig.uniform(NUM_HOSTS, net)) as lab:
        os.environ |= {"SHOAL_NETWORK": "wan", "SHOAL_QUIET": "1", "SHOAL_SWARM": "rounds"}
        words = sys.executable, "-m", "bench.wan_rounds", "--peer", strategy, "--codec", codec, "--steps", str(steps)
        hosts = [Told(lab, host, "env", f"SHOAL_MIN_PEERS={NUM_HOSTS}", *words) for host in range(NUM_HOSTS)]
        told = [host.next() for host in hosts]
        for host in hosts:
            host.rest()
    tokens = NUM_HOSTS * steps * NUM_WINDOWS * CONTEXT
    are_equal = strategy == "alone" or len({each["digest"] for each in told}) == 1
    return {
        "strategy": strategy,
        "tokens_per_s": tokens / max(each["elapsed_s"] for each in told),
        "peers": told,
        "are_equal": are_equal,
    }


def main() -> int:
    """Measure, print a line per strategy, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", default="rate=50mbit,delay=40ms")
    parser.add_argument("--steps", type=int, default=240, help="of each strategy; a multiple of 30")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--codec", default="int4")
    parser.add_argument("--strategies", default=",".join(STRATEGIES))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peer:
        print(json.dumps(train(options.peer, options.codec, options.steps)), flush=True)
        return 0
    found = []
    strategies = options.strategies.split(",")
    for _ in range(options.rounds):
        for strategy in strategies:
            found.append(run(options.net, strategy, options.codec, options.steps))
            print(f"{strategy:10} {found[-1]['tokens_per_s']:8,.0f} tokens/s", flush=True)
    rates = {each: median(row["tokens_per_s"] for row in found if row["strategy"] == each) for each in strategies}
    for strategy in strategies:
        ratios = [f"{rates[strategy] / rates[base]:.2f} of {base}" for base in ("alone", "parallel") if base in rates]
        print(f"{strategy}: {', '.join(ratios)}", flush=True)
    if options.json is not None:
        report = {
            "version": 2,
            "commit": commit(),
            "machine": machine(),
            "config": {"net": options.net, "codec": options.codec, "steps": options.steps},
            "results": found,
        }
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return int(not all(each["are_equal"] for each in found))


if __name__ == "__main__":
    sys.exit(main())
