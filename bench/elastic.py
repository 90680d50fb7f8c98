"""What does a kill cost? SIGKILL to the survivors' next committed step, with detection and agreement apart.

    python -m bench.elastic --json out.json
    python -m bench.elastic --peers 3 --kills 10 --resident 2G
    python -m bench.elastic --peers 3,4 --stop 20
    python -m bench.elastic --peers 3 --kills 5 --against torchrun
    python -m bench.elastic --peers 2 --kills 30 --device cuda --pinned 1G --on-device 4G

Swarms train a small model as fast as possible. A random member, possibly rank 0, is killed at a random moment; once the
survivors continue, a new peer joins, so that each kill happens in a view of the same size. With --stop the member is
stopped for that many seconds instead. These are experiments (docs/experiments.md): all times are from the peers' flight
recorders, on the host's monotonic clock. Exits with 1 if a step was lost, two peers have different receipts of one
step, or another expectation of an experiment is not met.

With --against torchrun the same model is trained by DDP afterwards, and torchrun restarts all workers after each kill,
from the last checkpoint (bench/torchrun.py). With --against torchft, where that is installed, the survivors continue
(bench/torchft_kills.py), each with its part of the batch.

Peers are forked from a process that has imported torch; with --exec each is a program of its own, and joins later.
"""

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench.deaths import Cost, Pause, Peers, conduct, kills, pauses, plan, summary_of_kills, summary_of_pauses
from bench.here import environment
from bench.places import CPU, DEVICES, check
from bench.torchft_kills import kill_replicas, why_not
from bench.torchrun import Restart, kill_workers
from p2p.benchmark.plan import parse_size
from p2p.benchmark.results.machine import commit, machine
from p2p.benchmark.results.report import FILE_WIDTH
from p2p.errors import LaunchError
from p2p.experiment.evaluation.report import Evaluated

KILLS: Final = 25
"""Kills for each number of peers."""

OTHERS: Final = ("torchrun", "torchft", "hivemind")

EVENTS_PER_SWARM: Final = 15
STOPS: Final = 3
"""Pauses for each number of peers with --stop: each takes longer than the time for which a peer is stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of the benchmark; `stop_s` is 0 if peers are killed."""

    peers: tuple[int, ...]
    kills: int
    stop_s: float
    resident: str
    start: str
    seed: int
    json: Path | None
    against: str
    every: int
    device: str
    pinned: str
    on_device: str
    heartbeat_ms: int


class Runs:
    """Runs experiments with the requested number of events.

    Attributes:
        wrong: unmet expectations.
    """

    def __init__(self, options: Options, advance: Callable[[], None]) -> None:
        self._options, self._advance = options, advance
        self.wrong: list[str] = []

    def kills(self, num_peers: int) -> list[Cost]:
        """Kill as many members as are asked for, in swarms of `num_peers`."""
        return [cost for evaluated in self._runs(num_peers, "kill") for cost in kills(evaluated)]

    def pauses(self, num_peers: int) -> list[Pause]:
        """Stop members of swarms of `num_peers`, one after the other."""
        return [cost for evaluated in self._runs(num_peers, "pause") for cost in pauses(evaluated)]

    def _runs(self, num_peers: int, do: str) -> Iterator[Evaluated]:
        """Run experiments, each with a seed of its own."""
        options, left = self._options, self._options.kills

        def say(line: str) -> None:
            if f": {do} " in line:
                self._advance()

        for seed in itertools.count(options.seed):
            if not left:
                return
            number = min(EVENTS_PER_SWARM, left)
            left -= number
            args = (options.device, str(parse_bytes(options.pinned)), str(parse_bytes(options.on_device)))
            peers = Peers(number=num_peers, start=options.start, resident=options.resident, args=args)
            text = plan(peers, number, options.stop_s)
            evaluated, wrong = conduct(text, seed, environment(), say)
            self.wrong += wrong
            yield evaluated


def main(arguments: Sequence[str] | None = None) -> int:
    """Kill or stop peers, print a table, and return the exit code."""
    options = parse(arguments)
    described = machine()
    console = Console() if sys.stdout.isatty() else Console(width=FILE_WIDTH)
    with ExitStack() as stack:
        bar = Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
        task = stack.enter_context(bar).add_task(
            "killing", total=options.kills * len(options.peers) * (2 if options.against else 1)
        )
        runs = Runs(options, lambda: bar.advance(task))
        if options.stop_s:
            paused = {num_peers: runs.pauses(num_peers) for num_peers in options.peers}
        else:
            killed = {num_peers: runs.kills(num_peers) for num_peers in options.peers}
        restarts = [
            kill_replicas(num_peers, options.kills, options.heartbeat_ms, options.seed, lambda: bar.advance(task))
            if options.against == "torchft"
            else kill_workers(num_peers, options.kills, options.every, options.seed, lambda: bar.advance(task))
            for num_peers in options.peers
            if options.against
        ]
    report = report_pauses(paused, console) if options.stop_s else report_kills(killed, console)
    if restarts:
        console.print(table_of_restarts(options.against, [each for found, _ in restarts for each in found]))
        for why in (why for _, why in restarts if why):
            console.print(why, markup=False)
        report[options.against] = [asdict(each) for found, _ in restarts for each in found]
        report[f"{options.against}_failed"] = [why for _, why in restarts if why]
    console.print(f"{described['cpu']}, {described['cores']} cores, load {described['load_1_min']}")
    for line in runs.wrong:
        console.print(f"not as expected: {line}", markup=False)
    if options.json is not None:
        config = {**asdict(options), "json": None}
        everything = {"version": 1, "commit": commit(), "machine": described, "config": config, **report}
        options.json.write_text(json.dumps(everything, indent=1) + "\n")
    return 0 if report["summary"]["is_good"] and not runs.wrong else 1


def parse(arguments: Sequence[str] | None) -> Options:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", help="sizes of the swarms, with commas; at least 2 each, 3 with --stop")
    parser.add_argument("--kills", type=int, help=f"for each size; default {KILLS}, {STOPS} with --stop")
    parser.add_argument("--stop", type=float, default=0.0, metavar="S", help="stop peers for S seconds, kill none")
    parser.add_argument("--resident", default="4", help="memory that each peer keeps beside its model: 2G, say")
    parser.add_argument("--device", choices=DEVICES, default=CPU, help="of the model")
    parser.add_argument("--pinned", default="0", help="memory that each peer has registered with its device beside")
    parser.add_argument("--on-device", default="0", help="memory of its device that each peer keeps beside its model")
    parser.add_argument("--exec", action="store_true", help="start each peer as a program of its own")
    parser.add_argument("--seed", type=int, default=0, help="of victims and moments")
    parser.add_argument("--json", type=Path, help="also write the results here")
    parser.add_argument("--against", choices=OTHERS, default="", help="kill workers of that, too")
    parser.add_argument("--every", type=int, default=50, help="steps between the checkpoints of those; default 50")
    parser.add_argument(
        "--heartbeat-ms", type=int, default=5000, help="of torchft: without one in that, it is out; 5000"
    )
    given = parser.parse_args(arguments)
    default, least, number = ((3, 4), 3, STOPS) if given.stop else ((2, 3, 4, 6), 2, KILLS)
    try:
        peers = default if given.peers is None else tuple(int(number) for number in given.peers.split(","))
        parse_size(given.resident)
        beside = parse_bytes(given.pinned) + parse_bytes(given.on_device)
    except (ValueError, LaunchError):
        sizes = f"{given.resident!r}, {given.pinned!r}, {given.on_device!r}"
        parser.error(f"--peers is like 2,3, got {given.peers!r}; sizes of memory are like 2G, got {sizes}")
    if given.device == CPU and beside:
        parser.error("--pinned and --on-device are of a --device")
    check(given.device)
    kills = number if given.kills is None else given.kills
    if min(peers) < least or kills < 1 or given.stop < 0:
        parser.error(f"--peers must be at least {least}, --kills at least 1, and --stop no less than 0")
    if given.every < 1 or (given.against and given.stop):
        parser.error(f"--every must be at least 1, got {given.every}, and --against is of kills, not of --stop")
    if given.heartbeat_ms < 1:
        parser.error(f"--heartbeat-ms must be at least 1, got {given.heartbeat_ms}")
    if why := why_not(given.against):
        parser.error(why)
    if given.json is not None and not given.json.absolute().parent.is_dir():
        parser.error(f"--json is a file in a folder that is there, got {given.json}")
    return Options(
        peers=peers,
        kills=kills,
        stop_s=given.stop,
        resident=given.resident,
        start="exec" if given.exec else "fork",
        seed=given.seed,
        json=given.json,
        against=given.against,
        every=given.every,
        device=given.device,
        pinned=given.pinned,
        on_device=given.on_device,
        heartbeat_ms=given.heartbeat_ms,
    )


def parse_bytes(text: str) -> int:
    """As `parse_size`, or 0."""
    return 0 if text == "0" else parse_size(text)


def report_kills(found: Mapping[int, Sequence[Cost]], console: Console) -> dict[str, Any]:
    """Print one row per kill and a summary; returns both for JSON."""
    for num_peers, group in found.items():
        console.print(table_of_kills(num_peers, group))
        console.print(in_words(num_peers, group))
    everything = [entry for group in found.values() for entry in group]
    return {
        "kills": [asdict(entry) for entry in everything],
        "summary": summary_of_kills(everything),
        "summary_by_peers": {str(num_peers): summary_of_kills(group) for num_peers, group in found.items()},
    }


def report_pauses(found: Mapping[int, Sequence[Pause]], console: Console) -> dict[str, Any]:
    """The same for peers that were stopped."""
    for num_peers, group in found.items():
        console.print(table_of_pauses(num_peers, group))
    everything = [entry for group in found.values() for entry in group]
    return {"pauses": [asdict(entry) for entry in everything], "summary": summary_of_pauses(everything)}


def table_of_kills(num_peers: int, group: Sequence[Cost]) -> Table:
    table = Table(title=f"{num_peers} peers, SIGKILL to ...", title_justify="left")
    for heading in ("kill", "rank", "detected ms", "agreed ms", "resumed ms", "steps lost", "digests equal"):
        table.add_column(heading, justify="right")
    for number, entry in enumerate(group):
        times = (f"{time_ms:.1f}" for time_ms in (entry.detect_ms, entry.agree_ms, entry.resume_ms))
        is_equal = "yes" if entry.digests_equal else "NO"
        table.add_row(str(number), str(entry.rank), *times, str(entry.steps_lost), is_equal)
    return table


def table_of_pauses(num_peers: int, group: Sequence[Pause]) -> Table:
    """One row per peer that was stopped."""
    table = Table(title=f"{num_peers} peers, one is stopped", title_justify="left")
    headings = ("rank", "out ms", "longest stall ms", "steps meanwhile", "back ms", "steps lost", "digests equal")
    for heading in headings:
        table.add_column(heading, justify="right")
    for entry in group:
        back = f"{entry.back_ms:.0f}" if entry.back_ms is not None else f"ended with {entry.ended_with}"
        counts = (str(entry.steps_meanwhile), back, str(entry.steps_lost), "yes" if entry.digests_equal else "NO")
        table.add_row(str(entry.rank), _ms(entry.out_ms), _ms(entry.stall_ms), *counts)
    return table


def _ms(time_ms: float | None) -> str:
    return "" if time_ms is None else f"{time_ms:.0f}"


def table_of_restarts(against: str, found: Sequence[Restart]) -> Table:
    table = Table(title=f"{against}, SIGKILL to a worker", title_justify="left")
    for heading in ("workers", "any step again ms", "new step ms", "step ms", "steps lost", "replicas equal"):
        table.add_column(heading, justify="right")
    for each in found:
        times = (f"{time_ms:.1f}" for time_ms in (each.again_ms, each.resume_ms, each.step_ms))
        table.add_row(str(each.peers), *times, str(each.steps_lost), "yes" if each.replicas_equal else "NO")
    return table


def in_words(num_peers: int, group: Sequence[Cost]) -> str:
    found = summary_of_kills(group)
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
