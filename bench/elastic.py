"""What does a kill cost? SIGKILL to the survivors' next committed step, with detection and agreement apart.

    python -m bench.elastic --peers 3,4 --kills 30 --json out.json

Swarms train a small model as fast as it goes. A random member, rank 0 too, is killed at a random moment; when the
others go on, a new peer joins, so that the next kill meets as many. All times are read from the peers' own files, on
the host's monotonic clock. Ends with 1 if a step was lost or two peers have different receipts of one step.
"""

import argparse
import json
import random
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench.swarm import ROOT, RunningPeer, Swarm, pause
from bench.trace import Cost, Kill, Trace, costs, summary, to_rows
from p2p.benchmark.machine import commit, machine
from p2p.benchmark.report import FILE_WIDTH
from p2p.receipts import read_moments, read_receipts

SCRIPT: Final = ROOT / "bench" / "small_training.py"
KILLS_PER_SWARM: Final = 15
SETTLED: Final = 20
"""So many steps after a join or a kill count as a normal life."""

LIFE_S: Final = (0.1, 0.6)
"""A kill comes this long after that, at random."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    peers: tuple[int, ...]
    kills: int
    seed: int
    json: Path | None


def main(arguments: Sequence[str] | None = None) -> int:
    """Kill, print a table, and return the exit code."""
    options = parse(arguments)
    rng = random.Random(options.seed)
    described = machine()
    found: dict[int, list[Cost]] = defaultdict(list)
    total = options.kills * len(options.peers)
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("killing", total=total)
        for num_peers in options.peers:
            while len(found[num_peers]) < options.kills:
                number = min(KILLS_PER_SWARM, options.kills - len(found[num_peers]))
                found[num_peers] += run_swarm(num_peers, number, rng, lambda: progress.advance(task))
    report(found, options, described)
    return 1 if any(entry.steps_lost or not entry.digests_equal for group in found.values() for entry in group) else 0


def parse(arguments: Sequence[str] | None) -> Options:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default="2,3,4", help="sizes of the swarms, with commas; at least 2 each")
    parser.add_argument("--kills", type=int, default=30, help="for each size")
    parser.add_argument("--seed", type=int, default=0, help="of victims and moments")
    parser.add_argument("--json", type=Path, help="also write the results here")
    given = parser.parse_args(arguments)
    try:
        peers = tuple(int(number) for number in given.peers.split(","))
    except ValueError:
        parser.error(f"--peers is a list of numbers with commas, got {given.peers!r}")
    if min(peers) < 2 or given.kills < 1:
        parser.error("--peers must be at least 2, and --kills at least 1")
    if given.json is not None and not given.json.absolute().parent.is_dir():
        parser.error(f"--json is a file in a folder that is there, got {given.json}")
    return Options(peers=peers, kills=given.kills, seed=given.seed, json=given.json)


def run_swarm(num_peers: int, num_kills: int, rng: random.Random, advance: Any) -> list[Cost]:
    """Kill `num_kills` members of one swarm, one after the other."""
    kills: list[Kill] = []
    with Swarm(SCRIPT, num_peers) as swarm:
        swarm.start(num_peers)
        wait_for_steps(swarm, "all peers train")
        for _ in range(num_kills):
            pause(rng.uniform(*LIFE_S))
            victim = rng.choice(swarm.peers)
            kills.append(kill(swarm, victim))
            wait_for_steps(swarm, f"the survivors of kill {len(kills)} go on")
            swarm.start()
            wait_for_steps(swarm, f"a peer joins after kill {len(kills)}")
            advance()
        swarm.stop()
        return costs(kills, read_traces(swarm.receipts))


def kill(swarm: Swarm, victim: RunningPeer) -> Kill:
    """Kill `victim`; its rank is the one on its last receipt."""
    time_s = swarm.kill(victim)
    members = [entry.peer_id for entry in read_trace(swarm.receipts, victim.peer_id).receipts[-1].contributions]
    survivors = tuple(peer.peer_id for peer in swarm.peers)
    return Kill(time_s=time_s, victim=victim.peer_id, rank=members.index(victim.peer_id), survivors=survivors)


def wait_for_steps(swarm: Swarm, what: str) -> None:
    """Until each peer has committed `SETTLED` more steps."""
    enough = {peer.peer_id: swarm.num_receipts(peer) + SETTLED for peer in swarm.peers}
    swarm.wait_until(lambda: all(swarm.num_receipts(peer) >= enough[peer.peer_id] for peer in swarm.peers), what)


def read_traces(folder: Path) -> dict[str, Trace]:
    peer_ids = [path.name.partition(".")[0] for path in folder.glob("*.receipts.jsonl")]
    return {peer_id: read_trace(folder, peer_id) for peer_id in peer_ids}


def read_trace(folder: Path, peer_id: str) -> Trace:
    receipts = read_receipts(folder / f"{peer_id}.receipts.jsonl")
    return Trace(receipts, read_moments(folder / f"{peer_id}.timings.jsonl"))


def report(found: dict[int, list[Cost]], options: Options, described: dict[str, Any]) -> None:
    """Print one row per kill and what they have in common; write JSON if asked to."""
    console = Console() if sys.stdout.isatty() else Console(width=FILE_WIDTH)
    for num_peers, group in found.items():
        console.print(make_table(num_peers, group))
        console.print(in_words(num_peers, group))
    console.print(f"{described['cpu']}, {described['cores']} cores, load {described['load_1_min']}")
    if options.json is not None:
        everything = {
            "version": 1,
            "commit": commit(),
            "machine": described,
            "config": {"peers": options.peers, "kills": options.kills, "seed": options.seed},
            "kills": [row for group in found.values() for row in to_rows(group)],
            "summary": summary([entry for group in found.values() for entry in group]),
            "summary_by_peers": {str(num_peers): summary(group) for num_peers, group in found.items()},
        }
        options.json.write_text(json.dumps(everything, indent=1) + "\n")


def make_table(num_peers: int, group: Sequence[Cost]) -> Table:
    table = Table(title=f"{num_peers} peers, SIGKILL to ...", title_justify="left")
    for heading in ("kill", "rank", "detected ms", "agreed ms", "resumed ms", "steps lost", "digests equal"):
        table.add_column(heading, justify="right")
    for number, entry in enumerate(group):
        times = (f"{time_ms:.1f}" for time_ms in (entry.detect_ms, entry.agree_ms, entry.resume_ms))
        is_equal = "yes" if entry.digests_equal else "NO"
        table.add_row(str(number), str(entry.rank), *times, str(entry.steps_lost), is_equal)
    return table


def in_words(num_peers: int, group: Sequence[Cost]) -> str:
    found = summary(group)
    times = "; ".join(
        f"{word} p50 {found[name]['p50']} p99 {found[name]['p99']} ms"
        for word, name in (("detected", "detect_ms"), ("agreed", "agree_ms"), ("resumed", "resume_ms"))
    )
    return (
        f"{num_peers} peers, {len(group)} kills: {times} (beyond a median step of {found['step_ms']} ms); "
        f"{found['steps_lost']} steps lost"
    )


if __name__ == "__main__":
    sys.exit(main())
