"""Failures of links: partitions of every shape, flapping links, links that break, peers behind bad lines."""

from collections.abc import Sequence
from itertools import permutations
from random import Random
from typing import TYPE_CHECKING

from .network import Cut, Pair

if TYPE_CHECKING:
    from tests.simulation import Simulation

SHAPES = ("halves", "one way", "bridge", "uniform", "isolate")
FLIP_FLOP_S = 20.0


class Partitions:
    """Cuts links of one run, and restores them. The end of all faults restores the rest."""

    def __init__(self, world: "Simulation", rng: Random) -> None:
        self._world = world
        self._rng = rng

    def partition(self) -> None:
        self.cut(self._shape(self._rng.choice(SHAPES)), self._rng.uniform(0.5, 8.0))

    def flapping(self) -> None:
        """Cut links periodically."""
        cut = self._cut(self._shape(self._rng.choice(SHAPES)))
        self._toggle(cut, self._rng.uniform(0.2, 3.0), self._world.clock.now + self._rng.uniform(2.0, 10.0))

    def flip_flop(self) -> None:
        """Cut one direction of one peer's links, for half of `FLIP_FLOP_S` at a time."""
        self._toggle(self._cut(self._shape("one way")), FLIP_FLOP_S / 2, self._world.clock.now + FLIP_FLOP_S)

    def swizzle(self) -> None:
        """Clog the links of a random subset one by one, and restore them in another order (FoundationDB)."""
        rng, names = self._rng, self._names()
        chosen = rng.sample(names, rng.randint(1, len(names)))
        pairs = [pair for pair in permutations(names, 2) if pair[0] in chosen or pair[1] in chosen]
        cut = self._cut(set())
        cut.holds_control = rng.random() < 0.5
        self._world.network.add(cut)
        for pair in pairs:
            self._later(rng.uniform(0.0, 2.0), self._clog, cut, pair)
            self._later(rng.uniform(2.0, 6.0), self._restore, cut, pair)

    def link_reset(self) -> None:
        """Break a connection: only data in flight on it is lost."""
        names = self._names()
        if len(names) >= 2:
            one, other = self._rng.sample(names, 2)
            self._world.network.reset(one, other)
            if self._rng.random() < 0.5:
                self._world.network.reset(other, one)

    def bad_peer(self) -> None:
        """Lose eight of ten control messages from and to one peer."""
        name = self._rng.choice(self._names())
        self._world.network.bad[name] = 0.8
        self._later(self._rng.uniform(2.0, 10.0), lambda: self._world.network.bad.pop(name, None))

    def isolate(self, names: Sequence[str], duration_s: float) -> None:
        """Cut these peers off from all others, in both directions."""
        self.cut(
            {pair for pair in permutations(self._names(), 2) if (pair[0] in names) != (pair[1] in names)}, duration_s
        )

    def cut(self, pairs: set[Pair], duration_s: float) -> None:
        cut = self._cut(pairs)
        self._world.network.add(cut)
        self._later(duration_s, self._world.network.remove, cut)

    # Shapes

    def _names(self) -> list[str]:
        return sorted({peer.member.peer_id for peer in self._world.alive()})

    def _cut(self, pairs: set[Pair]) -> Cut:
        self._world.invariants.seen["cuts"] += 1
        return Cut(pairs, holds_control=self._rng.random() < 0.15, holds_data=self._rng.random() < 0.6)

    def _shape(self, shape: str) -> set[Pair]:
        rng, names = self._rng, self._names()
        rng.shuffle(names)
        side = {name: rng.randrange(2) for name in names}
        match shape:
            case "uniform":
                side = {name: rng.randrange(3) for name in names}
            case "isolate" | "one way":
                side = dict.fromkeys(names, 0) | {names[0]: 1}
            case "bridge":  # one peer is connected to both sides
                del side[names[0]]
        pairs = {(a, b) for a, b in permutations(side, 2) if side[a] != side[b]}
        if shape != "one way":
            return pairs
        outwards = rng.random() < 0.5
        return {pair for pair in pairs if (pair[0] == names[0]) == outwards}

    def _toggle(self, cut: Cut, period_s: float, end: float) -> None:
        network = self._world.network
        self._world.network.add(cut)
        self._later(period_s / 2, network.remove, cut)
        if self._world.clock.now + period_s < end:
            self._later(period_s, self._toggle, cut, period_s, end)

    def _clog(self, cut: Cut, pair: Pair) -> None:
        cut.pairs.add(pair)
        self._world.network.changed()

    def _restore(self, cut: Cut, pair: Pair) -> None:
        cut.pairs.discard(pair)
        self._world.network.changed()

    def _later(self, delay_s: float, action: object, *args: object) -> None:
        self._world.clock.after(delay_s, None, "link", self._unless_calm, action, args)

    def _unless_calm(self, action: object, args: tuple[object, ...]) -> None:
        if not self._world.is_calm:
            assert callable(action)
            action(*args)
