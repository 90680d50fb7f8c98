"""Hosts of simulated peers: proofs of death from kernels and launchers, and the acceptor pages of dead processes.

On one host a process learns of another's death within milliseconds, sometimes a second; on other hosts it learns from
the dead peer's own `shoal run`, late, and not at all while that is silent or cut off. With a death comes the acceptor
record, read after it. Records and notices of a `destroyed` host are lost. Besides proof there is evidence: messages to
a dead process are refused if its kernel lives.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from gossip import Member
from gossip.messages import AcceptorRecord
from gossip.view import NO_NUMERICS

from .memory import Arena

if TYPE_CHECKING:
    from tests.simulation import Simulation

    from .peer import Peer

RETRY_S = 0.5
REFUSED_S = 5.0


@dataclass(frozen=True, slots=True)
class ProcessTraits:
    """The properties of a process that stay the same when it returns as another member.

    Attributes:
        offset_s, rate: of its clock.
        former: incarnations of this process that were removed.
        hardware: its numerics class, without the view in which such hardware joined.
    """

    host: int
    arena: Arena
    offset_s: float = 0.0
    rate: float = 1.0
    former: tuple[Member, ...] = ()
    hardware: bytes = NO_NUMERICS


class Hosts:
    """Kernels, launchers, and the folders of acceptor pages."""

    def __init__(self, world: "Simulation", rng: Random) -> None:
        self.records: dict[Member, AcceptorRecord] = {}
        self.launching: set[int] = set()
        """Hosts whose launcher starts another process in place of a dead one, and says so (G15)."""
        self.silent: set[int] = set()
        self.destroyed: set[int] = set()
        self._world = world
        self._rng = rng
        self._owed: list[tuple[Peer, Peer]] = []
        self._places = list(world.plan.places)
        self.is_lost: Callable[[Peer, Peer], bool] = lambda peer, dead: False
        """Whether the launcher's notice of a death, which is sent once, does not reach this peer."""

    def pick(self) -> int:
        if self._places:
            return self._places.pop(0)
        return self._rng.choice([host for host in range(self._world.plan.num_hosts) if host not in self.destroyed])

    def write(self, member: Member, record: AcceptorRecord) -> None:
        """Write an acceptor page, which outlives its process."""
        self.records[member] = record

    def elsewhere(self, peer: "Peer") -> dict[str, str]:
        """Other hosts of the last view of the process that `peer` replaces, and an address at each."""
        own = peer.claim.contact.host
        records = [record for member, record in self.records.items() if member.peer_id == peer.member.peer_id]
        views = [record.view for record in records if record.view is not None]
        if peer.host not in self.launching or not views:
            return {}
        return {seat.contact.host: seat.contact.seed for seat in views[-1].seats if seat.contact.host != own}

    def proves(self, dead: "Peer") -> bool:
        """Whether all peers eventually learn of this death, with a record if there is one."""
        return dead.host not in self.destroyed and not dead.unproven

    def ended(self, dead: "Peer") -> None:
        """Give the peers that watch an ended process proof or a refused connection."""
        for peer in self._world.alive():
            for member in dead.incarnations:
                if member in peer.watched:
                    self.schedule_proof(peer, self._world.peers[member])
            if self.proves(dead) and dead.member in peer.watched and self._rng.random() < 0.5:
                delay_s, until = self._rng.uniform(0.02, 0.3), self._world.clock.now + REFUSED_S
                self._world.clock.after(delay_s, peer, "refused", self.refuse, peer, dead, until)

    def schedule_proof(self, peer: "Peer", dead: "Peer") -> None:
        """Schedule the proof that `peer` gets of the death of `dead`, which it knows, or whose link was refused."""
        if not self.proves(dead):
            return
        rng = self._rng
        if dead.host == peer.host:
            delay_s = rng.uniform(0.001, 0.03) if rng.random() < 0.9 else rng.random()
        else:
            delay_s = rng.random()
        self._world.clock.after(delay_s, peer, "proof", self._prove, peer, dead)

    def _prove(self, peer: "Peer", dead: "Peer") -> None:
        if not self.proves(dead) or not peer.alive:
            return
        if dead.host != peer.host:
            if dead.host in self.silent:
                self._owed.append((peer, dead))
                return
            if self.is_lost(peer, dead):
                return
            if self._world.network.is_cut(dead.member.peer_id, peer.member.peer_id):
                self._world.clock.after(RETRY_S, peer, "proof", self._prove, peer, dead)
                return
        record = self.records.get(dead.member)
        if record is not None and self._rng.random() < 0.03:  # the page is found later than the proof of death
            self._world.clock.after(self._rng.random(), peer, "proof", self._prove, peer, dead)
            record = None
        peer.declare_dead(dead.member, "process ended", record)

    def refuse(self, peer: "Peer", other: "Peer", until: float) -> None:
        """Report to `peer` that the port of `other` is closed, as long as it tries; the cause may be a third party."""
        clock, names = self._world.clock, (other.member.peer_id, peer.member.peer_id)
        is_over = clock.now > until or other.member not in peer.watched or (self._world.is_calm and other.alive)
        if is_over or not peer.alive:
            return
        if not self._world.network.is_cut(*names) and not self._world.network.is_cut(*reversed(names)):
            peer.refuse(other.member, "its port is closed")
        clock.after(RETRY_S, peer, "refused", self.refuse, peer, other, until)

    def calm(self) -> None:
        """Let all living launchers be heard."""
        self.silent = set()
        owed, self._owed = self._owed, []
        for peer, dead in owed:
            self._world.clock.after(self._rng.random(), peer, "proof", self._prove, peer, dead)
