"""What goes wrong in a run, and when: at random moments, and aimed at what just happened."""

from random import Random
from typing import TYPE_CHECKING

from gossip import Phase
from gossip.messages import Committed, Effect, Installed

from .peer import Peer

if TYPE_CHECKING:
    from tests.simulation import Simulation

WEIGHTS = {
    "crash": 3,
    "two crashes": 1,
    "crash between two sends": 2,
    "pause": 2,
    "join": 3,
    "leave": 1,
    "false link loss": 1,
    "abort": 1,
    "aimed": 4,
}
LOST_ON_PURPOSE = 0.02


class Faults:
    """Draws faults until `end`. Crashes are withheld, mostly, where nobody would be left to go on."""

    def __init__(self, world: "Simulation", rng: Random, *, end: float, most_peers: int) -> None:
        self._world = world
        self._rng = rng
        self._end = end
        self._most_peers = most_peers
        self._mean_pause_s = rng.choice((0.5, 1.0, 2.0, 4.0))
        self._armed: str | None = None

    def plan(self) -> None:
        self._world.clock.after(1.0 + self._rng.expovariate(1 / self._mean_pause_s), None, "fault", self._strike)

    def _strike(self) -> None:
        if self._world.clock.now >= self._end:
            return
        kind = self._rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        alive = self._world.alive()
        someone = self._rng.choice(alive) if alive else None
        if kind == "join" and len(alive) < self._most_peers:
            self._world.launch()
        elif kind == "aimed":
            self._armed = self._rng.choice(("finish", "commit", "install"))
        elif someone is not None:
            self._hit(kind, someone)
        self._world.clock.after(self._rng.expovariate(1 / self._mean_pause_s), None, "fault", self._strike)

    def on(self, effect: Effect, peer: Peer) -> None:
        if isinstance(effect, Committed):
            self._aim("commit", peer)
        elif isinstance(effect, Installed):
            self._aim("install", peer)

    def on_finish(self, peer: Peer) -> None:
        self._aim("finish", peer)

    def _aim(self, what: str, peer: Peer) -> None:
        """Hit the first to do this, or another one, soon or between two effects."""
        if self._armed != what or self._world.clock.now >= self._end:
            return
        self._armed = None
        victim = peer if self._rng.random() < 0.6 else self._rng.choice(self._world.alive())
        kind = self._rng.choice(("crash", "crash between two sends", "pause", "false link loss"))
        self._world.clock.after(self._rng.choice((0.0, 0.01, 0.1)), victim, "aimed", self._hit, kind, victim)

    def _hit(self, kind: str, peer: Peer) -> None:
        rng, world = self._rng, self._world
        match kind:
            case "crash" | "two crashes" | "crash between two sends":
                if not self._spare(peer) or rng.random() < LOST_ON_PURPOSE:
                    world.invariants.seen["crashes"] += 1
                    if kind == "crash between two sends":
                        peer.doomed = True
                    else:
                        world.end(peer, "crashes", restart=rng.random() < 0.7)
                if kind == "two crashes" and world.alive():
                    self._hit("crash", rng.choice(world.alive()))
            case "pause":
                world.invariants.seen["pauses"] += 1
                peer.paused_until = world.clock.now + rng.uniform(0.1, 5.0)
            case "leave":
                staying = [other for other in world.alive() if other.active and not other.leaving and other is not peer]
                if peer.active and not peer.leaving and len(staying) >= 2:
                    peer.leave()
            case "false link loss":
                reporters = [p for p in world.alive() if p.view is not None and peer.member in p.watched]
                if reporters and not self._spare(peer):
                    world.invariants.seen["false link losses"] += 1
                    world.condemned.add(peer.member)
                    rng.choice(reporters).bury(peer.member, "link lost")
            case "abort":
                if peer.core.phase is Phase.ACTIVE and peer.active and peer.may_abort():
                    peer.abort()

    def _spare(self, peer: Peer) -> bool:
        """Whether nobody could go on without `peer`."""
        return self._world.is_lost([other for other in self._world.alive() if other is not peer and not other.doomed])
