"""Churn of real peers that train: members are killed, join and leave, in an order drawn by a seed.

Invariants, whatever the order: every step is committed once, along one chain of views; all members that committed it
have the same bytes on their receipts, including digests of results and parameters; each sample counts at most once an
epoch; and no files, processes or resources of ended peers are left behind, also not in surviving peers.

The seed draws the peers, and the number of commits between events; what a peer is doing at that moment depends on the
machine.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from bench.swarm import RunningPeer, Swarm, last_receipt
from p2p.data.ranges import union
from p2p.data.sampler import SamplerState, fold
from p2p.forking.zygote import Zygote
from p2p.step.receipts import Receipt, parse_receipt

SCRIPT: Final = Path(__file__).with_name("churn_peer.py")
MOST: Final = 6
FIRST: Final = 3
SETTLED: Final = 5
"""Commits of all peers after which all events are settled."""

BETWEEN_CHECKS: Final = 10
PAUSES: Final = (0, 0, 1, 2, 5, 20)
"""Commits between two events; 0: the next event comes while the members still handle the one before."""


@dataclass(slots=True)
class Events:
    """Events so far."""

    joins: int = 0
    leaves: int = 0
    kills: int = 0
    kills_of_rank_0: int = 0
    to_one: int = 0

    @property
    def total(self) -> int:
        return self.joins + self.leaves + self.kills


class Churn:
    """One swarm under churn.

    Attributes:
        longest_gap_s: the longest time without any commit.
    """

    def __init__(self, zygote: Zygote, seed: int) -> None:
        self.seed = seed
        self.events = Events()
        self.longest_gap_s = 0.0
        self._rng = Random(seed)
        self._zygote = zygote
        self._log: list[str] = []
        self._num_handles: dict[int, int] = {}

    def run(self, num_events: int) -> list[Receipt]:
        """Run the events; returns the agreed receipts of all steps.

        Raises:
            AssertionError: an invariant does not hold; names the seed and the last events.
        """
        with Swarm(SCRIPT, FIRST, zygote=self._zygote) as swarm:
            try:
                swarm.start(FIRST)
                self._settle(swarm)
                while self.events.total < num_events:
                    self._do_something(swarm, num_events - self.events.total)
                    if len(self._log) % BETWEEN_CHECKS == 0:
                        self._settle(swarm)
                self._settle(swarm)
                swarm.stop()
                check_nothing_left(swarm)
                self.longest_gap_s = longest_gap_s(swarm)
                return agreed(swarm.receipts)
            except (AssertionError, RuntimeError) as error:
                last = "\n".join(self._log[-2 * BETWEEN_CHECKS :])
                raise AssertionError(f"seed={self.seed}\n{last}\n{error}\n{swarm.last_words()}") from error

    def _do_something(self, swarm: Swarm, num_left: int) -> None:
        """Cause one event, or several at the same time, then wait for a few commits."""
        living = swarm.peers
        seated = [peer for peer in living if swarm.num_receipts(peer)]
        choices = [("join", 3)] * (len(living) < MOST) + [("kill", 4), ("leave", 2)] * (len(living) > 1)
        kinds, weights = zip(*choices, strict=True)
        (kind,) = self._rng.choices(kinds, weights)
        number = min(num_left, self._rng.choice((1, 1, 1, 2, MOST)))
        if kind == "join":
            number = min(number, MOST - len(living))
            self._note(f"join {[peer.peer_id for peer in swarm.start(number)]}")
            self.events.joins += number
        else:
            keeper = self._rng.choice(seated)  # at least one peer with the state must survive
            others = [peer for peer in living if peer is not keeper]
            if kind == "kill":
                others += swarm.leaving
            chosen = self._rng.sample(others, min(number, len(others)))
            self._end(swarm, kind, chosen)
        survivor = self._rng.choice([peer for peer in seated if peer in swarm.peers])
        wait = self._rng.choice(PAUSES)
        swarm.wait_for_steps(wait, f"{survivor.peer_id} commits {wait} more steps", [survivor])

    def _end(self, swarm: Swarm, kind: str, chosen: list[RunningPeer]) -> None:
        self._note(f"{kind} {[peer.peer_id for peer in chosen]} of {[peer.peer_id for peer in swarm.peers]}")
        if kind == "leave":
            swarm.ask_to_leave(*chosen)
            self.events.leaves += len(chosen)
            return
        swarm.kill(*chosen)
        self.events.to_one += len(swarm.peers) == 1
        self.events.kills += len(chosen)
        last = [last_receipt(swarm.receipts / f"{peer.peer_id}.receipts.jsonl") for peer in chosen]
        firsts = {receipt.contributions[0].peer_id for receipt in last if receipt is not None}
        self.events.kills_of_rank_0 += any(peer.peer_id in firsts for peer in chosen)

    def _settle(self, swarm: Swarm) -> None:
        """Let all peers train, and check that they hold no resources of peers that are gone."""
        swarm.wait_left()
        swarm.wait_for_steps(SETTLED, "everybody trains")
        number = len(swarm.peers)
        self._note(f"{number} train: {[peer.peer_id for peer in swarm.peers]}")
        usual = self._num_handles
        held: list[Counter[str]] = []

        def is_usual() -> bool:
            held[:] = [handles(peer.process.pid) for peer in swarm.peers]
            numbers = {each.total() for each in held}
            return len(numbers) == 1 and numbers <= {usual.setdefault(number, held[0].total())}

        try:
            swarm.wait_until(is_usual, f"{number} peers hold what {number} peers should")
        except RuntimeError as error:
            raise AssertionError(f"expected {usual} handles, by number of peers; held are {held}\n{error}") from error

    def _note(self, text: str) -> None:
        self._log.append(text)


def handles(pid: int) -> Counter[str]:
    """Resources of process `pid`: descriptors and mappings of shared memory, by kind."""
    folder = Path(f"/proc/{pid}/fd")
    kinds: Counter[str] = Counter()
    for name in os.listdir(folder):
        try:
            kinds[re.sub(r"[0-9a-f]{16}|[0-9]+", "N", os.readlink(folder / name))] += 1
        except FileNotFoundError:  # the descriptor is closed meanwhile
            continue
    maps = Path(f"/proc/{pid}/maps").read_text()
    kinds["mapped memfd"] = len({line.split()[4] for line in maps.splitlines() if "memfd:" in line})
    return kinds


def check_nothing_left(swarm: Swarm) -> None:
    """Check that no process of any session, no socket, no registry entry and no record is left."""
    folder = swarm.folder / swarm.config.swarm_name
    files = sorted(path.name for path in folder.iterdir())
    assert files == ["lock"], f"left in the registry: {files}"
    left = [pid for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))) if session_of(pid) in swarm.pids]
    assert not left, f"still running: {left}"


def session_of(pid: int) -> int:
    """The session of a process; -1 if it has ended."""
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return -1


def longest_gap_s(swarm: Swarm) -> float:
    first: dict[int, float] = {}
    for trace in swarm.traces().values():
        for step, time_s in trace.commits_s.items():
            first[step] = min(time_s, first.get(step, time_s))
    return max(first[step] - first[step - 1] for step in first if step - 1 in first)


def agreed(folder: Path, *, may_return: bool = False) -> list[Receipt]:
    """The receipts of all steps; checks that peers agree on them, and that they form one chain.

    `may_return`: peers may lack receipts of steps in between.
    """
    lines: dict[int, bytes] = {}
    for path in sorted(folder.glob("*.receipts.jsonl")):
        own = path.read_bytes().split(b"\n")[:-1]  # a death may have truncated the last line
        steps = [parse_receipt(json.loads(line)).step for line in own]
        in_order = sorted({*steps}) if may_return else list(range(steps[0], steps[0] + len(own))) if own else []
        assert steps == in_order, f"{path.name} has receipts of steps {steps}"
        for step, line in zip(steps, own, strict=True):
            assert lines.setdefault(step, line) == line, f"{path.name}: {line!r} is not {lines[step]!r}"
    receipts = [parse_receipt(json.loads(lines[step])) for step in sorted(lines)]
    check_chain(receipts)
    check_samples(receipts)
    return receipts


def check_chain(receipts: Sequence[Receipt]) -> None:
    """Check that there is one receipt of every step, in consecutive views."""
    assert [receipt.step for receipt in receipts] == list(range(len(receipts)))
    assert len({receipt.lineage for receipt in receipts}) == 1
    members: dict[int, list[tuple[str, int]]] = {}
    for before, receipt in zip([receipts[0], *receipts], receipts, strict=False):
        here = [(entry.peer_id, entry.incarnation) for entry in receipt.contributions]
        assert receipt.view_number >= before.view_number
        assert members.setdefault(receipt.view_number, here) == here, f"two views {receipt.view_number}"
        assert receipt.step == 0 or (receipt.state_digest and receipt.digest), f"step {receipt.step} has no digest"


def check_samples(receipts: Sequence[Receipt]) -> None:
    """Check that each position of the stream counts once, up to the last planned one, except returned ones."""
    state = SamplerState()
    used: set[int] = set()
    for receipt in receipts:
        counted = union(part for entry in receipt.contributions for part in entry.samples)
        state = fold(state, counted)
        for first, number in counted:
            part = range(first, first + number)
            assert used.isdisjoint(part), f"step {receipt.step} counts samples of {part} again"
            used.update(part)
    missing = {position for first, number in state.returned for position in range(first, first + number)}
    assert used.isdisjoint(missing) and used | missing == set(range(state.position))
