"""Core queries: questions about the state of one peer, for its host and for people. They change nothing."""

from dataclasses import replace
from random import Random

from . import messages as m
from .claim import Claim, State
from .commit import Phase, StepMachine
from .config import CoreConfig
from .effects import Send
from .given_up import LONGEST_REASON
from .heir_election import ElectionStatus, HeirElection
from .joining import Joining
from .membership import Membership
from .observing import Observing
from .swim import Swim
from .view import NO_VIEW, Member, Stamp, View


class CoreQueries:
    """The parts of a core, and queries on them.

    Attributes:
        me: this peer.
        ended: it no longer takes part.
    """

    def __init__(self, me: Claim, *, rng: Random, config: CoreConfig, now: float) -> None:
        self.me = me.member
        self.ended = False
        self._swim = Swim(me, rng=rng, config=config.swim, now=now)
        self._steps = StepMachine(self.me)
        self._observing = Observing(self._swim, self._steps, config=config)
        self._membership = Membership(self._swim, self._steps, self._observing, rng=rng, config=config)
        self._view_change = self._membership.view_change
        self._joining = Joining(self._swim, self._steps, self._observing, config=config, now=now)
        parts = self._swim, self._steps, self._observing, self._joining.views, self._view_change.dead
        self._heirs = HeirElection(*parts, config=config)

    @property
    def phase(self) -> Phase:
        return self._steps.phase

    @property
    def view(self) -> View | None:
        """The installed view."""
        return self._steps.view

    @property
    def seated(self) -> bool:
        """Whether this peer has completed a barrier since it was admitted."""
        return self._steps.seated

    @property
    def done(self) -> int:
        """The last committed step."""
        return self._steps.done

    @property
    def digest(self) -> bytes:
        """Digest of the chain of steps up to `done`; empty without a state."""
        return self._steps.digest

    @property
    def knows_steps(self) -> bool:
        """Whether this peer has been told of a committed step, so that it must not found (R18)."""
        return self._observing.knows_steps

    @property
    def held_step(self) -> int:
        """The last step in the state of this peer, or in one that it is about to load; -1: there is none."""
        return self._observing.held

    def election_status(self, now: float) -> ElectionStatus | None:
        """Fate of the swarm, if this peer has no seat, and all members, on several hosts, are dead (R29)."""
        return None if self.view is not None or self.ended else self._heirs.status(now)

    @property
    def knows_members(self) -> bool:
        """Whether any member has named its view yet."""
        return self._joining.views.has_any

    @property
    def numerics(self) -> bytes:
        """The numerics class of this peer: that of its seat, if it has one."""
        seated = None if self.view is None else self.view.numerics_of(self.me)
        return self._joining.numerics if seated is None else seated

    @property
    def has_finished(self) -> bool:
        """Whether step done + 1 is finished here and waits for the others."""
        return self._steps.finish is not None

    @property
    def stamp(self) -> Stamp:
        """Stamp for each envelope."""
        return NO_VIEW if self.view is None else self.view.stamp

    @property
    def reason(self) -> str:
        """Why the view is as it is, or why there is none."""
        return self._joining.reason if self.view is None else self._view_change.reason

    @property
    def leaving(self) -> bool:
        return self._view_change.leaving

    @property
    def has_to_go(self) -> bool:
        """Whether this peer leaves because the others stay without it (R17, R28): it gives its state to no peer."""
        return self._steps.parting.goes_in == self.done + 1

    # Other peers

    def introduction(self) -> tuple[m.Gossip, m.Sync]:
        """Messages to the peer at a seed's address, which answers with all that it knows, itself included."""
        return self._swim.introduction()

    def bootstrap_claims(self) -> tuple[Claim, ...]:
        """Claims about peers to meet again after a return as another incarnation."""
        known = self._swim.known_claims()
        return tuple(replace(claim, state=State.ALIVE, accuser="") for claim in known)  # to be probed, lost or not

    def claims(self) -> tuple[Claim, ...]:
        """Claims with status about this peer and all others that are not gone, for displays of the swarm."""
        return self._swim.me, *self._swim.known_claims()

    def has_joiner_in_need(self, now: float) -> bool:
        """Whether the core must be told as soon as the state can be given, to a joiner. Any thread may ask."""
        return now < self._view_change.admission.in_need_until and self.view is not None and not self.ended

    def host_of(self, member: Member) -> str:
        """Host in the contact of `member`; empty: not known."""
        claim = self._swim.claim_of(member)
        return "" if claim is None else claim.contact.host

    def has_state(self, member: Member) -> bool:
        """Whether `member` is alive, stays, and has the state after the last committed step, as far as is known."""
        is_there = self._swim.is_alive(member) and member not in self._view_change.leavers
        return is_there and self._steps.is_seated(member)

    # Steps.

    def inner_steps_of_others(self) -> dict[Member, int]:
        """Local steps of the open round, as said by the members that have not finished it; a snapshot."""
        return self._steps.inner_steps_of_others()

    def may_finish(self, step: int, view_number: int, state_digest: bytes) -> bool:
        """Whether `step` may be finished in that view: not if another one is installed.

        Nor with parameters that differ from those of departed founders; see `contradiction`.
        """
        steps, view = self._steps, self._steps.view
        is_current = view is not None and view.number == view_number and steps.phase is Phase.ACTIVE
        is_open = is_current and step == steps.done + 1 and steps.finish is None
        return is_open and not (steps.parting.departed and steps.why_contradicted(state_digest))

    def holds_step(self, now: float) -> bool:
        """Whether to delay the finish of step done + 1: a view in agreement needs the state before it (R9)."""
        return self._steps.view is not None and not self.leaving and self._view_change.holds_step(now, self._steps.done)

    def member_progress(self, now: float, member: Member) -> tuple[int | None, float]:
        """Operations of step done + 1 that `member` is known to have submitted (None: all), and its silence in s."""
        return self._steps.num_submitted(member), self._swim.silence_s(now, member)

    def barrier_awaits(self, now: float) -> dict[Member, float]:
        """Members that the barrier of the installed view waits for, if it does, and the silence of each in s."""
        return {member: self._swim.silence_s(now, member) for member in self._steps.awaited()}

    def no_state_for(self, member: Member, reason: str) -> Send:
        """REFUSE to `member`, which has asked for the state; its host counts it as gone after that."""
        assert self._membership.run is not None
        trains_model = self._membership.run.description.trains_model
        return Send(member, m.Refuse(trains_model, (), reason[:LONGEST_REASON]), self.stamp)

    def awaited_state(self) -> tuple[int, tuple[Member, ...]] | None:
        """See `Observing.awaited_state`: the state that this peer, in a view, needs before it is seated."""
        return self._observing.awaited_state()

    @property
    def due(self) -> tuple[int, bytes] | None:
        """Number and digest of the fed step to run now."""
        return None if self.ended or self.leaving else self._observing.due
