"""How fast does a joiner get its state from several donors, and what does that cost the others?

    python -m bench.donors [--mb 500] [--rate 200] [--down 600] [--donors 3,1] [--rounds 1] [--json FILE]

Hosts of a network lab, with a key: three members, whose lines carry `rate` Mbit/s each way, train a model, most of
which is frozen; a fourth peer joins, whose line carries `down` Mbit/s. Steps use less than a tenth of a line. Each
round measures once with as many donors as there are members, and once with one donor. Replicas are compared at the end.
Prints the share of its line that the joiner's state used, from the first segment to the last, and the median step of
the members during and before that. Exits with 1 if a figure misses its target, and names it.
"""

import argparse
import hashlib
import json
import os
import sys
import tempfile
import threading
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch
from torch import nn

from bench.lab import Told, check
from p2p import DataParallel
from p2p.benchmark.results.machine import commit, machine
from p2p.config import LoopConfig, PeerConfig
from p2p.netlab.config import LabConfig
from p2p.netlab.lab import NetworkLab
from p2p.peer import Peer
from p2p.telemetry.records import Kind, Record
from p2p.telemetry.trace import read_trace, trace_path

NUM_MEMBERS: Final = 3
BEFORE: Final = 20
"""Steps of the members before the joiner is started."""
AFTER: Final = 5
"""Steps in which the joiner is counted."""
WAIT_S: Final = 240.0
SHARE: Final = 0.8
"""Least share of its line that a joiner must use."""
LONGER: Final = 1.2
"""How many times as long steps of the members may take meanwhile."""
EXCHANGED: Final = 0.1
"""Most share of a line that steps may use."""


class Model(nn.Module):
    """A large frozen table, and a vector that is trained; its forward pass takes a given time."""

    def __init__(self, num_bytes: int, trained_bytes: int, compute_s: float) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.rand((num_bytes - trained_bytes) // 4), requires_grad=False)
        self.weight = nn.Parameter(torch.rand(trained_bytes // 4))
        self._compute_s = compute_s

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Waits instead of computing: the processors are needed for what is measured."""
        threading.Event().wait(self._compute_s)
        return (x.sum(1, keepdim=True) * self.weight).square().mean()


def train(options: argparse.Namespace) -> None:
    """Run one peer until the file exists. The joiner begins with other parameters."""
    torch.set_num_threads(1)
    torch.manual_seed(os.getpid() if options.joins else 0)
    model = Model(round(options.mb * 1e6), options.kib << 10, options.compute_s)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    loop = LoopConfig() if options.peer > 1 else LoopConfig(least_shared_bytes=1 << 62)
    config = PeerConfig.from_environment(os.environ, loop=loop, swarm="donors")
    with Peer(config) as peer:
        parallel = DataParallel(peer, model, optimizer)
        said_at = peer.last_step + (AFTER if options.joins else BEFORE)
        is_said = False
        loader = peer.loader(torch.ones(10**6, 4), global_batch=NUM_MEMBERS + 1)
        for x in (x for _ in loader.epochs() for x in loader):
            parallel(x).backward()
            optimizer.step()
            optimizer.zero_grad()
            if peer.last_step >= said_at and not is_said:  # loading a state skips steps
                is_said = True
                print(json.dumps({"peer_id": peer.peer_id}), flush=True)
            if os.path.exists(options.stop):
                break
        digest = hashlib.blake2b(model.table.detach().numpy().data, digest_size=8)  # steps compare the rest
        print(json.dumps({"digest": digest.hexdigest(), "last_step": peer.last_step}), flush=True)


def measure(options: argparse.Namespace, num_donors: int) -> dict[str, Any]:
    """Measure one joiner."""
    members: list[dict[str, str]] = [{}] * NUM_MEMBERS
    net = f"rate={options.rate:g}mbit,delay={options.delay:g}ms"
    config = LabConfig.from_table({"net": net, "host": [*members, {"net": f"rate={options.down:g}mbit"}]})
    with tempfile.TemporaryDirectory(prefix="shoal-") as folder, NetworkLab(config) as lab:
        stop = Path(folder, "stop")
        own = "--peer", str(num_donors), "--mb", str(options.mb), "--kib", str(options.kib), "--stop", str(stop)
        words = sys.executable, "-m", "bench.donors", *own, "--compute-s", str(options.compute_s)
        command = "env", f"SHOAL_MIN_PEERS={NUM_MEMBERS}", f"SHOAL_RECEIPTS={folder}", *words
        hosts = [Told(lab, host, *command) for host in range(NUM_MEMBERS)]
        peer_ids = [host.next()["peer_id"] for host in hosts]
        hosts.append(Told(lab, NUM_MEMBERS, *command, "--joins"))
        peer_ids.append(hosts[-1].next()["peer_id"])
        stop.touch()
        ends = [host.next() for host in hosts]
        codes = [host.command.wait(WAIT_S) for host in hosts]
        shown = lab.show()
        records = [read_trace(trace_path(Path(folder), peer_id))[1] for peer_id in peer_ids]
    found = evaluate(records[:NUM_MEMBERS], records[-1])
    sent = {pair["from"]: pair["num_bytes"] for pair in shown["pairs"] if pair["to"] == NUM_MEMBERS}
    rate_mbit = options.mb * 8 / found["transfer_s"]
    exchanged = 2 * (NUM_MEMBERS - 1) / NUM_MEMBERS * (options.kib << 10) * 8 / found["step_before_s"] / 1e6
    found |= {
        "donors": num_donors,
        "rate_mbit": rate_mbit,
        "share": rate_mbit / options.down,
        "exchanged": exchanged / options.rate,
        "longer": found["step_meanwhile_s"] / found["step_before_s"],
        "bytes_to_joiner": sent,
        "lateness_us": shown["lateness_us"],
        "codes": codes,
        "are_equal": len({end["digest"] for end in ends}) == 1,
    }
    return found


def evaluate(members: list[list[Record]], joiner: list[Record]) -> dict[str, Any]:
    """Times of the first state that the joiner received, and of the members' steps before and meanwhile."""
    asked, began, whole, loaded = (
        next(each.time_ns / 1e9 for each in joiner if each.kind == kind)
        for kind in (Kind.ASKED, Kind.STATE, Kind.WHOLE, Kind.LOADED)
    )
    commits = [each.time_ns / 1e9 for each in members[0] if each.kind == Kind.COMMITTED]
    steps = [(earlier, later) for earlier, later in pairwise(commits)][2:]
    before = [later - earlier for earlier, later in steps if later < asked]
    meanwhile = [later - earlier for earlier, later in steps if began < later and earlier < whole]
    return {
        "asked_s": began - asked,
        "transfer_s": whole - began,
        "load_s": loaded - whole,
        "step_before_s": median(before),
        "step_meanwhile_s": median(meanwhile),
        "longest_meanwhile_s": max(meanwhile),
        "num_meanwhile": len(meanwhile),
        "num_states": sum(each.kind == Kind.WHOLE for each in joiner),
    }


def sentence(mb: float, found: dict[str, Any]) -> str:
    """The figures in one line."""
    before, meanwhile, longest = (
        f"{1e3 * found[name]:.0f}" for name in ("step_before_s", "step_meanwhile_s", "longest_meanwhile_s")
    )
    return (
        f"{found['donors']} donors: {mb:g} MB in {found['transfer_s']:.2f} s, {found['rate_mbit']:.0f} Mbit/s, "
        f"{found['share']:.0%} of the line; steps of {before} ms before, {meanwhile} meanwhile "
        f"({found['longer']:.2f}), {longest} at most; they exchange {found['exchanged']:.1%} of a line"
    )


def main() -> int:
    """Measure, print a line per joiner, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=float, default=500.0, help="of the state, in units of 10^6 bytes")
    parser.add_argument("--rate", type=float, default=200.0, help="of a member's line, in Mbit/s")
    parser.add_argument("--down", type=float, default=600.0, help="of the joiner's")
    parser.add_argument("--delay", type=float, default=2.0, help="one way, in ms")
    parser.add_argument("--kib", type=int, default=256, help="of gradients")
    parser.add_argument("--compute-s", type=float, default=0.25, help="of a step")
    parser.add_argument("--donors", default=f"{NUM_MEMBERS},1", help="3 or 1, or both in turns")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", type=Path)
    for hidden in ("--peer", "--stop"):
        parser.add_argument(hidden, type=int if hidden == "--peer" else str, help=argparse.SUPPRESS)
    parser.add_argument("--joins", action="store_true", help=argparse.SUPPRESS)
    parser.set_defaults(failed=[])
    options = parser.parse_args()
    if options.peer:
        train(options)
        return 0
    results = []
    for _ in range(options.rounds):
        for num_donors in map(int, options.donors.split(",")):
            found = measure(options, num_donors)
            results.append(found)
            print(sentence(options.mb, found), flush=True)
            check(options, "replicas are equal, and all end well", found["are_equal"] and not any(found["codes"]))
            check(options, "steps exchange under a tenth of a line", found["exchanged"] < EXCHANGED)
            if num_donors > 1:
                check(options, "80 % of the joiner's line", found["share"] >= SHARE)
                check(options, "steps at most 20 % longer", found["longer"] <= LONGER)
    config = {name: getattr(options, name) for name in ("mb", "rate", "down", "delay", "kib", "compute_s", "rounds")}
    if options.json is not None:
        report = {"version": 2, "commit": commit(), "machine": machine(), "config": config, "results": results}
        options.json.write_text(json.dumps(report | {"failed": options.failed}, indent=1) + "\n")
    for what in dict.fromkeys(options.failed):
        print(f"not as it should be: {what}")
    return 1 if options.failed else 0


if __name__ == "__main__":
    sys.exit(main())
