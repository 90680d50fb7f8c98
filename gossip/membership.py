"""Membership: a peer in the view that it has installed: messages, later views, and regular messages of its own.

The view's successor is decided in view_change.py, its steps are committed in commit.py; this module connects them.
"""

from collections.abc import Sequence
from random import Random

from . import messages as m
from .agreement import Decided, Result
from .claim import Claim, State
from .commit import Phase, StepMachine
from .config import CoreConfig
from .effects import (
    AbortReceived,
    Activated,
    Committed,
    Effect,
    Explain,
    Feed,
    Forget,
    Left,
    Proposed,
    Provide,
    Removed,
    Send,
)
from .messages import AcceptorRecord, Envelope, Report, ReportKind
from .observing import Observing
from .other_swarms import OtherSwarms
from .progress import NOTHING_DONE, Abort, Beat, Progress, Ready, StateQuery
from .redo_requests import RedoRequests
from .run_description import Run, RunDescription
from .swim import Swim
from .view import LAST_VIEW, NO_VIEW, Member, Stamp, View, feeder_of
from .view_change import ViewChange

LEAVES = "leaves"
"""Verb of the `Explain` about a member that said LEAVE."""

MOST_PENDING_READY = 256
"""Limit of the members whose READY is kept for a view that is not installed here yet."""


class Membership:
    """One peer in its installed view, if it has one."""

    def __init__(
        self, swim: Swim, steps: StepMachine, observing: Observing, *, rng: Random, config: CoreConfig
    ) -> None:
        self.me = swim.me.member
        self.view_change = ViewChange(self.me, swim, rng=rng, config=config)
        self.restarts = RedoRequests(steps, self.view_change, stall_s=config.stall_s)
        self.run: Run | None = None
        self._former: tuple[RunDescription, int] | None = None
        self._swim = swim
        self._steps = steps
        self._observing = observing
        self._config = config
        self._pending_ready: dict[Member, Envelope] = {}
        self._other_swarms = OtherSwarms(config)
        self._last_progress = 0.0

    @property
    def view(self) -> View | None:
        return self._steps.view

    def receive(self, now: float, source: Member, body: m.Body) -> list[Effect]:
        assert self.view is not None
        self.view_change.clear_behind(source)
        match body:
            case _ if self.view.since(source) is None:
                return []
            case m.Prepare() | m.Promise() | m.Accept() | m.Accepted() | m.Nack():
                return self.take(now, self.view_change.agreement.receive(now, source, body))
            case m.Report():
                return self._hear_report(now, source, body)
            case Ready() | Progress() | Beat():
                return self._steps.receive(source, body)
            case StateQuery(step, frozen) if self._steps.seated:
                return [Provide(source, step, frozen)]
            case Abort():
                return [AbortReceived(source, body)]
            case _:
                return []

    def receive_anywhere(self, now: float, envelope: Envelope) -> list[Effect]:
        """Handle messages that are valid across views, and those sent in another view."""
        source, stamp, body = envelope.sender, envelope.stamp, envelope.body
        match body:
            case m.Join():
                return self.consider_join(now, source, body)
            case StateQuery(_, frozen) if stamp == NO_VIEW and self._steps.seated and self._swim.is_alive(source):
                return [Provide(source, self._steps.done, frozen)]
            case m.Leave():
                return self._hear_leave(now, source, stamp, body)
            case m.Decide(view):
                return self.consider_view(now, view)
            case m.LineageQuery():
                return [Send(source, m.LineageAnswer(b"" if self.view is None else self.view.lineage))]
        return self.hear_out_of_view(now, envelope)

    def _hear_leave(self, now: float, source: Member, stamp: Stamp, leave: m.Leave) -> list[Effect]:
        self.view_change.admission.forget(source)
        if self.view is None and stamp == NO_VIEW and self._swim.me.contact.remote_control:
            return self._swim.declare_dead(now, source, State.LEFT)  # else it may be waited for as the decider (R29)
        if self.view is None or self.view.since(source) is None:
            return []
        effects: list[Effect] = [] if source in self.view_change.leavers else [Explain(f"{source} {LEAVES}")]
        self.view_change.leavers[source] = None
        if stamp.lineage == self.view.lineage:  # else it counts other views
            self._steps.hear(leave.given_up)
        if stamp != self.view.stamp:
            return effects
        if leave.finish is not None:  # maybe its only word of the finish, which may differ
            effects += self._steps.receive(source, Progress(leave.finish.step - 1, b"", leave.finish))
        return [*effects, *self._steps.part_from(source, leave.outvoted)]

    def hear_out_of_view(self, now: float, envelope: Envelope) -> list[Effect]:
        """Handle a message of another view, or of none: of sender and receiver, the one behind gets the later view."""
        source, stamp, body = envelope.sender, envelope.stamp, envelope.body
        mine = 0 if self.view is None else self.view.number
        if isinstance(body, Ready | Beat) and stamp.number > mine and self._swim.is_alive(source):
            self._pending_ready.pop(source, None)
            self._pending_ready[source] = envelope
            if len(self._pending_ready) > MOST_PENDING_READY:
                del self._pending_ready[next(iter(self._pending_ready))]
        if self.view is None:
            return []
        if stamp.lineage not in (b"", self.view.lineage):
            return [Send(source, m.Decide(self.view))]
        if stamp.number > self.view.number:
            return [Send(source, m.ViewQuery())]
        if stamp.number == self.view.number:
            return []
        if self.view.since(source) is not None:
            self.view_change.mark_behind(now, source)
        return [Send(source, m.Decide(self.view))]

    # Views

    def consider_view(self, now: float, view: View) -> list[Effect]:
        mine = self.view
        if view.number >= LAST_VIEW:
            return []
        if mine is not None and view.lineage != mine.lineage:
            return self._other_swarms.name(mine, view)
        if mine is not None and view.number <= mine.number:
            return self._other_swarms.name(mine, view) if view.number == mine.number and view.hash != mine.hash else []
        if view.since(self.me) is not None:
            return self._install(now, view) if self.run is not None else []
        return [] if mine is None else self._be_removed(view)

    def meet_strangers(self, now: float, source: Member, lineage: bytes) -> list[Effect]:
        """`source` is in another swarm: ask for its view, and count `source` as refused if it has a seat here, too."""
        assert self.view is not None
        if self.view.since(source) is not None:
            self.view_change.link_refused(now, source)
        return [Send(source, m.ViewQuery())] if self._other_swarms.greets(now, lineage) else []

    def _be_removed(self, view: View) -> list[Effect]:
        if self.view_change.leaving:
            return self.end(f"view {view.number} continues without it")
        self.view_change.reason = (
            f"the others have continued without this peer: view {view.number} consists of "
            f"{', '.join(map(str, view.members))}"
        )
        return [Removed(self.view_change.reason)]

    def end(self, reason: str) -> list[Effect]:
        """The end of this peer: `Left` if it left, `Removed` if it had to go for its parameters."""
        why = self._steps.parting.why
        return [Removed(why) if why else Left(reason)]

    def found(self, now: float, view: View) -> list[Effect]:
        """Begin a lineage with its first view."""
        self._last_progress = now
        self._swim.pin(view.members)
        written = self.view_change.install(now, view)
        return [*written, *self._steps.found(view)]

    def _install(self, now: float, view: View) -> list[Effect]:
        before = () if self.view is None else self.view.members
        parted = tuple([(member, self._why_gone(member)) for member in before if view.since(member) is None])
        has_stalled = not parted and self.view_change.reports.has_stalled(now, self._steps.done + 1)
        self._last_progress = now
        self._swim.pin(view.members)
        self._observing.install(view)
        effects: list[Effect] = [*self.view_change.install(now, view)]
        effects += self._steps.install(view, parted, has_stalled=has_stalled)
        for seat in view.seats:  # the peers that knew a member may have died before they told of it
            if self._swim.claim_of(seat.member) is None and not self._swim.is_gone(seat.member):
                effects += self._swim.apply_claim(now, Claim(seat.member, State.ALIVE, seat.contact))
        effects += [Send(joiner, self._head(joiner)) for joiner in self.view_change.admission.joiners()]
        early = self._pending_ready  # READY took another path than DECIDE, and overtook it
        self._pending_ready = {who: each for who, each in early.items() if each.stamp.number > view.number}
        for envelope in early.values():
            if envelope.stamp == view.stamp:
                effects += self.receive(now, envelope.sender, envelope.body)
        gone = [member for member in before if view.since(member) is None and self._swim.is_gone(member)]
        return [*effects, *map(Forget, gone)]

    def _why_gone(self, member: Member) -> State:
        """See `Installed.gone`."""
        state = State.LEFT if member in self.view_change.leavers else self._swim.state_of(member)
        return state if state in (State.LEFT, State.DEAD) else State.LOST

    def take(self, now: float, results: Sequence[Result]) -> list[Effect]:
        decided = next((result.view for result in results if isinstance(result, Decided)), None)
        proposed, self.view_change.agreement.proposed = self.view_change.agreement.proposed, None
        effects: list[Effect] = [Proposed(proposed)] if proposed is not None else []
        effects += [result for result in results if not isinstance(result, Decided)]
        if decided is None:
            return effects
        assert self.view is not None
        concerned = dict.fromkeys((*self.view.members, *decided.members))
        effects += [Send(member, m.Decide(decided)) for member in concerned if member != self.me]
        return [*effects, *self.consider_view(now, decided)]

    def declare_dead(self, now: float, member: Member, reason: str, record: AcceptorRecord | None) -> list[Effect]:
        """`member` is gone by the kernel's word."""
        effects: list[Effect] = []
        if not self._swim.is_gone(member):
            state = State.LEFT if member in self.view_change.leavers else State.DEAD
            self.view_change.admission.forget(member)
            effects = [Explain(f"{member} is {state.name.lower()}: {reason}")]
            effects += self._swim.declare_dead(now, member, state)
        has_seat = self.view is not None and self.view.since(member) is not None
        effects += [] if has_seat else [Forget(member)]  # also if others have reported it first
        return [*effects, *self.take_proof(now, member, record)]

    def take_proof(self, now: float, member: Member, record: AcceptorRecord | None) -> list[Effect]:
        """Take in the acceptor record of a dead member, which may hold a later view (R13)."""
        later = None if record is None else record.view
        effects: list[Effect] = []
        if later is not None and self.view is not None and later.number > self.view.number:
            effects = self.consider_view(now, later)
            if any(isinstance(effect, Removed | Left) for effect in effects):
                return effects
        effects += self.take(now, self.view_change.declare_dead(now, member, record))
        return [*effects, *self.view_change.send_reports(now, repeat=False)]

    def _hear_report(self, now: float, source: Member, report: Report) -> list[Effect]:
        if report.kind is not ReportKind.PROVEN:
            self._steps.hear(report.given_up)
            self.view_change.reports.receive(now, source, report)
            return []
        if report.subject == self.me or self.view is None or self.view.since(report.subject) is None:
            return []
        effects = self._swim.declare_dead(now, report.subject, State.DEAD)
        return [*effects, *self.take_proof(now, report.subject, report.record)]

    def consider_join(self, now: float, source: Member, join: m.Join) -> list[Effect]:
        if self.run is None:
            return []
        differences = self._differences(self.run, join)
        if self.view is None:  # this peer may be its feeder before it asks again
            is_heard = self._observing.follows and join.follows and not differences
            if is_heard and self._swim.is_alive(source):
                self.view_change.admission.receive_join(now, source, join)
            return []
        if self.view.since(source) is not None:
            self.view_change.mark_behind(now, source)
            return [Send(source, m.Decide(self.view))]
        if differences:
            described = tuple([m.Difference(name, self.run.texts.get(name)) for name in differences])
            return [Send(source, m.Refuse(self.run.description.trains_model, described))]
        if self._swim.is_gone(source):
            return self._swim.tell(source)
        if not self._swim.is_alive(source):  # its death would not be noticed
            return []
        self.view_change.admission.receive_join(now, source, join)
        return [Send(source, self._head(source))]

    def replace_run(self, run: Run, step: int) -> None:
        """The members have another run description from `step` on."""
        assert self.run is not None
        self._former = self.run.description, step
        self.run = run

    def _differences(self, run: Run, join: m.Join) -> list[str]:
        """Differences to a joiner's run; one fed with steps from before the change is compared with the former run."""
        found = run.description.differences(join.run)
        if not found or self._former is None:
            return found
        description, last = self._former
        has_state = join.done > NOTHING_DONE or join.digest != b""  # its step may not be proven yet
        return description.differences(join.run) if has_state and join.done <= last else found

    def _head(self, joiner: Member) -> m.Head:
        """HEAD for `joiner`, about the installed view; only its feeder names the last step."""
        assert self.view is not None
        steps, join = self._steps, self.view_change.admission.join_of(joiner)
        absent_since = self.view_change.admission.absent_since(joiner, join.view_number)
        feeder = feeder_of(joiner, self.view, join.numerics)
        is_feeder = join.follows and feeder == self.me and steps.phase is Phase.ACTIVE
        step, digest = (steps.done, steps.digest) if is_feeder else (NOTHING_DONE, b"")
        return m.Head(step, digest, self.view.number, absent_since)

    def reconsider(self, now: float, effects: Sequence[Effect]) -> list[Effect]:
        """Effects that follow from the present knowledge, after these `effects`."""
        assert self.view is not None
        staying = [member for member in self.view.members if not self._swim.is_gone(member)]
        if self.view_change.leaving and all(member in self.view_change.leavers for member in staying):
            return self.end("every member leaves")
        is_followed = any(isinstance(effect, Forget) for effect in effects)  # maybe a member, by a later incarnation
        news = self.view_change.send_reports(now, repeat=False) if is_followed else []
        return [*news, *self.view_change.reconsider(now, self._steps)]

    def note(self, now: float, effects: list[Effect]) -> list[Effect]:
        """Note progress and gone peers in `effects`, and add to commits the observers to be fed with them."""
        for index, effect in enumerate(effects):
            if isinstance(effect, Committed):
                self._last_progress = now
                if feeds := self._feed(now, effect.view):
                    effects[index] = Committed(effect.finish, effect.view, feeds)
            elif isinstance(effect, Activated):
                self._last_progress = now
                self.view_change.admission.seated(self._steps.done)
            elif isinstance(effect, Forget):  # a peer that returns is another member, at the same addresses
                self.view_change.admission.forget(effect.member)
        return effects

    def _feed(self, now: float, view: View) -> tuple[Feed, ...]:
        """Observers to which this member sends the step just committed, finished in `view`.

        If some members commit it before a new view and some at its barrier, the feeders of both views may each leave it
        to the other. So the feeders of both send it.
        """
        assert self.view is not None
        steps = self._steps
        self.view_change.admission.committed(now, steps.done)
        if self.view_change.admission.is_empty():
            return ()
        views, admission = (view, self.view), self.view_change.admission
        followers = [(member, admission.numerics_of(member)) for member in admission.followers(now)]
        mine = [member for member, own in followers if any(feeder_of(member, each, own) == self.me for each in views)]
        return tuple([Feed(member, steps.done, steps.previous, steps.digest) for member in mine])

    def may_finish_step_0(self) -> bool:
        """Whether to finish step 0, which is empty, and held until the founding members are present."""
        steps = self._steps
        if steps.view is None or steps.phase is not Phase.ACTIVE or steps.done != NOTHING_DONE:
            return False
        return steps.finish is None and len(steps.view.members) >= steps.view.founding_size

    def beat(self, now: float) -> list[Effect]:
        self.restarts.watch(now)
        effects = [*self._steps.beat(), *self.view_change.send_reports(now, repeat=True), *self._observing.beat(now)]
        if self.view_change.leaving:
            effects += self.say_goodbye()
        if now - self._last_progress >= self._config.stale_s:
            effects += self.ask_for_view(now)
        return effects

    def say_goodbye(self) -> list[Effect]:
        """LEAVE to all members."""
        steps = self._steps
        return [Send(member, m.Leave(steps.parting.goes_in, steps.given_up, steps.finish)) for member in self.others()]

    def others(self) -> list[Member]:
        return [] if self.view is None else [member for member in self.view.members if member != self.me]

    def ask_for_view(self, now: float) -> list[Effect]:
        if self.view is None:
            return []
        self._last_progress = now
        known = dict.fromkeys((*self._swim.neighbours(), *self.others()))
        return [Send(member, m.ViewQuery()) for member in known]
