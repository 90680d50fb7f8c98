"""Catch-up of a simulated peer: the state and steps that it sends to peers without a seat, or receives without one.

In runs with scripts' own operations (`Plan.own_every`) these are ordinary steps of the members. An observer that waits
in one can only be fed it; a peer whose script raises there is restarted.
"""

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from gossip import Member, Stamp
from gossip.effects import Apply, DropState, DropStep, Feed, Load
from gossip.progress import NOTHING_DONE

from .invariants import Violation
from .parameters import Parameters
from .plan import PACE
from .report import brief
from .shares import Shares
from .training import Outcome

if TYPE_CHECKING:
    from tests.simulation import Simulation

    from .peer import Peer

MOST_FED = 4
FED_LOST = 0.03
LOOK_S = 0.02
"""Interval at which a held script is polled."""
LONGEST_RUN_S = 8.0
"""Longest step of a slow observer, so that one that begins during the faults ends long before the run."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A data frame: the state after `step`; `digest` is of the chain up to it, `members` are on its receipt.

    `is_mixed`: the members are of several numerics classes. `is_due`: rows are due. `numerics`: the donor's class.
    `donors`: if there are several, the slices of the state come separately, and `digests` are theirs.
    """

    donor: Member
    stamp: Stamp
    step: int
    digest: bytes
    state: Parameters
    members: tuple[str, ...]
    is_mixed: bool
    numerics: bytes
    is_due: bool
    donors: tuple[Member, ...] = ()
    digests: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Fed:
    """A data frame: a committed step of a swarm, for an observer."""

    lineage: bytes
    step: int
    previous: bytes
    digest: bytes
    outcome: Outcome
    members: tuple[str, ...]
    is_due: bool


class CatchUp:
    """Donor and observer of one peer. `follows`: the peer runs its loop while it has no seat.

    `slowness`: of that loop, until the faults end. `is_held`: whether the script is held.
    """

    def __init__(self, peer: "Peer", world: "Simulation", rng: Random) -> None:
        self.follows = False
        self.slowness = world.plan.slowness
        self.shares = Shares(peer, world)
        self._peer = peer
        self._world = world
        self._rng = rng
        self._asked: dict[tuple[Member, int], bool] = {}
        self._num_fed: dict[Member, int] = {}
        self._last_fed: dict[Member, int] = {}
        self._fed: dict[tuple[int, bytes], Fed] = {}
        self._states: dict[tuple[int, bytes], Snapshot] = {}
        self.is_held = self._is_loading = False

    def is_own(self, step: int) -> bool:
        """Whether `step` is an operation of the script's own, whose result cannot be replaced by a state."""
        every = self._world.plan.own_every
        return every > 0 and step > 0 and step % every == 0

    def _fits(self) -> bool:
        return not self._world.plan.has_phases

    def _run_s(self) -> float:
        """Duration of a step in an observer's script."""
        slowness = 1.0 if self._world.is_calm else self.slowness
        return min(PACE * slowness * self._world.compute_s(self._rng), LONGEST_RUN_S)

    # Sent to others

    def install(self) -> None:
        """Forget requests at a new view: peers that still need a state ask again."""
        self._asked = {}

    def ask(self, member: Member, step: int) -> None:
        self._asked[member, step] = False
        self.serve()

    def serve(self) -> None:
        """Send the state to peers that asked, once it is that of the requested step, or for observers a later one.

        Observers get no state before an operation of the script's own: it is complete only after that operation.
        """
        peer, training = self._peer, self._peer.training
        if not self.is_own(peer.done + 1):
            peer.perform(peer.core.state_available(peer.now(), peer.done))
        self.shares.serve()
        if peer.core.has_to_go:
            return
        for (member, step), served in self._asked.items():
            has_seat = peer.view is not None and peer.view.since(member) is not None
            is_later = step <= peer.done and not has_seat and not self.is_own(peer.done + 1)
            is_early = has_seat and step == peer.done and self.is_own(step + 1) and self._fits()
            if is_early:
                peer.declare_dead(member, "it came in an operation, where nobody has a whole state", None)
                return
            if not served and (is_later or (step == peer.done and has_seat)):
                if why := training.open_step.why_damaged(training.state.digest):
                    peer.go_damaged(why)
                    return
                self._asked[member, step] = True
                stamp, digest = peer.core.stamp, peer.core.digest
                numerics = peer.core.numerics
                given = training.state, training.members, training.is_mixed, numerics, training.open_step.agreed.is_due
                snapshot = self.shares.split(member, Snapshot(peer.member, stamp, peer.done, digest, *given))
                self._world.clock.after(self._rng.uniform(0.0, 0.2), peer, "copied", self._give, member, snapshot)

    def _give(self, member: Member, snapshot: Snapshot) -> None:
        other = self._world.peers[member]
        self._world.network.send_data(self._peer, other, other.catch_up.take_state, snapshot)

    def feed(self, feed: Feed) -> None:
        """Feed an observer. The queue to each is short: steps that do not fit are dropped, and requested again.

        A gap never begins with an operation of the script's own.
        """
        is_left_out = self._num_fed.get(feed.member, 0) >= MOST_FED or self._rng.random() < FED_LOST
        is_needed = self.is_own(feed.step) and self._last_fed.get(feed.member) == feed.step - 1
        if is_left_out and not is_needed:
            self._world.invariants.seen["feeds dropped"] += 1
            return
        self._num_fed[feed.member] = self._num_fed.get(feed.member, 0) + 1
        self._last_fed[feed.member] = feed.step
        training = self._peer.training
        fed = Fed(
            self._peer.core.stamp.lineage,
            feed.step,
            feed.previous,
            feed.digest,
            training.results[feed.step],
            training.members,
            training.open_step.agreed.is_due,
        )
        self._world.clock.after(self._rng.uniform(0.0, 0.1), self._peer, "fed", self._feed_on, feed.member, fed)

    def _feed_on(self, member: Member, fed: Fed) -> None:
        self._num_fed[member] -= 1
        other = self._world.peers[member]
        self._world.network.send_data(self._peer, other, other.catch_up.take_fed, fed)

    # Received from others

    def take_fed(self, fed: Fed) -> None:
        self._peer.knows_steps = True
        if fed.step > self._peer.done:
            self._fed[fed.step, fed.digest] = fed  # two swarms may feed it
            is_own = self.is_own(fed.step)
            self._peer.perform(self._peer.core.fed(fed.step, fed.previous, fed.digest, 1, is_own=is_own))

    def discard(self, step: int, digest: bytes) -> None:
        self._fed.pop((step, digest), None)
        self._world.invariants.seen["steps let go"] += 1

    def perform(self, effect: Apply | Load | DropState | DropStep) -> None:
        match effect:
            case Apply(step, digest):
                self.apply(step, digest)
            case Load(step, digest):
                self.load(step, digest)
            case DropState(step, digest):
                self.drop(step, digest)
            case DropStep(step, digest):
                self.discard(step, digest)

    def apply(self, step: int, digest: bytes) -> None:
        """Run the observer's loop with a fed step."""
        self._world.clock.after(self._run_s(), self._peer, "applied", self._applied, step, digest)

    def _applied(self, step: int, digest: bytes) -> None:
        """The script has reached the end of this step and gets the result, unless a state was loaded meanwhile."""
        if self._peer.core.due != (step, digest):
            return
        asked = None if self.is_own(step) or self._is_loading else self._peer.core.waits(self._peer.now(), self._fits)
        self.is_held = asked is not None
        if asked is not None:
            self._world.invariants.seen["scripts held"] += 1
            self._peer.perform(asked)
            self._world.clock.after(LOOK_S, self._peer, "held", self._applied, step, digest)
        else:
            fed = self._fed[step, digest]
            self._peer.training.advance(step, fed.outcome)
            self._loaded(fed, "steps applied")

    def take_state(self, snapshot: Snapshot) -> None:
        """Receive a whole state, or the part that only the first donor sends."""
        core = self._peer.core
        if core.seated or not core.state_segment_arrived(self._peer.now(), snapshot.donor, snapshot.step):
            return
        if snapshot.donors:
            self.shares.take_base(snapshot)
        else:
            self.take_whole(snapshot)

    def take_whole(self, snapshot: Snapshot) -> None:
        """Keep a complete state."""
        step, digest = snapshot.step, snapshot.digest
        self._states[step, digest] = snapshot
        self._peer.knows_steps |= step > NOTHING_DONE
        self._peer.perform(self._peer.core.state_arrived(step, digest, snapshot.stamp.lineage, snapshot.numerics))

    def load(self, step: int, digest: bytes) -> None:
        """Load a state when the script next waits: immediately, unless it is running its loop."""
        snapshot = self._states.pop((step, digest))
        if self.follows and not self.is_held:
            self._is_loading = True
            self._world.clock.after(self._run_s(), self._peer, "loads", self._load, snapshot)
        else:
            self._load(snapshot)

    def drop(self, step: int, digest: bytes) -> None:
        del self._states[step, digest]

    def miss(self, step: int) -> None:
        """Restart the process: the script waits for the result of this step, which does not come.

        Also if another swarm than the one that fed it has admitted it.
        """
        view, digest = self._peer.core.view, self._peer.core.digest
        fed = [fed for fed in self._fed.values() if (fed.step, fed.previous) == (step, digest)]
        has_come = any(view is None or view.lineage == each.lineage for each in fed)
        if has_come or self._peer.core.seated or self._world.plan.is_quiet:
            why = "has come" if has_come else "was not lost"
            raise Violation("S22", f"{brief(self._peer.member)} misses operation {step}, and that {why}")
        self._world.invariants.seen["operations missed"] += 1
        self._world.end(self._peer, f"misses operation {step}", 1.0)

    def _load(self, snapshot: Snapshot) -> None:
        peer, training, step, digest = self._peer, self._peer.training, snapshot.step, snapshot.digest
        self._is_loading = False
        if self.follows and not peer.core.seated and self.is_own(peer.core.done + 1):
            self._states[step, digest] = snapshot
            self._world.invariants.seen["states declined"] += 1
            self._peer.perform(peer.core.declined(peer.now(), step, digest))
            return
        training.state, training.is_mixed = snapshot.state, snapshot.is_mixed
        own = None if peer.view is None else peer.view.numerics_of(peer.member)
        others = [seat for seat in peer.view.seats if seat.member != peer.member] if peer.view is not None else []
        is_foreign = own != snapshot.numerics and snapshot.step > 0
        if is_foreign and any(seat.numerics == own for seat in others):
            self._world.invariants.has_foreign_bits(peer.member)
        self.shares.clear()
        self._loaded(snapshot, "states loaded")

    def _loaded(self, given: Snapshot | Fed, what: str) -> None:
        peer, checks, step, digest = self._peer, self._world.invariants, given.step, given.digest
        self.is_held = False
        self._fed = {key: fed for key, fed in self._fed.items() if key[0] > step}
        peer.training.members = given.members
        peer.training.open_step.loaded(step, None, is_due=given.is_due)
        checks.loaded(peer.member, step)
        peer.changes_model(step)
        checks.seen[what] += 1
        peer.perform(peer.core.loaded(peer.now(), step, digest))
        slowness = 1.0 if self._world.is_calm else self.slowness
        self._world.clock.after(PACE * slowness * self._world.plan.compute_s, peer, "waits", self._wait, step)

    def _wait(self, step: int) -> None:
        """The script has reached the end of the step after `step`, for which nothing has arrived."""
        peer = self._peer
        is_over = peer.done != step or peer.core.seated or not self.follows
        if is_over or peer.core.due is not None or self.is_own(step + 1) or self._is_loading:
            return
        asked = peer.core.waits(peer.now(), self._fits)
        self.is_held = asked is not None
        peer.perform(asked or [])
        self._world.clock.after(LOOK_S, peer, "waits", self._wait, step)
