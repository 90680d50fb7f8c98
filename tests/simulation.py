"""Deterministic simulation of the protocol: whole swarms of the cores that ship, in virtual time.

`python -m tests.simulation --seeds 100 --first 0` runs as many schedules of loss, duplication, reordering, crashes,
restarts, pauses, joins and leaves, and checks the invariants of research/step-commit.md after every event. A run that
breaks one prints its seed and its last events. Leaves out: partitions, unsound proof, the quorum policy `live`.
"""

import argparse
import sys
from collections import Counter, deque
from collections.abc import Collection
from dataclasses import dataclass
from random import Random

from gossip import Member, is_quorum
from gossip.messages import NOTHING_DONE

from .simulated.faults import Faults
from .simulated.invariants import Invariants, Violation
from .simulated.mutants import MUTANTS
from .simulated.network import Clock, Network, Weather
from .simulated.peer import Peer
from .simulated.report import brief

FAULTS_END_S = 25.0
END_S = 45.0
MOST_PEERS = 6


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run went."""

    seed: int
    trace: str
    num_events: int
    seen: Counter[str]


class Failure(Exception):
    """A run broke an invariant. Its text is all that is needed to look into it."""

    def __init__(self, invariant: str, text: str) -> None:
        super().__init__(text)
        self.invariant = invariant


class Simulation:
    """One run."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = Random(f"{seed}/world")
        self.clock = Clock()
        self.weather = Weather.draw(self.rng)
        self.network = Network(self.clock, Random(f"{seed}/network"), self.weather)
        self.invariants = Invariants()
        self.peers: dict[Member, Peer] = {}
        self.faults = Faults(self, Random(f"{seed}/faults"), end=FAULTS_END_S, most_peers=MOST_PEERS)
        self.recent: deque[tuple[float, object, str, object]] = deque(maxlen=60)
        self._mean_compute_s = self.rng.choice((0.05, 0.2, 0.4))
        self.condemned: set[Member] = set()
        self._num_names = 0
        self._num_processes = 0
        self._done_after_faults = 0

    def run(self) -> Outcome:
        try:
            self._begin()
            while event := self.clock.advance(END_S):
                _, _, who, what, action, args = event
                self.recent.append((self.clock.now, who and who.member, what, args))
                action(*args)
            self._judge_liveness()
        except Exception as error:  # of any kind: it is a finding, and worth nothing without its seed
            invariant = error.invariant if isinstance(error, Violation) else type(error).__name__
            raise Failure(invariant, self._describe(error)) from error
        return Outcome(self.seed, self.clock.trace(), self.clock.num_events, self.invariants.seen)

    def _begin(self) -> None:
        num_peers = self.rng.randint(2, 5)
        self.launch(founding_size=self.rng.choice((1, 2)))
        for _ in range(num_peers - 1):
            self.clock.after(self.rng.choice((0.0, self.rng.uniform(0.0, 2.0))), None, "launch", self.launch)
        self.clock.after(FAULTS_END_S, None, "calm", self._calm)
        self.faults.plan()

    def _calm(self) -> None:
        self._done_after_faults = self.invariants.last_committed
        for peer in self.peers.values():
            peer.doomed = False

    def alive(self) -> list[Peer]:
        return [peer for peer in self.peers.values() if peer.alive]

    def compute_s(self, rng: Random) -> float:
        return self._mean_compute_s * rng.uniform(0.5, 1.5)

    # Processes start and end.

    def launch(self, peer_id: str = "", founding_size: int | None = None) -> None:
        if not peer_id:
            self._num_names += 1
            peer_id = f"p{self._num_names}"
        self._num_processes += 1
        peer = Peer(self, Member(peer_id, self._num_processes))
        others = self.alive()
        self.peers[peer.member] = peer
        peer.start(others, founding_size)

    def end(self, peer: Peer, reason: str, restart: bool = False) -> None:
        """The process is gone, and the kernel tells every other one in a while."""
        if not peer.alive:
            return
        peer.alive = peer.active = False
        self.recent.append((self.clock.now, peer.member, "ends", reason))
        for other in self.alive():
            if peer.member in other.watched:
                self.announce(other, peer.member, "process ended")
        if restart:
            self.invariants.seen["restarts"] += 1
            delay_s = self.rng.uniform(0.05, 3.0)
            self.clock.after(delay_s, None, "restart", self.launch, peer.member.peer_id)

    def announce(self, to: Peer, member: Member, reason: str) -> None:
        self.clock.after(self.rng.random(), to, "death", to.bury, member, reason)

    def is_lost(self, peers: Collection[Peer]) -> bool:
        """Whether these alone can never have another view: no quorum of the last that they know, or no state in it.

        A member that another one takes for dead will be excluded, so it is none of those who are left.
        """
        last = max((peer.view for peer in peers if peer.view is not None), key=lambda view: view.number, default=None)
        if last is None:
            return True
        here = [peer.member for peer in peers if peer.member in last.members and peer.member not in self.condemned]
        return not is_quorum(here, last) or not any(self.invariants.was_active(member) for member in here)

    # What is said of the run.

    def note(self, peer: Peer, effect: object) -> None:
        self.recent.append((self.clock.now, peer.member, "effect", effect))

    def _judge_liveness(self) -> None:
        """L1: everybody alive takes part in one view, at the same step or the next, and steps commit."""
        checks, alive = self.invariants, self.alive()
        if self.is_lost(alive):
            checks.seen["state lost"] += 1
            return
        assert checks.latest is not None
        lagging = [peer for peer in alive if not peer.active or peer.view != checks.latest]
        if lagging or sorted(peer.member for peer in alive) != sorted(checks.latest.members):
            raise Violation(
                "L1", f"not everybody is active in {brief(checks.latest)}: {brief([p.member for p in lagging])}"
            )
        if len(alive) < checks.latest.founding_size and checks.last_committed == NOTHING_DONE:
            checks.seen["step 0 held"] += 1
            return
        done = [peer.done for peer in alive]
        if max(done) - min(done) > 1 or min(done) <= self._done_after_faults:
            raise Violation("L1", f"done is {done} and was {self._done_after_faults} when the faults ended")

    def _describe(self, error: Exception) -> str:
        lines = [f"seed={self.seed} at {self.clock.now:.3f} s: {type(error).__name__} {error}", f"  {self.weather}"]
        for peer in self.alive():
            view = peer.view and peer.view.number
            lines.append(
                f"  {brief(peer.member)}: {peer.core.phase.name}, view {view}, done {peer.done}, "
                f"{'active' if peer.active else 'waits'}, paused until {peer.paused_until:.3f}: {peer.core.reason}"
            )
        lines += [f"  last events (of {self.clock.num_events}):"]
        lines += [f"    {now:9.4f} {brief(who):>6} {what}: {brief(detail)}" for now, who, what, detail in self.recent]
        return "\n".join(lines)


def run(seed: int) -> Outcome:
    """One run. Raises Failure with all that was seen."""
    return Simulation(seed).run()


def main() -> int:
    from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=100, metavar="N", help="how many runs")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the first seed; the others follow it")
    parser.add_argument("--verbose", action="store_true", help="a line for each run")
    parser.add_argument("--keep-going", action="store_true", help="show every failure, not only the first")
    parser.add_argument("--mutant", choices=MUTANTS, metavar="NAME", help=f"one of: {'; '.join(MUTANTS)}")
    arguments = parser.parse_args()
    for where, name, replacement in MUTANTS[arguments.mutant].patches if arguments.mutant else ():
        setattr(where, name, replacement)
    seen: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    with Progress(*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn()) as progress:
        for seed in progress.track(range(arguments.first, arguments.first + arguments.seeds), description="seeds"):
            try:
                outcome = run(seed)
            except Failure as failure:
                progress.console.print(str(failure), markup=False, highlight=False, soft_wrap=True)
                failures[failure.invariant] += 1
                if not arguments.keep_going:
                    break
                continue
            if arguments.verbose:
                progress.console.print(f"seed={seed} {outcome.trace} {_summary(outcome.seen)}", highlight=False)
            seen += outcome.seen
            seen["events"] += outcome.num_events
            seen["runs"] += 1
    print(_summary(seen))
    print(f"violated: {dict(failures)}" if failures else "no invariant violated")
    return 1 if failures else 0


def _summary(seen: Counter[str]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in sorted(seen.items()))


if __name__ == "__main__":
    sys.exit(main())
