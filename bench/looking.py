"""Cost of `shoal run --web` for the launcher: pages of 64 peers, one browser page open, ten scrapes a second.

    python -m bench.looking
    python -m bench.looking --against ../other-checkout   # in turns with it

A stand-in writes the pages of 64 peers, each at 20 steps/s with a snapshot a second. Another process serves them, as a
launcher does; a third has one page open, and scrapes /metrics, on one persistent connection (as Prometheus does) or on
a new one for each. Alternatively no process serves, and one reads the pages as `shoal top` does. Prints the processor
time of the process that serves or reads, in % of a core, and whether each response was complete.
"""

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection
from io import StringIO
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final

from rich.console import Console

from p2p.host.processes import process_start, read_host
from p2p.status.follow import StatusReader
from p2p.status.screen import EVERY_S, MOST_EACH_SECOND
from p2p.status.top import NUM_LATEST, screen
from p2p.status.web import serving
from p2p.telemetry.page import Page
from p2p.telemetry.records import Kind
from p2p.telemetry.snapshot import Counted, Identity, Other, Pace, Snapshot

ROOT: Final = Path(__file__).resolve().parents[1]
STEPS_PER_S: Final = 20
SCRAPES_PER_S: Final = 10
KINDS: Final = (Kind.BEGUN, Kind.SUBMITTED, Kind.FINISHED, Kind.COMMITTED, Kind.RECEIVED)
WAYS: Final = ("kept", "new", "none", "top")
"""Connections of the scraper; `none`: only the page is open. `top`: no server, `shoal top` reads the pages."""


def stand_in(home: Path, number: int) -> None:
    """Write the pages of `number` peers until stdin ends."""
    folder = home / "pond"
    folder.mkdir()
    ids = [f"{index + 1:016x}" for index in range(number)]
    start = process_start(os.getpid())
    assert start is not None
    pages = [Page(folder, _identity(peer_id, index, start), time.monotonic_ns) for index, peer_id in enumerate(ids)]
    is_over = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        is_over.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    began = time.monotonic()
    for step in range(1, 1 << 30):
        for index, page in enumerate(pages):
            for kind in KINDS:
                (page.loop if kind in (Kind.FINISHED, Kind.COMMITTED) else page.training).note(kind, step)
            if (step + index) % STEPS_PER_S == 0 or step == 1:
                page.show(_snapshot(page.identity, ids, step))
        if step == 1:
            print("ready", flush=True)
        if is_over.wait(max(0.0, began + step / STEPS_PER_S - time.monotonic())):
            return


def _identity(peer_id: str, index: int, start: int) -> Identity:
    now_ns = time.monotonic_ns()
    return Identity(
        peer_id=peer_id,
        swarm="pond",
        name=str(index),
        pid=os.getpid(),
        process_start=start,
        host=read_host(),
        script="train.py",
        joined_ns=now_ns,
        wall_ns=time.time_ns(),
    )


def _snapshot(who: Identity, ids: Sequence[str], step: int) -> Snapshot:
    now_ns = time.monotonic_ns()
    return Snapshot(
        identity=who,
        time_ns=now_ns,
        phase="ACTIVE",
        view=7,
        members=tuple((peer_id, 10**18) for peer_id in ids),
        needed=2,
        others=tuple(
            Other(peer_id=peer_id, view=7, step=step, steps_per_s=float(STEPS_PER_S))
            for peer_id in ids
            if peer_id != who.peer_id
        ),
        step=step,
        has_begun=True,
        reason=f"{len(ids)} of {len(ids)} members of view 7 are here",
        events=tuple((now_ns - 10**9 * each, f"{ids[each]} has joined") for each in range(5)),
        resident_bytes=1 << 30,
        num_files=100,
        dropped={},
        pace=Pace(steps_per_s=float(STEPS_PER_S), compute_s=0.03, exchange_s=0.015, wait_s=0.005),
        counted=Counted(steps=step, samples=8 * step, since_ns=who.joined_ns),
        logged={"loss": 1.0 / step, "lr": 0.001},
    )


def serve(home: Path) -> None:
    """Serve as a launcher does, and print the processor time used so far for each line on stdin."""
    with serving("127.0.0.1:0", home, "pond", time.monotonic_ns, {}) as url:
        print(url.rstrip("/").rpartition(":")[2], flush=True)
        for _ in sys.stdin:
            print(time.process_time(), flush=True)


def top(home: Path, num_peers: int) -> None:
    """Look as `shoal top` does, and print the processor time used so far for each line on stdin."""
    follower = StatusReader(home, "pond", time.monotonic_ns, NUM_LATEST)
    is_over = threading.Event()

    def look() -> None:
        while not is_over.is_set():
            shown = StringIO()
            Console(file=shown, width=160, force_terminal=True).print(screen(follower.read(), follower.steps_us()))
            assert shown.getvalue().count("running") == num_peers, shown.getvalue()
            is_over.wait(EVERY_S * max(1.0, num_peers / MOST_EACH_SECOND))

    looks = threading.Thread(target=look)
    looks.start()
    for _ in sys.stdin:
        print(time.process_time(), flush=True)
        assert looks.is_alive(), "it has failed"
    is_over.set()
    looks.join()


class Looking:
    """A client: one open page, and a scraper."""

    def __init__(self, port: int, way: str, num_peers: int) -> None:
        self._port, self._way, self._num_peers = port, way, num_peers
        self._kept = HTTPConnection("127.0.0.1", port, timeout=20)
        self._page = HTTPConnection("127.0.0.1", port, timeout=20)
        self._page.request("GET", "/events")
        self._events = self._page.getresponse()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with suppress(OSError, ValueError, AttributeError):  # the connection is closed meanwhile
            while self._events.readline():
                continue

    def scrape(self) -> None:
        connection = self._kept if self._way == "kept" else HTTPConnection("127.0.0.1", self._port, timeout=20)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        assert text.count('condition="running"} 0') == 0, "the stand-in has ended"
        assert text.count("\nshoal_step{") == self._num_peers and text.endswith("# EOF\n"), text[:300]
        if connection is not self._kept:
            connection.close()

    def close(self) -> None:
        self._kept.close()
        assert self._page.sock is None or self._page.sock.shutdown(2) is None
        self._events.close()
        self._page.close()
        self._reader.join(20)


class Served:
    """A process of one checkout that serves or shows the pages."""

    def __init__(self, process: "subprocess.Popen[str]", *, is_top: bool = False) -> None:
        self.process = process
        self.port = 0 if is_top else int(self._line())

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def spent_s(self) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self._line())

    def percent(self, way: str, for_s: float, num_peers: int) -> float:
        """Processor time in % of a core, under load of this kind for `for_s`."""
        if way == "top":
            began, before = time.monotonic(), self.spent_s()
            threading.Event().wait(for_s)
            return 100 * (self.spent_s() - before) / (time.monotonic() - began)
        with closing(Looking(self.port, way, num_peers)) as looking:
            began, before = time.monotonic(), self.spent_s()
            for number in range(1, round(for_s * SCRAPES_PER_S) + 1):
                if way != "none":
                    looking.scrape()
                threading.Event().wait(max(0.0, began + number / SCRAPES_PER_S - time.monotonic()))
            return 100 * (self.spent_s() - before) / (time.monotonic() - began)


@contextmanager
def started(checkout: Path, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """Run this file with the packages of that checkout; it ends when its stdin does."""
    environ = {**os.environ, "PYTHONPATH": str(checkout), "PYTHONSAFEPATH": "1"}
    command = [sys.executable, __file__, *arguments]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ, cwd=checkout
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def measure(args: argparse.Namespace) -> dict[str, list[float]]:
    """Percent of a core, by checkout and way, in turns."""
    checkouts = {"this": ROOT, **({"other": args.against.resolve()} if args.against else {})}
    found: dict[str, list[float]] = {}
    for turn in range(args.turns):
        for way in args.ways:
            for name in sorted(checkouts, reverse=bool(turn % 2)):
                percent = measure_one(checkouts[name], way, args)
                found.setdefault(f"{name}, {way}", []).append(percent)
                print(f"{name:6} {way:5} {percent:5.2f} %, load {os.getloadavg()[0]:.1f}", flush=True)
    return found


def measure_one(checkout: Path, way: str, args: argparse.Namespace) -> float:
    """Measure one checkout, with peers of the same checkout, since layouts of pages may differ."""
    with (
        TemporaryDirectory(prefix="shoal-looking-") as folder,
        started(checkout, "--stand-in", folder, "--peers", str(args.peers)) as peers,
    ):
        assert peers.stdout is not None
        assert peers.stdout.readline() == "ready\n", "the stand-in failed"
        looks = "--top" if way == "top" else "--serve"
        with started(checkout, looks, folder, "--peers", str(args.peers)) as process:
            return Served(process, is_top=way == "top").percent(way, args.for_s, args.peers)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=int, default=64)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--for-s", type=float, default=10.0, help="each, in each turn")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--against", type=Path, help="another checkout")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--stand-in", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--top", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.stand_in:
        stand_in(args.stand_in, args.peers)
    elif args.serve:
        serve(args.serve)
    elif args.top:
        top(args.top, args.peers)
    else:
        found = measure(args)
        for name, percents in sorted(found.items()):
            print(f"{name:12} {median(percents):5.2f} % of a core ({min(percents):.2f} to {max(percents):.2f})")
        if args.json:
            args.json.write_text(json.dumps({"load": os.getloadavg()[0], **found}, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
