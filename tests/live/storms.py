"""Storms: hosts train while links are cut in one or both directions or flap, and peers and hosts die; drawn by a seed.

Invariants: every step is committed once, along one chain of views; all members that committed it have the same bytes on
their receipts; each sample counts at most once an epoch; and no host that all others reach is out for longer than
`BACK_S`. The time without commits is measured; it is no failure while no half of the members is connected.

The hosts are those of a network lab (p2p/netlab), which share one clock.
"""

import re
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Final

from bench.swarm import POLL_S, last_receipt, pause
from p2p.netlab.lab import NetworkLab
from p2p.step.receipts import Receipt
from p2p.telemetry.records import Kind
from p2p.telemetry.trace import SUFFIX, TRACES, read_trace
from tests.live.churn import agreed
from tests.live.labs import program
from tests.live.swarm import ROOT, Process

SCRIPT: Final = Path(__file__).with_name("churn_peer.py")
NUM_HOSTS: Final = 4
BACK_S: Final = 5.0
"""Limit of the time from the restoration of links until all train in one view."""

START_S: Final = 120.0
"""Timeout for the start of a host, which has to import torch; a longer wait for anything is a hang."""

DOWN_S: Final = 1.0
"""Flapping links are down, and up, for this long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event, and its cost.

    Attributes:
        begun_s, healed_s: by the monotonic clock.
        back_s: time after `healed_s` until all trained in one view again.
        stopped_s: the longest time without commits, from `begun_s` until all were back.
        steps_per_s: committed steps per second between `begun_s` and `healed_s`.
    """

    kind: str
    what: str
    begun_s: float
    healed_s: float
    back_s: float
    stopped_s: float = 0.0
    steps_per_s: float = 0.0


class Storm:
    """One swarm of `NUM_HOSTS` hosts in `lab`, and the events that affect their links."""

    def __init__(self, lab: NetworkLab, folder: Path, seed: int, policy: str = "live") -> None:
        """Receipts are written to `folder`."""
        self.lab = lab
        self.events: list[Event] = []
        self._seed = seed
        self._policy = policy
        self._rng = Random(seed)
        self._folder = folder
        self._peers: dict[int, Process] = {}
        self._ended: list[Process] = []

    def run(self, *, for_s: float = float("inf"), kinds: Sequence[str] = ()) -> list[Receipt]:
        """Run events of these `kinds` in this order, or drawn ones for `for_s`; returns the agreed receipts.

        Raises:
            AssertionError: an invariant does not hold; names the seed and the last events.
        """
        try:
            for host in range(NUM_HOSTS):
                self._launch(host)
            self._wait_whole(time.monotonic())
            end_s, given = time.monotonic() + for_s, iter(kinds)
            while kind := next(given, "") if kinds else self._draw(end_s):
                self._do(kind)
                pause(self._rng.choice((0.0, 1.0, 5.0)))
            return self._end()
        except AssertionError as error:
            reports = [run.report() for run in self._peers.values()]
            last = [str(event) for event in self.events[-5:]]
            raise AssertionError("\n".join([f"seed={self._seed}", *last, str(error), *reports])) from error

    def _draw(self, end_s: float) -> str:
        kinds, weights = zip(*((kind, weight) for kind, (weight, _) in KINDS.items()), strict=True)
        return self._rng.choices(kinds, weights)[0] if time.monotonic() < end_s else ""

    def _do(self, kind: str) -> None:
        begun_s = time.monotonic()
        what = KINDS[kind][1](self)
        self.lab.set("all", "heal")
        healed_s = time.monotonic()
        back_s = self._wait_whole(healed_s)
        self.events.append(Event(kind=kind, what=what, begun_s=begun_s, healed_s=healed_s, back_s=back_s))

    # Events. Each returns a description.

    def cut_off(self) -> str:
        host, for_s = self._host(), self._duration()
        self.lab.set(host, "*", "cut")
        pause(for_s)
        return f"host {host} is cut off for {for_s} s"

    def cut_one_way(self) -> str:
        host, for_s, is_deaf = self._host(), self._duration(), self._rng.random() < 0.5
        ends = ("*", host) if is_deaf else (host, "*")
        self.lab.set(*ends, "cut", one_way=True)
        pause(for_s)
        return f"host {host} {'hears nobody' if is_deaf else 'is heard by nobody'} for {for_s} s"

    def cut_pair(self) -> str:
        one, other = self._rng.sample(range(NUM_HOSTS), 2)
        for_s, one_way = self._duration(), self._rng.random() < 0.5
        self.lab.set(one, other, "cut", one_way=one_way)
        pause(for_s)
        return f"hosts {one} and {other} are apart{', one way' if one_way else ''}, for {for_s} s"

    def islands(self) -> str:
        """Partition the hosts into two or three islands, of which one may be large enough to continue."""
        for_s, found = self._duration(), self._part()
        pause(for_s)
        return f"islands of {'|'.join(str(len(island)) for island in found)} for {for_s} s"

    def kill_apart(self) -> str:
        """During a partition kill the peers of one or two hosts; their launchers live, and replace them.

        A peer stays alive on each island that may have continued, and two in all: otherwise the run may be lost.
        """
        for_s, found, wait_s = self._duration(), self._part(), self._rng.choice((0.0, 1.0, 4.0))
        most = 1 if self._policy == "majority" else self._rng.choice((1, 2))
        chosen = [self._rng.choice(island) for island in self._rng.sample(found, min(most, len(found)))]
        pause(wait_s)
        for host in chosen:
            self._kill_peer(host)
        pause(for_s)
        who = " and ".join(map(str, chosen))
        return f"islands {found}, and after {wait_s} s, for {for_s} s, without the peers of hosts {who}"

    def vanish_apart(self) -> str:
        """During a partition destroy a host; not one of two that may have continued: the other could not know."""
        for_s, found, wait_s = self._duration(), self._part(), self._rng.choice((0.0, 1.0, 4.0))
        pause(wait_s)
        host = self._rng.choice([host for island in found if len(island) != 2 for host in island] or [-1])
        if host < 0:
            pause(for_s)
            return f"islands {found} for {for_s} s"
        self._vanish(host, for_s)
        return f"islands {found}, and after {wait_s} s host {host} vanishes, and is back after {for_s} s"

    def flap(self) -> str:
        host, times = self._host(), self._rng.randint(3, 15)
        for _ in range(times):
            self.lab.set(host, "*", "cut")
            pause(DOWN_S)
            self.lab.set("all", "heal")
            pause(DOWN_S)
        return f"the links of host {host} come and go {times} times"

    def vanish(self) -> str:
        """Destroy a host with its launcher, so that there is no notice; another host replaces it."""
        host, for_s = self._host(), self._duration()
        self._vanish(host, for_s)
        return f"host {host} vanishes, and is back after {for_s} s"

    def _host(self) -> int:
        return self._rng.randrange(NUM_HOSTS)

    def _duration(self) -> float:
        return self._rng.choice((0.5, 1.0, 2.0, 4.0, 8.0))

    def _part(self) -> list[list[int]]:
        """Partition the hosts; returns the islands, the largest first."""
        place = {host: self._rng.randrange(3) for host in range(NUM_HOSTS)}
        for one in range(NUM_HOSTS):
            for other in range(one):
                if place[one] != place[other]:
                    self.lab.set(one, other, "cut")
        found = [[host for host in place if place[host] == island] for island in sorted({*place.values()})]
        return sorted(found, key=len, reverse=True)

    # Hosts

    def _vanish(self, host: int, for_s: float) -> None:
        run = self._peers.pop(host)
        run.kill()
        self._ended.append(run)
        pause(for_s)
        self._launch(host)

    def _kill_peer(self, host: int) -> None:
        pid = self._peers[host].pid  # in the host's pid namespace
        self.lab.start(host, ["sh", "-c", f"kill -KILL $(cat /proc/{pid}/task/{pid}/children)"]).wait()

    def _launch(self, host: int) -> None:
        options = ["-n", "1", "--min-peers", str(NUM_HOSTS), "--receipts", str(self._folder)]
        options += ["--restarts", "99", "--policy", self._policy]
        shoal = sys.executable, "-m", "p2p.cli", "run"
        self._peers[host] = program(self.lab, host, *shoal, *options, str(SCRIPT), folder=ROOT)

    def _wait_whole(self, since_s: float) -> float:
        """Wait until all have committed a new step of all hosts; returns the time since `since_s`."""
        before = max((receipt.step for receipt in self._last() if receipt is not None), default=-1)
        while not all(r is not None and r.step > before and len(r.contributions) == NUM_HOSTS for r in self._last()):
            late = [host for host, run in self._peers.items() if run.has_ended()]
            assert not late, f"hosts {late} have ended"
            took_s = time.monotonic() - since_s
            seats = [receipt and len(receipt.contributions) for receipt in self._last()]
            assert took_s < START_S, f"not all train {START_S:g} s after the links are whole; seats at each: {seats}"
            pause(POLL_S)
        return time.monotonic() - since_s

    def _last(self) -> list[Receipt | None]:
        """The last receipt of each host."""
        return [self._last_of(run) for run in self._peers.values()]

    def _last_of(self, run: Process) -> Receipt | None:
        lines = reversed(list(run.stdout))  # another peer may have replaced it
        said = next((line for line in lines if re.fullmatch(r"\[0\] [0-9a-f]{16}", line)), "")
        return last_receipt(self._folder / f"{said.split()[1]}.receipts.jsonl") if said else None

    def _end(self) -> list[Receipt]:
        for run in self._peers.values():
            run.send_signal(signal.SIGTERM)
        for run in [*self._ended, *self._peers.values()]:
            run.end()
        receipts = agreed(self._folder, may_return=True)
        self._measure()
        return receipts

    def out_for_long(self) -> list[Event]:
        """Events after which a host was out for longer than `BACK_S`, though all could be reached."""
        return [event for event in self.events if event.back_s > BACK_S and event.kind not in DEADLY]

    def _measure(self) -> None:
        traces = [read_trace(path)[1] for path in (self._folder / TRACES).glob(f"*{SUFFIX}")]
        commits = [(each.time_ns / 1e9, each.step) for own in traces for each in own if each.kind == Kind.COMMITTED]
        times = sorted(at for at, _ in commits)
        for index, event in enumerate(self.events):
            end_s = event.healed_s + event.back_s
            inside = [event.begun_s, *(at for at in times if event.begun_s < at < end_s), end_s]
            stopped_s = max(later - earlier for earlier, later in pairwise(inside))
            steps = {step for at, step in commits if event.begun_s < at < event.healed_s}
            rate = len(steps) / (event.healed_s - event.begun_s)
            self.events[index] = replace(event, stopped_s=stopped_s, steps_per_s=rate)


KINDS: Final[dict[str, tuple[int, Callable[[Storm], str]]]] = {
    "cut off": (3, Storm.cut_off),
    "one way": (3, Storm.cut_one_way),
    "pair": (4, Storm.cut_pair),
    "islands": (2, Storm.islands),
    "flap": (2, Storm.flap),
    "vanish": (2, Storm.vanish),
    "kill apart": (2, Storm.kill_apart),
    "vanish apart": (1, Storm.vanish_apart),
}
"""Weight and action of each kind of event."""

DEADLY: Final = "vanish", "kill apart", "vanish apart"
"""Events after which peers have to be started, and import torch."""
