"""Joining: how a peer gets its first seat: it asks for one, or founds the swarm.

Leaves out: how it catches up meanwhile (observing.py), and what happens once a view seats it (commit.py).
"""

import math
from collections.abc import Sequence

from .commit import StepMachine
from .config import CoreConfig
from .effects import Effect, Refused, Removed, Send
from .founding import Foundation, Founding, KnownLineages
from .known_views import KnownViews
from .messages import Head, Join, LineageAnswer, LineageQuery, Refuse
from .numerics import apart, inherited
from .observing import Observing
from .progress import NOTHING_DONE
from .run_description import Run, RunDescription
from .swim import Swim
from .view import NO_NUMERICS, Member

NO_VIEW_YET = "not in a view yet"

MOST_STATES = 64
"""Most states that have arrived, and are not loaded."""


class Joining:
    """One peer without a seat. It asks for one once it has a `run`.

    `numerics`: its numerics class; `views`: those it has heard of.
    """

    def __init__(self, swim: Swim, steps: StepMachine, observing: Observing, *, config: CoreConfig, now: float) -> None:
        self.run: Run | None = None
        self.numerics = NO_NUMERICS
        self._states: dict[tuple[int, bytes], bytes] = {}
        self._reason = NO_VIEW_YET
        self._asked: tuple[Member, ...] = ()
        self._swim = swim
        self._steps = steps
        self._observing = observing
        self._config = config
        self.views = KnownViews()
        self._lineages = KnownLineages(now)
        self._from = NOTHING_DONE, b""
        self._founding: Founding | None = None
        self._foundation: Foundation | None = None

    @property
    def reason(self) -> str:
        """Why this peer has no seat yet: what it waits for, and which peers."""
        if waits_for := self._observing.waits_for:
            return waits_for
        if not self._asked or self._reason != NO_VIEW_YET:
            return self._reason
        return f"{NO_VIEW_YET}: asked {', '.join(map(str, self._asked))} for a seat"

    def begin(self, run: Run, *, follows: bool) -> None:
        self.run, self._observing.follows, self.numerics = run, follows, run.numerics
        self._observing.frozen = run.frozen
        if not follows and run.numerics != NO_NUMERICS:  # the barrier decides whose state it receives
            self.numerics = apart(run.numerics, self._swim.me.member, NOTHING_DONE)

    def state_arrived(self, step: int, digest: bytes, numerics: bytes) -> None:
        """The state after `step` has arrived, from a member of this numerics class."""
        self._states.pop((step, digest), None)
        self._states[step, digest] = numerics
        if len(self._states) > MOST_STATES:
            del self._states[next(iter(self._states))]

    def loaded(self, step: int, digest: bytes, *, is_run: bool) -> None:
        """This peer has loaded the state after `step`: its numerics class is its donor's, if it computes alike.

        `is_run`: it has run that step instead, with its fed results, and keeps the class of its own parameters.
        """
        donors = self._states.pop((step, digest), None)
        if donors is not None and not is_run and self.run is not None:
            self.numerics = inherited(self.run.numerics, donors, self._swim.me.member, step)

    def found_from_seeds(self, now: float, foundation: Foundation) -> None:
        """Found the swarm if this peer's address is the first of the seeds and no lineage is known.

        Raises:
            ValueError: no seeds, or duplicates.
        """
        own, times = self._swim.me.contact.seed, (now, self._config.founding_s, self._config.greeting_s)
        self._founding = Founding(foundation.seeds, own, foundation.size, *times, foundation.elsewhere)
        self._foundation = foundation

    def ask(self, targets: Sequence[Member] | None = None) -> list[Effect]:
        """Ask all peers, or `targets`, for a seat; and whether there is a swarm, if this peer may found one."""
        if self.run is None:
            return []
        asked = self._swim.alive() if targets is None else targets
        self._asked = tuple(asked) if targets is None else self._asked
        self._from = self._observing.asks_from()
        effects: list[Effect] = [Send(member, self._join(self.run.description, member)) for member in asked]
        if self._founding is not None and self._founding.founds:
            effects += [Send(member, LineageQuery()) for member in asked]
        return effects

    def _join(self, run: RunDescription, member: Member) -> Join:
        seat = self.views.number_for(member), self.numerics
        return Join(run, self._observing.follows, *self._from, *seat, *self._observing.pace_said())

    def receive(self, now: float, source: Member, lineage: bytes, body: Head | Refuse | LineageAnswer) -> list[Effect]:
        """Handle an answer to a joiner or founder. `source` is a member of `lineage`."""
        match body:
            case Head():
                return [] if self._steps.seated else self.hear_head(now, source, lineage, body)
            case Refuse(reason=reason) if reason:
                is_asked = not self._steps.seated and self._observing.has_asked(source)
                return [Removed(f"{source} continues without this peer: {reason}")] if is_asked else []
            case Refuse():
                return [Refused(body)] if self._steps.view is None and self.run is not None else []
        return self.hear_lineage(now, source, body.lineage)

    def hear_head(self, now: float, source: Member, lineage: bytes, head: Head) -> list[Effect]:
        """HEAD of `source`, a member of `lineage`; only the feeder names its last step."""
        if self._is_strange(lineage):
            return self._turn_to(source)
        effects = self._hear_view(now, source, lineage, head) if self._steps.view is None else []
        return [*effects, *self._observing.hear_head(now, source, head)] if head.digest else effects

    def _is_strange(self, lineage: bytes) -> bool:
        """Whether this peer, without a seat and not limited to one host, has the state of another lineage."""
        own = self._observing.lineage
        is_lone = self._steps.view is None and self._swim.me.contact.remote_control != ""
        return is_lone and own not in (b"", lineage)

    def _turn_to(self, source: Member) -> list[Effect]:
        """If no member of this peer's lineage is left, and others continue another one, return to that (R29)."""
        if self.views.lives(self._swim, self._observing.lineage) or not self._swim.is_alive(source):
            return []
        self._reason = f"no member whose state it has is left, and {source} continues in another lineage"
        return [Removed(self._reason)]

    def _hear_view(self, now: float, source: Member, lineage: bytes, head: Head) -> list[Effect]:
        """Ask again at once if a later view can be named. A peer that may have lost a seat unheard ends (R8)."""
        if self.run is None or not self._swim.is_alive(source):
            return []
        named = self.views.number_for(source)
        self.views.keep(self._swim.alive())
        if self.views.hear(now, source, lineage, head):
            return self.ask()
        if self.views.in_doubt_s(now, source) >= self._config.stale_s:
            self._reason = f"it may have had a seat after view {named}, and has none in view {head.view_number}"
            return [Removed(self._reason)]
        return self.ask([source]) if self.views.number_for(source) > named else []

    def hear_of_itself(self) -> list[Effect]:
        """End if others claim that this peer is dead: without a seat, no view that removes it would tell it so."""
        if self._steps.view is not None or not self._swim.is_declared_gone:
            return []
        self._reason = "others take this peer for dead"
        return [Removed(self._reason)]

    def hear_lineage(self, now: float, source: Member, lineage: bytes) -> list[Effect]:
        """`source` has `lineage`, or knows none if it is empty."""
        if lineage:
            self._lineages.hear(now, source, lineage)
        elif self._founding is not None:
            self._founding.has_none(source)
        return []

    def listen_anew(self, now: float) -> None:
        """This process was stopped, or hears a peer that it does not understand: listen for the full time again."""
        self._lineages.listening_since = now

    def foundation(self, now: float) -> Foundation | None:
        """The foundation, if this peer has to found the swarm now."""
        if self._founding is None or self.run is None:
            return None
        if self._observing.knows_steps:
            self._reason = "this peer knows a committed step of a run that is gone, so it founds no other"
            return None
        lineage = self._lineages.find(lambda source, heard_at: self._is_gone(now, source, heard_at))
        contacts = {claim.member: claim.contact for claim in self._swim.known_claims()}
        alive = {member: contact.seed for member, contact in contacts.items() if self._swim.is_alive(member)}
        hosts = {member: contacts[member].host for member in alive}
        founds, self._reason = self._founding.decide(now, alive, lineage, self._lineages.listening_since, hosts)
        return self._foundation if founds else None

    @property
    def foundation_due(self) -> float:
        """Latest time to ask for the foundation again."""
        return math.inf if self._founding is None else self._founding.due

    def _is_gone(self, now: float, source: Member, heard_at: float) -> bool:
        """Whether a member of a lineage is gone for certain, or has been lost for so long that it is forgotten."""
        is_forgotten = self._swim.claim_of(source) is None and now - heard_at > self._config.founding_s
        return self._swim.is_gone(source) or is_forgotten
