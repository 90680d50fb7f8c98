"""One peer's part in the protocol: discovery, agreement and step commit, wired together, without I/O.

The host owns sockets and clock. It brings what it receives (`receive`), the time (`tick`, no later than
`next_deadline`), what the kernel says (`bury`) and what the training does (`found`, `ask_for_seat`, `finished`,
`abort`, `loaded`, `leave`), and carries out the effects that come back, in order. Times are monotonic seconds.
"""

import math
from random import Random

from .agreement import Agreement, Decided
from .claim import Claim, State, overrides
from .commit import Phase, StepMachine
from .config import CoreConfig
from .messages import (
    NOTHING_DONE,
    Abort,
    Accept,
    Accepted,
    Ack,
    Activated,
    Beat,
    Body,
    Committed,
    Decide,
    Discovered,
    Effect,
    Envelope,
    Explain,
    Forget,
    Join,
    Leave,
    Left,
    Nack,
    Overheard,
    Ping,
    Prepare,
    Progress,
    Promise,
    Provide,
    QuorumGone,
    Ready,
    Refuse,
    Refused,
    Removed,
    Send,
    StateQuery,
    ViewQuery,
)
from .swim import Swim
from .view import NO_VIEW, Decision, Member, Stamp, View, founding_view, propose_view


class Core:
    """The protocol of one peer. Where it stands: `phase`, `view`, `done`; why: `reason`."""

    def __init__(self, me: Claim, *, rng: Random, config: CoreConfig, now: float) -> None:
        self.me = me.member
        self.reason = "not in a view yet"
        self.leaving = False
        self.ended = False
        self._claim = me
        self._config = config
        self._swim = Swim(me, rng=rng, config=config.swim, now=now)
        self._steps = StepMachine(self.me)
        self._agreement = Agreement(self.me, rng=rng, config=config.agreement)
        self._layout: tuple[str, bytes] | None = None
        self._joiners: dict[Member, float] = {}
        self._leavers: set[Member] = set()
        self._early: dict[Member, Envelope] = {}
        self._restart = ""
        self._next_beat = now
        self._last_progress = now

    @property
    def phase(self) -> Phase:
        return self._steps.phase

    @property
    def view(self) -> View | None:
        """The installed view."""
        return self._steps.view

    @property
    def done(self) -> int:
        """The last committed step."""
        return self._steps.done

    @property
    def has_finished(self) -> bool:
        """Whether step done + 1 is finished here and waits for the others."""
        return self._steps.finish is not None

    @property
    def stamp(self) -> Stamp:
        """What goes on every envelope."""
        return NO_VIEW if self.view is None else self.view.stamp

    def next_deadline(self) -> float:
        if self.ended:
            return math.inf
        proposing = math.inf if self.view is None else self._agreement.next_deadline()
        return min(self._next_beat, self._swim.next_deadline(), proposing)

    # Commands of the host.

    def meet(self, claim: Claim) -> list[Effect]:
        """A peer that the host has found by its own means."""
        return self._swim.hear(claim)

    def found(self, now: float, lineage: bytes, founding_size: int, layout: tuple[str, bytes]) -> list[Effect]:
        """Begin a lineage. `layout` is hash and description of the state that this peer trains."""
        self._layout = layout
        view = founding_view(self.me, lineage, founding_size)
        self._agreement.install(view)
        return self._follow_up(now, self._steps.found(view))

    def ask_for_seat(self, now: float, layout: tuple[str, bytes]) -> list[Effect]:
        """Take part as soon as the members of the swarm agree. `layout` as in `found`."""
        self._layout = layout
        return self._ask(now)

    def finished(self, now: float, step: int, digest: bytes, state_digest: bytes) -> list[Effect]:
        """All operations of `step` are complete here, in the installed view, which is active."""
        return self._note(now, self._steps.finished(step, digest, state_digest))

    def loaded(self, now: float, step: int, digest: bytes) -> list[Effect]:
        """The state after `step` is loaded; `digest` as `wanted_state` gave it."""
        return self._follow_up(now, self._steps.loaded(step, digest))

    def wanted_state(self) -> tuple[int, bytes, Member] | None:
        """Step, chain digest and donor of the state that this peer waits for."""
        return self._steps.wanted_state()

    def abort(self, now: float, step: int, reason: str) -> list[Effect]:
        """Give `step` up on every member; the same members start over in a new view."""
        self._steps.abort(step, reason)
        self._restart = f"step {step} is aborted"
        return self._reconsider(now)

    def broadcast(self, abort: Abort) -> list[Effect]:
        """Tell every member of the view what was called here."""
        members = self.view.members if self.view is not None else ()
        return [Send(member, abort) for member in members if member != self.me]

    def bury(self, now: float, member: Member, reason: str) -> list[Effect]:
        """`member` is gone for certain, says the kernel, or the registry of a member that this peer never met."""
        if self._swim.is_gone(member):
            return []
        state = State.LEFT if member in self._leavers else State.DEAD
        news: list[Effect] = [Explain(f"{member} is {state.name.lower()}: {reason}")]
        has_seat = self.view is not None and self.view.since(member) is not None
        closing: list[Effect] = [] if has_seat else [Forget(member)]
        return self._follow_up(now, [*news, *self._swim.bury(member, state), *closing])

    def leave(self, now: float) -> list[Effect]:
        """Start no further step; `Left` follows when the others can do without this peer."""
        self.leaving = True
        self._leavers.add(self.me)
        if self.view is None or self.ended:
            self.ended = True
            return [*(Send(member, Leave()) for member in self._swim.alive()), Left("it had no seat")]
        return self._follow_up(now, [Send(member, Leave()) for member in self._others()])

    # Time and messages.

    def tick(self, now: float) -> list[Effect]:
        if self.ended:
            return []
        effects = self._swim.tick(now)
        if self.view is not None:
            effects += self._take(now, self._agreement.tick(now))
        if now >= self._next_beat:
            self._next_beat = now + self._config.beat_s
            effects += self._beat(now)
        return self._follow_up(now, effects)

    def receive(self, now: float, envelope: Envelope) -> list[Effect]:
        """Whatever arrives. What does not belong to the installed view changes nothing."""
        if self.ended:
            return []
        source, stamp, body = envelope.sender, envelope.stamp, envelope.body
        match body:
            case Progress() if self.view is not None and stamp == self.view.stamp:
                return self._note(now, self._receive_in_view(now, source, body))  # every step; views stay as they are
            case Ping(_, claims) | Ack(_, claims):
                effects = [*self._swim.receive(source, body), *self._hear_of_itself(claims)]
            case Join(state_hash):
                effects = self._consider_join(now, source, state_hash)
            case Refuse(layout):
                refused = self.view is None and self._layout is not None
                effects = [Refused(layout)] if refused else []
            case Leave():
                self._joiners.pop(source, None)
                self._leavers.add(source)
                effects = []
            case Decide(view):
                effects = self._consider_view(now, view)
            case _ if self.view is not None and stamp == self.view.stamp:
                effects = self._receive_in_view(now, source, body)
            case _:
                if isinstance(body, Ready | Beat) and stamp.number > self.stamp.number and source in self._swim.alive():
                    self._early[source] = envelope
                effects = self._answer_stray(source, stamp)
        return self._follow_up(now, effects)

    def _receive_in_view(self, now: float, source: Member, body: Body) -> list[Effect]:
        assert self.view is not None
        since = self.view.since(source)
        match body:
            case _ if since is None:
                return []
            case Prepare() | Promise() | Accept() | Accepted() | Nack():
                return self._take(now, self._agreement.receive(now, source, body))
            case Ready() | Progress() | Beat():
                return self._steps.receive(source, body)
            case StateQuery(step) if self._steps.seated:
                return [Provide(source, step)]
            case Abort():
                return [Overheard(source, body)]
            case _:
                return []

    def _answer_stray(self, source: Member, stamp: Stamp) -> list[Effect]:
        """`source` has installed another view, or none: whoever is behind is told of the later one."""
        if self.view is None:
            return []
        if stamp.number > self.view.number:
            return [Send(source, ViewQuery())]
        if stamp.number < self.view.number or stamp.lineage != self.view.lineage:
            return [Send(source, Decide(self.view))]
        return []

    # Views.

    def _consider_view(self, now: float, view: View) -> list[Effect]:
        mine = self.view
        if mine is not None and view.lineage != mine.lineage:
            return [Explain(f"two swarms have met: ignored view {view.number} of lineage {view.lineage.hex()}")]
        if mine is not None and view.number <= mine.number:
            return []
        since = view.since(self.me)
        if mine is None and (since is None or self._layout is None):
            return []
        if since is None or (mine is not None and since > mine.number):
            return self._be_removed(view)
        return self._install(now, view)

    def _be_removed(self, view: View) -> list[Effect]:
        self.ended = True
        if self.leaving:
            return [Left(f"view {view.number} goes on without it")]
        self.reason = f"view {view.number} was agreed without this peer: {', '.join(map(str, view.members))}"
        return [Removed(self.reason)]

    def _hear_of_itself(self, claims: tuple[Claim, ...]) -> list[Effect]:
        """Whoever has no seat is in no view that others could go on without, so only their claims tell it."""
        if self.view is None and any(c.member.peer_id == self.me.peer_id and overrides(c, self._claim) for c in claims):
            self.ended = True
            self.reason = "others take this peer for dead"
            return [Removed(self.reason)]
        return []

    def _install(self, now: float, view: View) -> list[Effect]:
        before = () if self.view is None else self.view.members
        self._restart = ""
        self._last_progress = now
        self._agreement.install(view)
        for member in view.members:
            self._joiners.pop(member, None)
        effects = self._steps.install(view)
        early, self._early = self._early, {}
        for envelope in early.values():  # READY came another way than DECIDE, and overtook it
            if envelope.stamp == view.stamp:
                effects += self._receive_in_view(now, envelope.sender, envelope.body)
        for member in before:
            if member not in view.members and self._swim.is_gone(member):
                effects.append(Forget(member))
        return effects

    def _take(self, now: float, results: list[Send | Decided]) -> list[Effect]:
        decided = next((result.view for result in results if isinstance(result, Decided)), None)
        if decided is None:
            return [result for result in results if isinstance(result, Send)]
        # What else there is belongs to the view that ends here, and would leave with the stamp of the next.
        assert self.view is not None
        concerned = dict.fromkeys((*self.view.members, *decided.members))
        effects: list[Effect] = [Send(member, Decide(decided)) for member in concerned if member != self.me]
        return [*effects, *self._consider_view(now, decided)]

    def _consider_join(self, now: float, source: Member, state_hash: str) -> list[Effect]:
        if self.view is None or self._layout is None:
            return []
        if self.view.since(source) is not None:
            return [Send(source, Decide(self.view))]
        if state_hash != self._layout[0]:
            return [Send(source, Refuse(self._layout[1]))]
        if self._swim.is_gone(source):
            return self._swim.tell(source)
        if self._swim.is_alive(source):  # or its death would go unnoticed
            self._joiners[source] = now
        return []

    def _reconsider(self, now: float) -> list[Effect]:
        """Propose what should change, if anything should, and say why when that changes."""
        if self.view is None or self.ended:
            return []
        expired = [member for member, asked in self._joiners.items() if now - asked > 6 * self._config.beat_s]
        for member in expired:
            del self._joiners[member]
        dead = {member for member in self.view.members if self._swim.is_gone(member)}
        if self.leaving and all(member in self._leavers for member in self.view.members if member not in dead):
            self.ended = True
            return [Left("every member leaves")]
        idle = self.phase is Phase.ACTIVE
        joiners = [member for member in self._joiners if idle and not self._swim.is_gone(member)]
        decision = propose_view(
            self.view,
            dead=dead,
            leaving=self._leavers,
            joiners=joiners,
            restart=self._restart if idle else "",
        )
        self._agreement.want(now, decision.successor if self._steps.seated else None, self._delay(dead))
        return self._explain(decision, len(dead))

    def _delay(self, dead: set[Member]) -> float:
        """Survivors take turns: the first not gone where somebody is missing, a rotating first for joiners."""
        assert self.view is not None
        order = [m for m in self.view.members if m not in dead and (m not in self._leavers or m == self.me)]
        turn = order.index(self.me) if self.me in order else len(order)
        if len(order) < len(self.view.members) or self.leaving or self._restart:
            return turn * self._config.death_stagger_s
        return (turn - self.view.number) % len(order) * self._config.join_stagger_s

    def _explain(self, decision: Decision, num_dead: int) -> list[Effect]:
        assert self.view is not None
        if decision.reason == self.reason:
            return []
        self.reason = decision.reason
        effects: list[Effect] = [Explain(decision.reason)]
        if decision.quorum_lost:
            size = len(self.view.members)
            effects.append(QuorumGone(size - num_dead, size, decision.reason))
        return effects

    # What happens by itself.

    def _follow_up(self, now: float, effects: list[Effect]) -> list[Effect]:
        """What these effects entail inside this peer."""
        if any(isinstance(effect, Removed) for effect in effects):
            self.ended = True
            return effects
        if self._may_found_step_0():
            effects = [*effects, *self._steps.finished(0, b"", b"")]
        if self.view is None and self._layout is not None:
            met = [effect.claim.member for effect in effects if isinstance(effect, Discovered)]
            effects = [*effects, *(Send(member, Join(self._layout[0])) for member in met)]
        return [*self._note(now, effects), *self._reconsider(now)]

    def _note(self, now: float, effects: list[Effect]) -> list[Effect]:
        if any(isinstance(effect, Activated | Committed) for effect in effects):
            self._last_progress = now
        return effects

    def _may_found_step_0(self) -> bool:
        """Step 0 is empty and held until the founding members are here."""
        steps = self._steps
        if steps.view is None or steps.phase is not Phase.ACTIVE or steps.done != NOTHING_DONE:
            return False
        return steps.finish is None and len(steps.view.members) >= steps.view.founding_size

    def _beat(self, now: float) -> list[Effect]:
        if self.view is None:
            return [] if self._layout is None else self._ask(now)
        effects = [*self._steps.beat(), *self._steps.query()]
        if self.leaving:
            effects += [Send(member, Leave()) for member in self._others()]
        if now - self._last_progress >= self._config.stale_s:
            self._last_progress = now
            effects += [Send(member, ViewQuery()) for member in dict.fromkeys((*self._swim.alive(), *self._others()))]
        return effects

    def _ask(self, now: float) -> list[Effect]:
        assert self._layout is not None
        self._next_beat = now + 2 * self._config.beat_s
        return [Send(member, Join(self._layout[0])) for member in self._swim.alive()]

    def _others(self) -> list[Member]:
        return [] if self.view is None else [member for member in self.view.members if member != self.me]
