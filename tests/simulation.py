"""Deterministic simulation of the protocol: whole swarms of the production cores, in virtual time.

`python -m tests.simulation --seeds 100 --first 0` runs one schedule per seed, of lossy links, partitions, crashes,
restarts, pauses, joins and leaves, with late proofs and late reads of lent memory. The invariants of PROTOCOL.md (S, I
and L1) are checked after every event; a run that breaks one prints its seed and its last events.
Leaves out: unsound proof, records that are rolled back.

`Simulation(seed, Plan(...))` runs a given plan instead of the one drawn by the seed; `deaths` has the cost of each
death.
"""

import sys
from collections import Counter, deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from gossip import Claim, Member, View
from p2p.host.entry import Entry, Role, heir

from .simulated.calling import Calling
from .simulated.faults import Faults
from .simulated.hosts import Hosts, ProcessTraits
from .simulated.invariants import Invariants, Lineage, Violation
from .simulated.liveness import judge, suspicions, why_lost
from .simulated.membership import MOST_CHURN, Membership
from .simulated.memory import Arena
from .simulated.network import Clock, Network
from .simulated.peer import Peer
from .simulated.plan import Plan
from .simulated.report import brief, describe

REFUTED_S = 5.0
"""A suspicion of a living member lasts for less than this, on links that mostly work."""
CLOCK_BACK = 0.03
"""Share of the restarts after which the host's clock is set back."""
FOUNDING_S = 5.0
"""A founder knows every peer that it could have heard for this long."""
SETTLED_S = 12.0
"""After this time without faults, no member is removed any more."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a run."""

    seed: int
    trace: str
    num_events: int
    seen: Counter[str]


@dataclass(frozen=True, slots=True)
class Death:
    """A member's death, and its cost for the others.

    Attributes:
        view: the view in which it had a seat.
        activated: when each other member of that view had activated one without it.
    """

    member: Member
    reason: str
    at: float
    is_proven: bool
    view: View
    activated: dict[Member, float] = field(default_factory=dict)


class Failure(Exception):
    """A run broke an invariant. The text has all that is needed to reproduce it."""

    def __init__(self, invariant: str, text: str) -> None:
        super().__init__(invariant, text)
        self.invariant = invariant
        self.text = text

    def __str__(self) -> str:
        return self.text


class Simulation:
    """One run."""

    def __init__(self, seed: int, plan: Plan | None = None) -> None:
        self.seed = seed
        self.rng = Random(f"{seed}/world")
        self.plan = plan if plan is not None else Plan.of(seed)
        self.clock = Clock()
        self.invariants = Invariants()
        self.membership = Membership(self.invariants)
        self.network = Network(self.clock, Random(f"{seed}/network"), self.plan.weather, self.invariants.seen)
        self.hosts = Hosts(self, Random(f"{seed}/hosts"))
        self.peers: dict[Member, Peer] = {}
        self.faults = Faults(self, Random(f"{seed}/faults"))
        self.recent: deque[tuple[float, object, str, object]] = deque(maxlen=80)
        self.deaths: list[Death] = []
        self.is_calm = False
        self.done_at_calm: dict[bytes, int] = {}
        self.met_strangers: dict[Member, tuple[bytes, str]] = {}
        self.suspicions: set[tuple[Member, Member, int]] = set()
        self._alive: dict[str, Peer] = {}
        self._groups: dict[str, int] | None = None
        self._num_names = 0
        self._num_processes = 0
        self._num_lineages = 0

    def run(self) -> Outcome:
        plan = self.plan
        try:
            self._begin()
            while event := self.clock.advance(plan.end_s):
                _, _, who, what, action, args = event
                self.recent.append((self.clock.now, who and who.member, what, args))
                action(*args)
            judge(self)
        except Exception as error:  # of any kind: each is a finding, and needs its seed
            invariant = error.invariant if isinstance(error, Violation) else type(error).__name__
            raise Failure(invariant, describe(self, error)) from error
        return Outcome(self.seed, self.clock.trace(), self.clock.num_events, self.invariants.seen)

    def _begin(self) -> None:
        plan, clock = self.plan, self.clock
        names = [f"p{index + 1}" for index in range(plan.num_peers)]
        self._num_names = len(names)
        if plan.founding == "two":
            self._groups = {name: index % 2 for index, name in enumerate(names)}
            clock.after(self.rng.uniform(3.0, 10.0), None, "meet", self._join_groups)
        for index, name in enumerate(names):
            is_founder = index == 0 or (index == 1 and plan.founding == "two")
            delay_s = 0.0 if is_founder else self.rng.uniform(0.0, plan.arrival_s)
            clock.after(delay_s, None, "launch", self.launch, name, is_founder)
        clock.after(plan.calm_s, None, "calm", self._calm)
        clock.at(plan.end_s - REFUTED_S, None, "suspicions", self._note_suspicions)
        self.faults.plan()

    def _calm(self) -> None:
        """End all faults; delayed messages and processes continue."""
        self.is_calm = True
        self.done_at_calm = {name: lineage.last_committed for name, lineage in self.invariants.lineages.items()}
        self.network.calm()
        self.hosts.calm()
        self.faults.calm()
        for peer in self.alive():
            peer.doomed, peer.fuse = False, None
            peer.paused_until = self.clock.now
        if self._groups is not None:
            self._join_groups()
        for name in self.seeds:  # otherwise joiners would not find the living peers
            self.launch(name)

    def _note_suspicions(self) -> None:
        self.suspicions = suspicions(self)

    def _join_groups(self) -> None:
        """Let two groups of peers that did not know each other meet."""
        groups, self._groups = self._groups, None
        alive = self.alive()
        if groups is not None:
            for peer in alive:
                strangers = [p for p in alive if groups[p.member.peer_id] != groups[peer.member.peer_id]]
                if strangers:
                    self.clock.after(0.0, peer, "meets", peer.meet, [self.rng.choice(strangers).claim])

    def alive(self) -> list[Peer]:
        return list(self._alive.values())

    def named(self, peer_id: str) -> Peer | None:
        return self._alive.get(peer_id)

    def compute_s(self, rng: Random) -> float:
        seconds = self.plan.compute_s * rng.uniform(0.5, 1.5)
        return 5 * seconds if rng.random() < 0.01 else seconds  # a straggler

    # Start and end of processes

    def launch(self, peer_id: str = "", is_founder: bool = False, *, behind: Member | None = None) -> None:
        """Start a process; it founds if `is_founder`, or if no other peer is alive.

        Args:
            behind: an earlier process of the same name; the clock was set back, so the new incarnation is smaller.
        """
        if not peer_id:
            self._num_names += 1
            peer_id = f"p{self._num_names}"
        if peer_id in self._alive:
            return
        self.network.place(peer_id, list(self._alive))
        if self._groups is not None:
            self._groups.setdefault(peer_id, self.rng.randrange(2))
        rng, drift = self.rng, self.plan.drift
        place = ProcessTraits(self.hosts.pick(), Arena(), hardware=self.plan.hardware_of(peer_id))
        if drift:
            offset_s, rate = rng.uniform(0.0, 1000.0), 1.0 + rng.uniform(-drift, drift)
            place = replace(place, offset_s=offset_s, rate=rate)
        peer = self._enter(peer_id, place, behind)
        peer.meet(self.acquaintances_of(peer))
        if self.plan.calls:
            self._seek(peer)
        elif self.plan.founding == "seeds" and not self.invariants.lineages:
            seeds = tuple(f"p{index + 1}" for index in range(min(self.plan.num_peers, 3)))
            peer.found_from_seeds(seeds, self._lineage())
        elif is_founder or len(self._alive) == 1:
            peer.found(self._lineage())
        else:
            peer.ask_for_seat()

    @property
    def seeds(self) -> tuple[str, ...]:
        """The seeds: addresses that peers call."""
        return tuple(f"p{index + 1}" for index in range(self.plan.calls))

    def _seek(self, peer: Peer) -> None:
        """As p2p/loop/seat_request.py with seeds: a peer without a member on its host may found, if it is the first."""
        if any(other.host == peer.host and other.view is not None for other in self.alive()):
            peer.ask_for_seat()
        else:
            peer.found_from_seeds(self.seeds, self._lineage())

    def founded(self, founder: Peer, lineage: bytes) -> None:
        """S31: no peer founds while a member of another lineage lives that could be heard for long enough."""
        since = max(0.0, self.clock.now - FOUNDING_S)
        for other in self.alive() if self.plan.calls else ():
            names = other.member.peer_id, founder.member.peer_id
            is_cut = max(self.network.last_cut(*names), self.network.last_cut(*names[::-1])) > since
            is_deaf = is_cut or any(name in self.network.bad for name in names) or other.paused_until > since
            if other.view is not None and other.view.lineage != lineage and not (is_deaf or other.leaving):
                raise Violation("S31", f"{brief(founder.member)} founds {lineage!r}, and {brief(other.member)} lives")

    def _lineage(self) -> bytes:
        self._num_lineages += 1
        return f"lineage {self._num_lineages}".encode().ljust(16)

    def _enter(self, peer_id: str, place: ProcessTraits, behind: Member | None = None) -> Peer:
        self._num_processes += 1
        member = Member(peer_id, 10 * self._num_processes)
        if behind is not None and Member(peer_id, behind.incarnation - 5) not in self.peers:
            self.invariants.seen["clocks that went back"] += 1
            member = Member(peer_id, behind.incarnation - 5)
        peer = Peer(self, member, place)
        self.peers[peer.member] = self._alive[peer_id] = peer
        if self.plan.calls:
            self.clock.after(0.0, peer, "calls", Calling(peer, self).go_on)
        return peer

    def acquaintances_of(self, peer: Peer) -> list[Claim]:
        """The peers that a process finds by itself: all on its host, and two others by their addresses."""
        name, groups = peer.member.peer_id, self._groups
        others = [p for p in self.alive() if p is not peer]
        if groups is not None:
            others = [p for p in others if groups[p.member.peer_id] == groups[name]]
        near = [p for p in others if p.host == peer.host]
        far = [p for p in others if p.host != peer.host and not self.plan.calls]
        return [p.claim for p in (*near, *self.rng.sample(far, min(2, len(far))))]

    def end(self, peer: Peer, reason: str, restart_s: float | None = None) -> None:
        """End a process; after a delay the kernel tells the peers that watched it."""
        if not peer.alive:
            return
        now = self.clock.now
        self.recent.append((now, peer.member, "ends", reason))
        self.invariants.seen["ends"] += 1
        self._retire(peer)
        self.invariants.ended(peer.member, now)
        for member in peer.incarnations:
            self.peers[member].ended_at = now
        if peer.view is not None:
            self.deaths.append(Death(peer.member, reason, now, self.hosts.proves(peer), peer.view))
        self.hosts.ended(peer)
        if restart_s is not None:
            self.invariants.seen["restarts"] += 1
            behind = peer.member if self.rng.random() < CLOCK_BACK else None
            self.clock.after(restart_s, None, "restart", self._restart, peer.member.peer_id, behind)

    def _restart(self, peer_id: str, behind: Member | None) -> None:
        self.launch(peer_id, behind=behind)

    def come_back(self, peer: Peer, reason: str) -> None:
        """Let the process of a removed member return as a new member that keeps only its acquaintances."""
        self.recent.append((self.clock.now, peer.member, "is removed", reason))
        if self.invariants.seen["removed"] > MOST_CHURN:
            raise Violation("churn", f"{brief(peer.member)} is removed: {reason}")
        is_odd = bool(self.invariants.damaged) and reason.startswith("the parameters of")  # or those that stay are
        if not is_odd and (self.plan.is_quiet or self.clock.now > self.plan.calm_s + SETTLED_S):
            raise Violation("I14", f"{brief(peer.member)} is removed, and nothing had happened to it: {reason}")
        again = self._go_on_as_another(peer)
        again.meet(peer.core.bootstrap_claims())
        again.ask_for_seat()

    def _go_on_as_another(self, peer: Peer) -> Peer:
        self._retire(peer)
        peer.came_back = True
        former = (peer.member, *peer.place.former)
        again = self._enter(peer.member.peer_id, replace(peer.place, former=former))
        again.paused_until = peer.paused_until
        again.core.return_from(peer.core)
        return again

    def go_on_without_members(self, waiting: Sequence[Peer]) -> None:
        """After the death of all members, let these peers, which share a registry, continue (S26).

        As p2p/loop/seat_request.py: the production function chooses the heir.
        """
        said = {entry_of(peer): peer for peer in waiting}
        first = heir([*said])
        assert first is not None and first.held > 0
        if newer := [brief(peer.member) for peer in waiting if peer.core.held_step > first.held]:
            raise Violation(
                "S26", f"{first.peer_id} goes on with step {first.held}, and {newer[0]} holds a newer state"
            )
        founder = self._begin_lineage(said[first], ())
        for entry, peer in said.items():
            if entry != first:
                again = self._go_on_as_another(peer)
                again.meet([founder.claim])
                again.ask_for_seat()

    def inherit(self, peer: Peer, last: View) -> None:
        """After the death of all members, on several hosts, let this peer continue (R29)."""
        others = [p for p in self.alive() if p.view is not None and p.view.lineage == last.lineage]
        living = [p.member for p in others if self.invariants.was_active(last.lineage, p.member)]
        self.invariants.inherits(peer.member, last, living)
        self._begin_lineage(peer, peer.core.bootstrap_claims())

    def _begin_lineage(self, peer: Peer, acquaintances: Iterable[Claim]) -> Peer:
        lineage, state = self.lineage_after(peer), peer.training.state
        self.invariants.lineages.setdefault(lineage, Lineage()).truths[-1] = state.truths
        founder = self._go_on_as_another(peer)
        founder.training.state = state
        founder.meet(acquaintances)
        founder.found(lineage)
        return founder

    def lineage_after(self, peer: Peer) -> bytes:
        """The lineage of peers that continue with the state that `peer` holds of another lineage."""
        return self._lineage()

    def _retire(self, peer: Peer) -> None:
        peer.alive = peer.active = False
        self._alive.pop(peer.member.peer_id, None)
        self.membership.superseded.add(peer.member)

    def would_be_lost(self, victims: Collection[Peer]) -> bool:
        """Whether a lineage that could continue now could not without `victims` and peers that are about to die."""
        alive = self.alive()
        left = [p for p in alive if p not in victims and not p.doomed and p.fuse is None and not p.leaving]
        for lineage in self.invariants.lineages.values():
            if not why_lost(self, lineage, alive) and why_lost(self, lineage, left):
                return True
        return not self.invariants.lineages

    # Observations

    def note(self, peer: Peer, effect: object) -> None:
        self.recent.append((self.clock.now, peer.member, "effect", effect))

    def activated(self, peer: Peer, view: View) -> None:
        for death in self.deaths:
            is_without = view.number > death.view.number and view.since(death.member) is None
            if is_without and death.view.since(peer.member) is not None:
                death.activated.setdefault(peer.member, self.clock.now)

    def strangers(self, peer: Peer, reason: str) -> None:
        self.invariants.seen["strangers met"] += 1
        assert peer.view is not None
        self.met_strangers[peer.member] = peer.view.lineage, reason


def entry_of(peer: Peer) -> Entry:
    """The registry entry of a waiting peer that has published the step it holds."""
    return Entry(
        swarm="pond",
        peer_id=peer.member.peer_id,
        incarnation=peer.member.incarnation,
        role=Role.JOINER,
        control_address="",
        data_address="",
        pid=1,
        process_start=1,
        host=str(peer.host),
        held=max(peer.core.held_step, 0),
    )


def run(seed: int) -> Outcome:
    """Run one seed. Raises Failure if an invariant breaks."""
    return Simulation(seed).run()


if __name__ == "__main__":
    from .simulated.runner import main

    sys.exit(main())
