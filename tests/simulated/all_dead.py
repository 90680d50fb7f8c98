"""Drawn runs in which all members die, on two or three hosts, with cut links, and launchers' notices that are lost."""

from itertools import permutations
from random import Random

from tests.simulation import Failure

from .network import Cut, LinkConditions
from .peer import Peer
from .stage import ScriptedSimulation

WEATHERS = (
    LinkConditions(),
    LinkConditions(delay_s=0.02, data_delay_s=0.02),
    LinkConditions(loss=0.1, duplication=0.1, delay_s=0.1),
)
FIRST_MEMBERS = ("p1", "p2", "p3")
DEATHS_S = 1.5
"""Time from the first member's death to the last one's."""
LATEST_S = 100.0
"""Peers that wait without success have ended by then."""


class AllDead:
    """One run. `seen`: counts of the simulation's events."""

    def __init__(self, seed: int) -> None:
        self._rng = rng = Random(f"{seed}/all dead")
        num_hosts = rng.choice((2, 3))
        self._stage = ScriptedSimulation(
            seed=seed,
            num_peers=rng.randint(1, 3),
            num_hosts=num_hosts,
            follows=1.0,
            slowness=8.0,
            has_phases=True,
            weather=rng.choice(WEATHERS),
            restarts=True,
        )
        self.seen = self._stage.invariants.seen
        self._is_cut = rng.random() < 0.5
        self._is_odd = rng.random() < 0.3
        """Whether one of the observers dies, too."""
        self._misses_words = rng.random() < 0.5

    def run(self) -> None:
        """Run it. Raises Failure if an invariant breaks."""
        stage, rng = self._stage, self._rng
        stage.until_trained(2)
        old = next(iter(stage.invariants.lineages))
        observers = [f"p{len(stage.alive()) + 1 + index}" for index in range(rng.randint(1, 4))]
        for name in observers:
            stage.launch(name)
            stage.wait(rng.uniform(0.2, 2.0))
        if self._misses_words:
            stage.hosts.is_lost = lambda peer, dead: rng.random() < 0.5
        at = stage.clock.now + rng.uniform(0.0, 2.0)
        if self._is_cut:
            self._cut(at)
        for peer in stage.alive():
            stage.clock.at(at + rng.uniform(0.0, DEATHS_S), None, "dies", self._kill, peer.member.peer_id, old)
        stage.clock.at(at + DEATHS_S, None, "die", self._kill_rest, old)
        if self._is_odd:
            stage.clock.at(at + rng.uniform(0.0, 5.0), None, "dies", self._kill_one)
        stage.wait(at + LATEST_S - stage.clock.now)
        self._check(old)
        stage.end_well()

    def _check(self, old: bytes) -> None:
        """Check that one lineage continues, if nothing else goes wrong."""
        stage = self._stage
        new = [name for name, lineage in stage.invariants.lineages.items() if name != old and lineage.views]
        if len(new) > 1:
            raise Failure("S29", f"{len(new)} lineages go on where one has ended")
        self.seen["went on"] += len(new)
        self.seen["all ended"] += not stage.alive()
        holders = [peer for peer in stage.alive() if peer.core.held_step > 0]
        if not (self._is_cut or self._is_odd or self._misses_words or new) and holders:
            raise Failure("L1", f"nobody goes on, and {holders[0].member} holds a state")

    def _kill(self, name: str, lineage: bytes) -> None:
        peer = self._stage.named(name)
        if peer is not None and self._is_member(peer, lineage):
            self._stage.end(peer, "is killed")

    def _kill_rest(self, lineage: bytes) -> None:
        """Kill the members of `lineage`, repeatedly, since members that have died may have admitted others before."""
        for peer in self._stage.alive():
            self._kill(peer.member.peer_id, lineage)
        self._stage.clock.after(0.05, None, "die", self._kill_rest, lineage)

    def _kill_one(self) -> None:
        left = [peer for peer in self._stage.alive() if peer.view is None]
        if len(left) > 1:
            self._stage.end(self._rng.choice(left), "is killed")

    @staticmethod
    def _is_member(peer: Peer, lineage: bytes) -> bool:
        return peer.view is not None and peer.view.lineage == lineage

    def _cut(self, at: float) -> None:
        """Cut the links between one host and the others, in one or both directions, for a while or for good."""
        stage, rng = self._stage, self._rng
        apart, ways = rng.randrange(stage.plan.num_hosts), rng.choice((1, 2))
        pairs = {
            (a.member.peer_id, b.member.peer_id)
            for a, b in permutations(stage.alive(), 2)
            if (a.host == apart) > (b.host == apart) or (ways == 2 and (a.host == apart) != (b.host == apart))
        }
        cut = Cut(pairs, holds_control=rng.random() < 0.5)
        begin = at + rng.uniform(-2.0, 3.0)
        stage.clock.at(max(begin, stage.clock.now), None, "cut", stage.network.add, cut)
        if rng.random() < 0.6:
            stage.clock.at(begin + rng.uniform(1.0, 40.0), None, "mended", stage.network.remove, cut)


def run(seed: int) -> dict[str, int]:
    """Run this seed; returns the counts of its events."""
    story = AllDead(seed)
    story.run()
    return dict(story.seen)


def attempt(seed: int) -> dict[str, int] | str:
    """As `run`, or the text of the failure."""
    try:
        return run(seed)
    except Failure as failure:
        return f"seed={seed}: {failure}"
