"""Plots: sequences of faults, in a fixed order at critical moments, that random faults hardly ever produce.

C1 and C2 are the counterexamples of PROTOCOL.md.
"""

from random import Random
from typing import TYPE_CHECKING

from gossip.effects import Effect, Installed, WriteRecord

from .liveness import SILENT
from .membership import number_on

if TYPE_CHECKING:
    from tests.simulation import Simulation

    from .faults import Faults
    from .peer import Peer

SILENT_JOINER = "silent joiner"


class Plots:
    """The plot of one run. `armed`: the event that it waits for."""

    def __init__(self, world: "Simulation", faults: "Faults", rng: Random) -> None:
        self.armed = ""
        self._world = world
        self._faults = faults
        self._rng = rng
        self._num_left = 0
        self._begins = {
            "turnover": self._turnover,
            "deciders die": lambda: self._arm("deciders die", 4),
            "acceptors die": lambda: self._arm("acceptors die", 4),
            "late sleeper": self._late_sleeper,
            "admission massacre": lambda: self._arm("admission massacre", 1),
            "slow readers": lambda: self._arm("slow readers", 5),
            SILENT_JOINER: self._silent_joiner,
        }

    def begin(self, plot: str) -> None:
        self._after(self._rng.uniform(4.0, 10.0), self._begins[plot])

    def on(self, effect: Effect, peer: "Peer") -> None:
        """Advance the plot if it waits for this effect."""
        if self._num_left == 0 or not peer.alive or peer.view is None:
            return
        view = peer.view
        match self.armed, effect:
            case "deciders die", WriteRecord(record) if number_on(record) > view.number:
                self._may_die(peer)
            case "acceptors die", WriteRecord(record) if record.vote is not None and number_on(record) == view.number:
                self._may_die(peer)
            case "admission massacre", Installed(view) if any(seat.since == view.number for seat in view.seats):
                self._massacre()
            case "silent joiner", Installed(view) if self._world.named(SILENT) in self._members_of(peer):
                self._num_left = 0
                self._after(self._rng.uniform(0.0, 0.3), self._fall_silent)

    def on_slow_read(self, reader: "Peer") -> None:
        """C3: isolate a reader: others install a view without it, and reuse the memory that it is about to read."""
        if self.armed == "slow readers" and self._num_left:
            self._num_left -= 1
            self._faults.partitions.isolate([reader.member.peer_id], self._rng.uniform(3.0, 6.0))

    def _arm(self, what: str, times: int) -> None:
        self.armed, self._num_left = what, times

    def _after(self, delay_s: float, action: object, *args: object) -> None:
        self._world.clock.after(delay_s, None, "plot", self._unless_calm, action, args)

    def _unless_calm(self, action: object, args: tuple[object, ...]) -> None:
        if not self._world.is_calm:
            assert callable(action)
            action(*args)

    def _members_of(self, peer: "Peer") -> "list[Peer]":
        members = peer.view.members if peer.view is not None else ()
        return [self._world.peers[member] for member in members if self._world.peers[member].alive]

    # C1: the members that continued are killed, and the member that was cut off hears of it.

    def _turnover(self) -> None:
        active = [peer for peer in self._world.alive() if peer.active]
        if len(active) < 3:
            self._after(1.0, self._turnover)
            return
        one = self._rng.choice(active)
        self._faults.partitions.isolate([one.member.peer_id], self._rng.uniform(6.0, 12.0))
        self._after(1.0, self._turn_over, one, self._world.clock.now + 8.0)

    def _turn_over(self, one: "Peer", until: float) -> None:
        others = [peer for peer in self._world.alive() if peer.member.peer_id != one.member.peer_id]
        went_on = [p for p in others if p.active and p.view is not None and p.view.since(one.member) is None]
        if not went_on:
            if self._world.clock.now < until:
                self._after(0.25, self._turn_over, one, until)
            return
        comes_back = self._rng.random() < 0.5
        for peer in others:
            self._world.end(peer, "turnover", self._rng.uniform(0.5, 4.0) if comes_back else None)

    # C2: members that have decided, or accepted, are killed before they can say so.

    def _may_die(self, peer: "Peer") -> None:
        if self._rng.random() < 0.6 and not self._world.would_be_lost([peer]):
            self._num_left -= 1
            peer.fuse = self._rng.choice((0, 0, 1, 2))

    # All peers with the state die during an admission.

    def _massacre(self) -> None:
        self._num_left -= 1
        for peer in self._world.alive():
            if peer.view is not None and self._world.invariants.was_active(peer.view.lineage, peer.member):
                self._after(self._rng.uniform(0.0, 0.3), self._kill, peer)

    def _kill(self, peer: "Peer") -> None:
        self._world.end(peer, "massacre", self._rng.uniform(0.2, 3.0) if self._rng.random() < 0.5 else None)

    # A member wakes after all peers it knew have died.

    def _late_sleeper(self) -> None:
        active = [peer for peer in self._world.alive() if peer.active]
        if len(active) < 2:
            self._after(1.0, self._late_sleeper)
            return
        sleeper = self._rng.choice(active)
        others = [peer for peer in self._world.alive() if peer is not sleeper]
        length_s = 3.0 + 1.5 * len(others)
        if self._rng.random() < 0.5:
            sleeper.paused_until = self._world.clock.now + length_s
        else:
            self._faults.partitions.isolate([sleeper.member.peer_id], length_s)
        for index, peer in enumerate(others):
            self._after(2.5 + 1.5 * index, self._replace, peer)

    def _replace(self, peer: "Peer") -> None:
        if peer.alive and not self._world.would_be_lost([peer]):
            self._world.end(peer, "turnover", 0.3)

    # S10: a joiner falls silent at any moment of its admission.

    def _silent_joiner(self) -> None:
        self._world.launch(SILENT)
        if self._rng.random() < 0.5:
            self._arm(SILENT_JOINER, 1)
        else:
            self._after(self._rng.uniform(0.0, 2.0), self._fall_silent)

    def _fall_silent(self) -> None:
        peer = self._world.named(SILENT)
        if peer is None:
            return
        match self._rng.choice(("pause", "cut off", "crash")):
            case "pause":
                peer.paused_until = self._world.clock.now + self._rng.uniform(3.0, 8.0)
            case "cut off":
                self._faults.partitions.isolate([SILENT], self._rng.uniform(3.0, 8.0))
            case "crash":
                self._faults.hit("silent crash", peer)
