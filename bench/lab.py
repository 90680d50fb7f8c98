"""Does the network lab behave as configured, and how do shoal and Gloo perform in it?

    python -m bench.lab [--parts link,kill,cut,wan] [--rounds 3] [--json FILE]

`link`: TCP through the lab without a limit, and at 200 Mbit/s; one-way delays of datagrams, by the clock that all hosts
share; 100,000 datagrams with a loss of 1 %. `kill`: time from SIGKILL of a lab until nothing of it is left. `cut`:
three hosts train, one is cut off for 8 s. `wan`: four hosts, 200 Mbit/s each way, 20 ms one way, with a key: all-reduce
of 4 KB in one-way delays, of 32 MB as a share of the link, in turns with Gloo. Exits with 1 if a figure misses its
target, and names it.
"""

import argparse
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import IO, Any, Final

import psutil  # type: ignore[import-untyped]

from bench.trace import Trace, are_equal
from p2p.benchmark.results.machine import commit, machine
from p2p.benchmark.results.result import percentile
from p2p.netlab.commands import Command
from p2p.netlab.config import LabConfig
from p2p.netlab.control import running
from p2p.netlab.lab import NetworkLab
from p2p.netlab.places import address
from p2p.step.receipts import read_receipts
from p2p.telemetry.trace import read_trace, trace_path

ROOT: Final = Path(__file__).parents[1]
WAIT_S: Final = 120.0
STREAM_S: Final = 4.0
RATE_MBIT: Final = 200.0
DELAY_MS: Final = 20.0
WAN: Final = f"rate={RATE_MBIT:g}mbit,delay={DELAY_MS:g}ms"
NUM_DATAGRAMS: Final = 100_000
CUT_S: Final = 8.0
SMALL: Final = 4 << 10
LARGE: Final = 32 << 20


def check(options: argparse.Namespace, what: str, is_so: bool) -> None:
    """Note `what` as failed if `is_so` is false."""
    if not is_so:
        options.failed.append(what)


class Told:
    """A command on a host, and its output."""

    def __init__(self, lab: NetworkLab, host: int, *words: str) -> None:
        source, sink = os.pipe()
        try:
            with open(os.devnull) as nothing:
                self.command: Command = lab.start(
                    host, words, streams=(nothing.fileno(), sink, 2), environ={"PYTHONPATH": str(ROOT)}
                )
        finally:
            os.close(sink)
        self._lines: IO[str] = os.fdopen(source)

    def next(self) -> dict[str, Any]:
        """The next line of JSON, without the launcher's prefix."""
        for line in self._lines:
            text = line[line.find("{") :]
            if text.startswith("{"):
                found: dict[str, Any] = json.loads(text)
                return found
        raise SystemExit(f"a command in a host has ended with {self.command.wait(WAIT_S)}")

    def rest(self) -> list[dict[str, Any]]:
        """All further lines, until the command ends."""
        found = [json.loads(line) for line in self._lines]
        if self.command.wait(WAIT_S):
            raise SystemExit(f"a command in a host has ended with {self.command.returncode}")
        return found

    def close(self) -> None:
        self._lines.close()


def peer(lab: NetworkLab, host: int, *words: str) -> Told:
    return Told(lab, host, sys.executable, "-m", "bench.lab_peer", *words)


def stream(net: str) -> dict[str, Any]:
    """Rate of TCP from one host to another."""
    with NetworkLab(LabConfig.uniform(2, net)) as lab:
        receiver = peer(lab, 1, "receive-stream")
        receiver.next()
        sender = peer(lab, 0, "send-stream", address(1), f"{STREAM_S:g}")
        sender.rest()
        (found,) = receiver.rest()
        before = lab.show()
    counters = before["pairs"][0]
    return {"net": net, **found, "lateness_us": before["lateness_us"], "missed": before["num_missed"], "pair": counters}


def datagrams(net: str, count: int, every_ms: float, burst: int) -> dict[str, Any]:
    """Delays and losses of datagrams from one host to another."""
    with NetworkLab(LabConfig.uniform(2, net)) as lab:
        receiver = peer(lab, 1, "receive-datagrams")
        receiver.next()
        peer(lab, 0, "send-datagrams", address(1), str(count), f"{every_ms:g}", str(burst)).rest()
        (found,) = receiver.rest()
        shown = lab.show()
    return {
        "net": net,
        "sent": count,
        **found,
        "lateness_us": shown["lateness_us"],
        "missed": shown["num_missed"],
        "pair": shown["pairs"][0],
    }


def link(options: argparse.Namespace) -> dict[str, Any]:
    """Measure rates, delays and losses of links, `rounds` times."""
    rounds = []
    for _ in range(options.rounds):
        lossy = datagrams("loss=1%", NUM_DATAGRAMS, 1.0, 20)
        del lossy["under_way_us"]
        found = {
            "unlimited": stream(""),
            "limited": stream(f"rate={RATE_MBIT:g}mbit"),
            "delay": datagrams(f"delay={DELAY_MS:g}ms", 1000, 2.0, 1),
            "loss": lossy,
        }
        rounds.append(found)
        late_ms = percentile(found["delay"]["under_way_us"], 50) / 1e3 - DELAY_MS
        p99_ms = found["delay"]["lateness_us"]["p99"] / 1e3
        counters = lossy["pair"]
        share = counters["dropped_loss"] / (counters["dropped_loss"] + counters["packets"])
        free, limited = (found[name]["whole_mbit"] for name in ("unlimited", "limited"))
        print(f"no limit {free:.0f} Mbit/s; {RATE_MBIT:g} Mbit/s: {limited:.1f}; ", end="")
        print(f"{DELAY_MS:g} ms: {late_ms:+.3f} ms at p50, lateness p99 {p99_ms:.2f} ms; ", end="")
        print(f"loss of 1 %: {share:.2%} of {lossy['sent']:,}", flush=True)
        check(options, "1 Gbit/s through one process", free >= 1000)
        check(options, "200 Mbit/s within 5 %", abs(limited / RATE_MBIT - 1) <= 0.05)
        check(options, "delay within 0.5 ms", abs(late_ms) <= 0.5)
        check(options, "loss of 1 % within 0.2", abs(share - 0.01) <= 0.002)
    return {"rounds": rounds}


def kill(options: argparse.Namespace) -> dict[str, Any]:
    """Time until nothing of a killed lab is left."""
    times_s = []
    for turn in range(options.rounds):
        name = f"bench-{os.getpid()}-{turn}"
        command = [sys.executable, "-m", "p2p.cli", "lab", "--hosts", "4", "--name", name, "--"]
        script = "trap '' TERM INT HUP; setsid sleep 1000 & echo here; wait"
        process = subprocess.Popen([*command, "sh", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert process.stdout is not None
        for _ in range(4):
            process.stdout.readline()
        pids = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
        handles = [os.pidfd_open(pid) for pid in pids]
        begin = time.monotonic()
        process.kill()
        for handle in handles:
            select.select([handle], [], [], WAIT_S)
            os.close(handle)
        times_s.append(time.monotonic() - begin)
        process.communicate()
        if name in running():
            raise SystemExit(f"the socket of {name} is left")
    check(options, "nothing is left after 2 s", max(times_s) <= 2)
    print(f"killed with 4 hosts: nothing left after {', '.join(f'{time_s:.3f}' for time_s in times_s)} s", flush=True)
    return {"times_s": times_s}


def cut(options: argparse.Namespace) -> dict[str, Any]:
    """Three hosts train, and one is cut off for 8 s."""
    with (
        tempfile.TemporaryDirectory(prefix="shoal-") as folder,
        NetworkLab(LabConfig.uniform(3, "rate=200mbit,delay=2ms")) as lab,
    ):
        stop = Path(folder, "stop")
        shoal = (sys.executable, "-m", "p2p.cli", "run", "-n", "1", "--min-peers", "3", "--receipts", folder)
        hosts = [Told(lab, host, *shoal, "-m", "bench.lab_peer", "train", str(stop)) for host in range(3)]
        peer_ids = [host.next()["peer_id"] for host in hosts]
        cut_at = time.monotonic()
        lab.set(2, "*", "cut")
        select.select([], [], [], CUT_S)
        lab.set("all", "heal")
        healed_at = time.monotonic()
        select.select([], [], [], CUT_S)
        stop.touch()
        codes = [host.command.wait(WAIT_S) for host in hosts]
        for host in hosts:
            host.close()
        where = Path(folder)
        traces = [
            Trace(read_receipts(where / f"{name}.receipts.jsonl"), read_trace(trace_path(where, name))[1])
            for name in peer_ids
        ]
    found = evaluate_cut(traces, peer_ids[2], cut_at, healed_at) | {"codes": codes}
    check(options, "a commit 3.5 s after the cut", found["went_on_s"] <= 3.5)
    check(options, "back 2 s after healing", found["back_s"] is not None and found["back_s"] <= 2)
    check(options, "nothing is lost", not found["steps_lost"] and found["receipts_equal"] and not any(codes))
    return found


def evaluate_cut(traces: Sequence[Trace], cut_off: str, cut_at: float, healed_at: float) -> dict[str, Any]:
    """When the others continued, and when the cut-off peer was back, from receipts and commits of the first peer."""
    members = {receipt.step: {each.peer_id for each in receipt.contributions} for receipt in traces[0].receipts}
    commits = traces[0].commits_s
    steps = sorted(commits.keys() & members.keys())
    went_on = next(commits[step] for step in steps if commits[step] > cut_at and cut_off not in members[step])
    back = next((commits[step] for step in steps if commits[step] > healed_at and cut_off in members[step]), None)
    all_steps = sorted(receipt.step for receipt in traces[0].receipts)
    common = range(all_steps[0], min(trace.receipts[-1].step for trace in traces[:2]) + 1)
    found = {
        "went_on_s": went_on - cut_at,
        "back_s": None if back is None else back - healed_at,
        "steps_lost": len(common) - len(set(common) & set(all_steps)),
        "receipts_equal": are_equal(traces, common),
        "num_steps": len(all_steps),
    }
    print(f"cut off for {CUT_S:g} s: {found}", flush=True)
    return found


def wan(options: argparse.Namespace) -> dict[str, Any]:
    """Measure shoal and Gloo on four distant hosts."""
    num_hosts = 4
    with NetworkLab(LabConfig.uniform(num_hosts, options.net)) as lab:
        os.environ |= {"SHOAL_NETWORK": "wan", "SHOAL_QUIET": "1", "SHOAL_SWARM": "wan"}
        plan = f"{SMALL}:{options.turns},{LARGE}:{max(3, options.turns // 8)}"
        hosts = [peer(lab, host, "all-reduce", plan) for host in range(num_hosts)]
        samples = [sample for host in hosts for sample in host.rest()]
        shown = lab.show()
    found: dict[str, Any] = {
        "net": options.net,
        "lateness_us": shown["lateness_us"],
        "pairs": shown["pairs"],
        "samples": samples,
    }
    for way in dict.fromkeys(sample["way"] for sample in samples):
        small, large = (median(slowest_ms(samples, way, size)) for size in (SMALL, LARGE))
        sent_bits = 2 * (num_hosts - 1) / num_hosts * LARGE * 8
        found[way] = {
            "delays": small / DELAY_MS,
            "share": sent_bits / (large / 1e3) / (RATE_MBIT * 1e6),
            "large_ms": large,
        }
        print(
            f"{way:12} 4 KB {small / DELAY_MS:6.2f} one-way delays; 32 MB {found[way]['share']:6.1%} of the link",
            flush=True,
        )
    check(options, "4 KB in 2.4 delays", found["shoal"]["delays"] <= 2.4)
    check(options, "4 KB in 1.3 delays before the commit", found["shoal@early"]["delays"] <= 1.3)
    check(options, "32 MB at 90 % of the link", found["shoal"]["share"] >= 0.9)
    print(f"lateness p50 {shown['lateness_us']['p50']:.0f} us, p99 {shown['lateness_us']['p99']:.0f} us", flush=True)
    return found


def slowest_ms(samples: Sequence[Mapping[str, Any]], way: str, size: int) -> list[float]:
    """Times of each turn on the slowest rank."""
    times: dict[int, list[float]] = {}
    for sample in samples:
        if (sample["way"], sample["size"]) == (way, size):
            times.setdefault(sample["turn"], []).append((sample["end_ns"] - sample["begin_ns"]) / 1e6)
    return [max(each) for each in times.values()]


PARTS: Final[Mapping[str, Callable[[argparse.Namespace], dict[str, Any]]]] = {
    "link": link,
    "kill": kill,
    "cut": cut,
    "wan": wan,
}


def main() -> int:
    """Measure, print a line per figure, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--rounds", type=int, default=3, help="of link and kill")
    parser.add_argument("--net", default=WAN, help="of wan")
    parser.add_argument("--turns", type=int, default=40, help="of wan, at 4 KB")
    parser.add_argument("--json", type=Path)
    parser.set_defaults(failed=[])
    options = parser.parse_args()
    found: dict[str, Any] = {"version": 2, "commit": commit(), "machine": machine(), "user": os.geteuid()}
    for part in options.parts.split(","):
        found[part] = PARTS[part](options)
    found["failed"] = options.failed
    if options.json is not None:
        options.json.write_text(json.dumps(found, separators=(",", ":")) + "\n")
    for what in dict.fromkeys(options.failed):
        print(f"not as it should be: {what}")
    return 1 if options.failed else 0


if __name__ == "__main__":
    sys.exit(main())
