"""Faults of a run: at random moments, and aimed at the latest event."""

from collections.abc import Callable, Collection
from random import Random
from typing import TYPE_CHECKING

from gossip.effects import Committed, Effect, Installed, WriteRecord

from .fault_stories import Plots
from .membership import number_on
from .partitions import Partitions
from .peer import Peer

if TYPE_CHECKING:
    from tests.simulation import Simulation

LOST_ON_PURPOSE = 0.02
AIMS = ("finish", "commit", "install", "promise or accept", "decide")


class Faults:
    """Draws faults until the calm. Most crashes that would leave no peer able to continue are withheld."""

    def __init__(self, world: "Simulation", rng: Random) -> None:
        self.partitions = Partitions(world, rng)
        self._plots = Plots(world, self, rng)
        self._world = world
        self._rng = rng
        self._armed: str | None = None
        self._kinds = [kind for kind, _ in world.plan.faults]
        self._weights = [weight for _, weight in world.plan.faults]
        self._faults: dict[str, Callable[[Peer], None]] = {
            "crash": self.crash,
            "two crashes": self._two_crashes,
            "crash between two effects": self._crash_between_effects,
            "silent crash": self._silent_crash,
            "quick restart": self._quick_restart,
            "mass restart": self._mass_restart,
            "host crash": self._host_crash,
            "full restart": self._full_restart,
            "pause": self._pause,
            "join": self._join,
            "join storm": self._join_storm,
            "leave": self._leave,
            "leave and join": self._leave_and_join,
            "all leave": self._all_leave,
            "false evidence": self._false_evidence,
            "abort": lambda peer: self._give_up(peer, withdraw=False),
            "withdraw": lambda peer: self._give_up(peer, withdraw=True),
            "partition": lambda _: self.partitions.partition(),
            "flapping": lambda _: self.partitions.flapping(),
            "flip-flop": lambda _: self.partitions.flip_flop(),
            "swizzle": lambda _: self.partitions.swizzle(),
            "link reset": lambda _: self.partitions.link_reset(),
            "bad peer": lambda _: self.partitions.bad_peer(),
            "silent launcher": self._silent_launcher,
            "damage": self._damage,
            "cut off": self._cut_off,
            "aimed": self._aim,
        }

    def plan(self) -> None:
        clock, plan = self._world.clock, self._world.plan
        if self._kinds:
            clock.after(1.0 + self._wait_s(), None, "fault", self._strike)
        for scripted in plan.script:
            clock.at(scripted.at, None, scripted.fault, self._act, scripted.fault, scripted.peer_id)
        if plan.plot:
            self._plots.begin(plan.plot)
        for _ in range(plan.num_damages):
            clock.at(self._rng.uniform(3.0, plan.calm_s), None, "damage", self._damage_one)

    def calm(self) -> None:
        self._armed = None
        self._plots.armed = ""

    def hit(self, kind: str, peer: Peer) -> None:
        if peer.alive and not self._world.is_calm:
            self._world.invariants.seen[f"fault: {kind}"] += 1
            self._faults[kind](peer)

    def _wait_s(self) -> float:
        return self._rng.expovariate(1 / self._world.plan.fault_interval_s)

    def _strike(self) -> None:
        if self._world.is_calm:
            return
        alive = self._world.alive()
        kind = self._rng.choices(self._kinds, self._weights)[0]
        if alive:
            self.hit(kind, self._rng.choice(alive))
        elif self._rng.random() < 0.5:
            self._world.launch()
        self._world.clock.after(self._wait_s(), None, "fault", self._strike)

    def _act(self, kind: str, peer_id: str) -> None:
        """Carry out a scripted fault, whatever its consequences."""
        peer = self._world.named(peer_id)
        if peer is None:
            self._world.launch(peer_id)
        elif kind == "crash":
            self._world.end(peer, "crashes")
        else:
            self.hit(kind, peer)

    # Aimed faults

    def on(self, effect: Effect, peer: Peer) -> None:
        if not self._armed and not self._plots.armed:
            return
        self._plots.on(effect, peer)
        match effect:
            case Committed():
                self._shoot("commit", peer)
            case Installed():
                self._shoot("install", peer)
            case WriteRecord(record) if peer.view is not None and number_on(record) > peer.view.number:
                self._shoot("decide", peer)
            case WriteRecord():
                self._shoot("promise or accept", peer)

    def on_finish(self, peer: Peer) -> None:
        self._shoot("finish", peer)

    def on_slow_read(self, reader: Peer) -> None:
        self._plots.on_slow_read(reader)

    def _aim(self, _: Peer) -> None:
        self._armed = self._rng.choice(AIMS)

    def _shoot(self, what: str, peer: Peer) -> None:
        """Hit the first peer that does `what`, or another one: now, between two of its next effects, or soon."""
        if self._armed != what or self._world.is_calm:
            return
        self._armed = None
        rng = self._rng
        victim = peer if rng.random() < 0.6 else rng.choice(self._world.alive())
        if rng.random() < 0.3 and self.may_end([victim]):
            victim.fuse = rng.randrange(4)
            return
        kind = rng.choice(("crash", "crash between two effects", "pause", "false evidence", "cut off"))
        self._world.clock.after(rng.choice((0.0, 0.01, 0.1)), victim, "aimed", self.hit, kind, victim)

    # Ends of processes

    def may_end(self, victims: Collection[Peer]) -> bool:
        return not self._world.would_be_lost(victims) or self._rng.random() < LOST_ON_PURPOSE

    def crash(self, peer: Peer) -> None:
        if self.may_end([peer]):
            delay_s = self._rng.uniform(0.05, 3.0) if self._rng.random() < 0.7 else None
            self._world.end(peer, "crashes", delay_s)

    def _two_crashes(self, peer: Peer) -> None:
        self.crash(peer)
        if alive := self._world.alive():
            self.crash(self._rng.choice(alive))

    def _crash_between_effects(self, peer: Peer) -> None:
        if self.may_end([peer]):
            peer.doomed = True

    def _silent_crash(self, peer: Peer) -> None:
        peer.unproven = True
        self._world.end(peer, "crashes, and nobody says so")

    def _quick_restart(self, peer: Peer) -> None:
        """Restart a process before any other peer misses it."""
        if self.may_end([peer]):
            self._world.end(peer, "crashes", self._rng.uniform(0.005, 0.2))

    def _mass_restart(self, peer: Peer) -> None:
        victims = [other for other in self._world.alive() if other is not peer]
        if self.may_end(victims):
            for victim in victims:
                self._world.end(victim, "mass restart", self._rng.uniform(0.01, 2.0))

    def _host_crash(self, peer: Peer) -> None:
        """End all processes of a host; its launcher is heard again at the calm, or is destroyed with its records."""
        hosts, rng = self._world.hosts, self._rng
        others = [host for host in range(self._world.plan.num_hosts) if host != peer.host]
        if not [host for host in others if host not in hosts.destroyed]:
            return
        victims = [other for other in self._world.alive() if other.host == peer.host]
        hosts.silent.add(peer.host)
        if rng.random() < 0.5:
            hosts.destroyed.add(peer.host)
        if not self.may_end(victims):
            hosts.silent.discard(peer.host)
            hosts.destroyed.discard(peer.host)
            return
        for victim in victims:
            self._world.end(victim, "host crash", rng.uniform(1.0, 4.0) if rng.random() < 0.5 else None)

    def _full_restart(self, _: Peer) -> None:
        """Kill all peers, without checkpoints: a new founder begins a new lineage."""
        names = [victim.member.peer_id for victim in self._world.alive()]
        for victim in self._world.alive():
            self._world.end(victim, "full restart")
        for name in names:
            self._world.clock.after(0.5 + self._rng.random(), None, "launch", self._world.launch, name)

    def _pause(self, peer: Peer) -> None:
        peer.paused_until = self._world.clock.now + self._rng.uniform(0.1, 5.0)

    # Joins and leaves

    def _join(self, _: Peer) -> None:
        if len(self._world.alive()) < self._world.plan.most_peers:
            self._world.launch()

    def _join_storm(self, peer: Peer) -> None:
        for _ in range(self._rng.randint(2, 4)):
            self._join(peer)

    def _leave(self, peer: Peer) -> None:
        staying = [p for p in self._world.alive() if p.active and not p.leaving and p is not peer]
        if peer.active and not peer.leaving and staying and not self._world.would_be_lost([peer]):
            peer.leave()

    def _leave_and_join(self, peer: Peer) -> None:
        self._leave(peer)
        self._join(peer)

    def _all_leave(self, _: Peer) -> None:
        for peer in self._world.alive():
            if not peer.leaving:
                peer.leave()

    # False evidence, and faults of scripts

    def _false_evidence(self, peer: Peer) -> None:
        """Let a peer's links to a living member be refused, once or for a while."""
        reporters = [p for p in self._world.alive() if p.view is not None and peer.member in p.watched]
        if reporters:
            reporter, until = self._rng.choice(reporters), self._rng.choice((0.0, 0.0, 2.0))
            self._world.hosts.refuse(reporter, peer, self._world.clock.now + until)

    def _damage_one(self) -> None:
        if trained := [peer for peer in self._world.alive() if peer.active]:
            self.hit("damage", self._rng.choice(trained))

    def _damage(self, peer: Peer) -> None:
        """Change the peer's parameters in its memory."""
        self._world.invariants.damaged.add(peer.member)
        peer.training.state = peer.training.state.damaged(f"at {self._world.clock.now}")

    def _give_up(self, _: Peer, *, withdraw: bool) -> None:
        if able := [peer for peer in self._world.alive() if peer.may_give_up()]:
            self._world.invariants.seen["withdrawn" if withdraw else "given up"] += 1
            self._rng.choice(able).give_up(withdraw)

    # Links and launchers

    def _silent_launcher(self, peer: Peer) -> None:
        """Silence the launcher of this peer's host about dead processes, until the calm."""
        self._world.hosts.silent.add(peer.host)

    def _cut_off(self, peer: Peer) -> None:
        self.partitions.isolate([peer.member.peer_id], self._rng.uniform(0.5, 6.0))
