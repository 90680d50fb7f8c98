"""The core: one peer's protocol, which connects discovery, agreement and step commit, without I/O.

The host owns sockets and clock. It passes in messages (`receive`), the time (`tick`, no later than `next_deadline`),
the kernel's word (`declare_dead`, `link_refused`), arrived bytes (`fed`, `state_arrived`) and the progress of training
(`found`, `ask_for_seat`, `submitted`, `finished`, `give_up`, `loaded`, `leave`), and carries out the returned effects,
in order. Times are monotonic seconds.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from random import Random

from . import messages as m
from .acceptor import BLANK
from .agreement import Body as Paxos
from .claim import Claim
from .config import CoreConfig
from .core_queries import CoreQueries
from .effects import Discovered, DropState, Effect, Explain, Installed, Left, Removed, Send
from .founding import Foundation
from .given_up import Cause
from .messages import AcceptorRecord, Envelope
from .own_status import OwnStatus
from .progress import NOTHING_DONE, Abort, Beat, Progress, Ready, StateQuery
from .run_description import Run
from .swim import Body as SwimBody
from .unopened_links import UnopenedLinks
from .view import NO_NUMERICS, NO_VIEW, Member, Policy, Seat, founding_view


class Core(CoreQueries):
    """The protocol of one peer. Its state: `phase`, `view`, `done`; the reason for it: `reason`."""

    def __init__(self, me: Claim, *, rng: Random, config: CoreConfig, now: float) -> None:
        super().__init__(me, rng=rng, config=config, now=now)
        self._config = config
        self._next_beat = now
        self._status = OwnStatus(now=now, every_s=config.status_s)
        self._ways = UnopenedLinks(config.connect_timeout_s)
        self._leave_by = math.inf
        self._expected = now
        self._said_in = NO_VIEW

    def next_deadline(self) -> float:
        if self.ended:
            return math.inf
        return min(self._next_beat, self._swim.next_deadline(), self._view_change.next_deadline(), self._leave_by)

    # Discovery and the first seat

    def meet(self, now: float, claim: Claim) -> list[Effect]:
        """Take in a peer that the host has discovered itself."""
        return [] if self.ended else self._follow_up(now, self._swim.apply_claim(now, claim))

    def return_from(self, former: CoreQueries) -> None:
        """This peer was `former`, which was removed (R9)."""
        self._observing.return_from(former._observing)

    def set_loss(self, *, loss: float) -> None:
        """The loss of the last step, as the script gave it; spread with this peer's status, a few times a minute."""
        self._status.set_loss(loss)

    def found(self, now: float, lineage: bytes, founding_size: int, run: Run, policy: Policy) -> list[Effect]:
        """Begin a lineage. All others are compared with `run`, as long as this peer is a member."""
        self._begin(run, follows=False)
        view = founding_view(Seat(self.me, 1, self._swim.me.contact, run.numerics), lineage, founding_size, policy)
        return self._follow_up(now, self._membership.found(now, view))

    def found_from_seeds(self, now: float, foundation: Foundation) -> None:
        """See `Joining.found_from_seeds`; takes effect once a seat is asked for."""
        self._joining.found_from_seeds(now, foundation)

    def ask_for_seat(self, now: float, run: Run, *, follows: bool = False) -> list[Effect]:
        """Ask for a seat until the members of the swarm grant one.

        Args:
            now: the time.
            run: what this peer runs and trains.
            follows: observe first, fed with committed steps; otherwise the first barrier waits for the state.
        """
        if self.view is not None or self.ended:
            return []
        self._begin(run, follows=follows)
        self._next_beat = now + 2 * self._config.beat_s
        return self._stamped([BLANK, *self._joining.ask()])

    def _begin(self, run: Run, *, follows: bool) -> None:
        self._joining.begin(run, follows=follows)
        self._membership.run = run

    def replace_run(self, run: Run) -> None:
        """The members have agreed on another run, in the last committed step."""
        self._joining.run = run
        self._membership.replace_run(run, self.done)

    # The open step

    def submitted(self, step: int, num_operations: int, num_complete: int) -> None:
        """Numbers of operations of `step` that are submitted, and complete, here; called again at each progress."""
        if step == self.done + 1:
            self._membership.restarts.submitted(num_operations, num_complete)

    def advanced(self, step: int, num_inner_steps: int) -> None:
        """Number of local steps that are done here in the round that `step` ends."""
        if step == self.done + 1:
            self._steps.inner_steps = num_inner_steps

    def mark_in_use(self, view_number: int) -> bool:
        """Results of step done + 1 are used here before its commit: if other members redo it, all give it up.

        Returns:
            Whether they may be used: not if the view in which they were computed is over.
        """
        is_current = self.view is not None and self.view.number == view_number
        if is_current:
            self._steps.mark_in_use()
        return is_current

    def contradiction(self, step: int, view_number: int, state_digest: bytes) -> list[Effect]:
        """Effects that say why the open `step` must not be finished with these parameters; see `may_finish`."""
        if self.view is None or self.view.number != view_number or step != self.done + 1:
            return []
        return self._stamped(self._steps.contradict(state_digest))

    def send_abort(self, abort: Abort) -> list[Effect]:
        """Send the operation called here to all members; again with every beat, in this view and step."""
        return [] if self.view is None or abort.step != self.done + 1 else self._stamped(self._steps.send_abort(abort))

    def finished(
        self, now: float, step: int, digest: bytes, state_digest: bytes, *, is_shown: bool = False
    ) -> list[Effect]:
        """All operations of `step` are complete here, in the installed view, which is active.

        Args:
            now: the time.
            step: done + 1.
            digest: of its results.
            state_digest: of the parameters that it was computed with.
            is_shown: all members read it in this peer's memory, so it is not sent (but still in beats).
        """
        effects = self._steps.finished(step, digest, state_digest, is_shown=is_shown)
        return self._stamped([*self._notice_pause(now), *self._membership.note(now, effects)])

    def saw(self, now: float, shown: Sequence[tuple[Member, Progress]]) -> list[Effect]:
        """Progress that members of the installed view show in their memory."""
        effects = [effect for member, progress in shown for effect in self._steps.receive(member, progress)]
        return self._done_with(now, effects)

    def all_finished(self, now: float) -> list[Effect]:
        """All other members show in their memory the same finish as this one: the same step, bits and view."""
        return self._stamped([*self._notice_pause(now), *self._membership.note(now, self._steps.all_finished())])

    def set_readable(self, now: float, member: Member, *, is_so: bool) -> list[Effect]:
        """Whether the host can read the memory of `member`; takes effect with the next view.

        If `member` is the last one of the view, which this peer may know only through the view, a new view is asked for
        at once.
        """
        (self._steps.reads.add if is_so else self._steps.reads.discard)(member)
        return self._start_over(now) if self._membership.restarts.request_if_readable() else []

    def state_available(self, now: float, step: int) -> list[Effect]:
        """The host can give the state after `step`, until another one is committed."""
        self._view_change.admission.state_available(step)
        return self._follow_up(now, []) if self.has_joiner_in_need(now) else []

    # Steps and states for a peer without a seat

    def fed(self, step: int, previous: bytes, digest: bytes, num_bytes: int, *, is_own: bool) -> list[Effect]:
        """See `Observing.fed`: an observer has received the committed `step`, as bytes."""
        return [] if self.ended else self._observing.fed(step, previous, digest, num_bytes, is_own=is_own)

    def state_segment_arrived(self, now: float, source: Member, step: int) -> bool:
        """A segment of the state after `step` has arrived from `source`. Returns whether it is useful."""
        return self._observing.segment_arrived(now, source, step)

    def state_arrived(self, step: int, digest: bytes, lineage: bytes, numerics: bytes = NO_NUMERICS) -> list[Effect]:
        """The state after `step` has arrived, as bytes; `digest`: of the chain up to it; the rest is its donor's."""
        self._joining.state_arrived(step, digest, numerics)
        return [DropState(step, digest)] if self.ended else self._observing.state_arrived(step, digest, lineage)

    def declined(self, now: float, step: int, digest: bytes) -> list[Effect]:
        """The script cannot load the state after `step` now: it waits for an operation of its own, step done + 1."""
        return [] if self.ended else self._observing.declined(now, step, digest)

    def put_off(self, now: float, step: int, digest: bytes) -> list[Effect] | None:
        """The script cannot load the state after `step` within a batch. None: nor can it continue without it."""
        return [] if self.ended else self._observing.put_off(now, step, digest)

    def lacks(self, step: int, digest: bytes) -> list[Effect]:
        """The script no longer has the frozen parameters that the state after `step` omits."""
        return [] if self.ended else self._observing.lacks(step, digest)

    def waits(self, now: float, fits: Callable[[], bool]) -> list[Effect] | None:
        """See `Observing.waits`. None: run the step that is `due`; otherwise the script is held there."""
        is_held, is_new = (False, False) if self.ended or self.seated else self._observing.waits(now, fits)
        asks = self._stamped(self._joining.ask()) if is_new else []
        return asks if is_held else None

    def loaded(self, now: float, step: int, digest: bytes) -> list[Effect]:
        """The state after `step` is loaded, or that step was run with its fed results."""
        if self.ended:
            return []
        self._joining.loaded(step, digest, is_run=self._observing.due == (step, digest))
        effects = [*self._steps.loaded(step, digest), *self._observing.loaded(now, step, digest)]
        self._status.loaded(self.done)
        return self._follow_up(now, effects)

    # Steps given up, and members that are gone

    def give_up(self, now: float, step: int, cause: Cause, reason: str, *, is_told: bool) -> list[Effect]:
        """Give `step` up on every member; the same members redo it in a new view.

        Args:
            now: the time.
            step: done + 1.
            cause: what scripts on other members are told, in the words of `reason`.
            reason: for people.
            is_told: this peer's script knows, or its host tells it; else it withdraws what it had submitted.
        """
        restarts = self._membership.restarts
        return self._start_over(now) if restarts.give_up(step, cause, reason, is_told=is_told) else []

    def _start_over(self, now: float) -> list[Effect]:
        return self._follow_up(now, self._view_change.send_reports(now, repeat=False))

    def declare_dead(
        self, now: float, member: Member, reason: str, record: AcceptorRecord | None = None
    ) -> list[Effect]:
        """`member` is gone by the kernel's word. `record`: its acceptor record, read after its end."""
        if self.ended or member == self.me:
            return []
        effects = self._notice_pause(now)
        return self._follow_up(now, [*effects, *self._membership.declare_dead(now, member, reason, record)])

    def heard_another_version(self, now: float) -> None:
        """A peer with another protocol version sends messages in this swarm, which may mean that a lineage exists."""
        self._joining.listen_anew(now)

    def link_answered(self, now: float, member: Member) -> None:
        """`member` answers on its link, though it may be busy: a sign of life, but no proof that its frames arrive."""
        self._swim.link_answered(now, member)

    def broke(self, now: float, member: Member) -> None:
        """The link to `member` is broken, or was since the last look."""
        self._swim.broke(now, member)

    def unopened(self, now: float, links: Mapping[Member, str]) -> list[Effect]:
        """All links that are not open, not yet or no longer, and why. To be called at a slow cadence."""
        effects = self._stamped(self._notice_pause(now))
        for member, reason in self._ways.update(now, links).items():
            effects += self.link_refused(now, member, reason)
        return effects

    def link_refused(self, now: float, member: Member, reason: str) -> list[Effect]:
        """The link to `member` was lost, and a new one refused. The caller repeats this while it is so."""
        effects = [] if self.ended else self._notice_pause(now)
        is_void = self.ended or self._swim.is_gone(member) or self._ways.has_just_resumed(now)
        if is_void or not self._view_change.link_refused(now, member):
            return self._stamped(effects)
        effects += [Explain(f"{member} may be dead: {reason}"), *self._swim.suspect(now, member)]
        return self._follow_up(now, [*effects, *self._view_change.send_reports(now, repeat=False)])

    def undelivered(self, now: float, member: Member) -> None:
        """Data do not reach `member`, which answers (G16). The caller repeats this while it is so."""
        self._view_change.undelivered(now, member)

    def damaged(self, now: float, why: str) -> list[Effect]:
        """The parameters here have changed since the open step was computed with them (R28)."""
        return self._follow_up(now, self._steps.damaged(why))

    def leave(self, now: float, outvoted: int = NOTHING_DONE) -> list[Effect]:
        """Start no further step; `Left` follows when the others no longer need this peer.

        `outvoted`: the open step, if this peer differs in it from the members that stay.
        """
        self._view_change.leavers[self.me] = None
        if outvoted == self.done + 1:
            self._steps.go()
        else:
            self._steps.parting.why = ""
        self._leave_by = min(self._leave_by, now + self._config.leave_s)
        if self.view is None or self.ended:
            reason = "it no longer takes part" if self.ended else "it had no seat"
            self.ended = True
            said = [Send(member, m.Leave()) for member in self._swim.alive()]
            return self._stamped([*self._heirs.withdraw(), *said, Left(reason)])
        return self._follow_up(now, self._membership.say_goodbye())

    # Time and messages

    def tick(self, now: float) -> list[Effect]:
        if self.ended:
            return []
        effects = self._notice_pause(now)
        if now >= self._leave_by:
            self.ended = True
            return self._membership.end(f"no view without it within {self._config.leave_s:g} s")
        effects += self._swim.tick(now)
        if self.view is not None:
            effects += self._membership.take(now, self._view_change.agreement.tick(now))
        is_over = any(isinstance(effect, Removed | Left) for effect in effects)
        if now >= self._next_beat and not is_over:
            self._next_beat = now + self._config.beat_s
            effects += self._seek(now) if self.view is None else self._membership.beat(now)
            effects += self._start_over(now) if self._membership.restarts.request_if_readable() else []
            self._show(now)
        return self._follow_up(now, effects)

    def receive(self, now: float, envelope: Envelope) -> list[Effect]:
        """Handle any message. One that does not belong to the installed view changes nothing."""
        source, stamp, body = envelope.sender, envelope.stamp, envelope.body
        if self.ended or source == self.me:
            return []
        if isinstance(body, m.Died):  # as certain as the word of this host's kernel, and no sign of life
            return self.declare_dead(now, source, "its launcher says that its process has ended", body.record)
        effects = self._notice_pause(now)
        self._swim.frame_received(now, source)
        in_view = self.view is not None and stamp == self.view.stamp
        if stamp.lineage not in (b"", self.stamp.lineage):
            meet = self._joining.hear_lineage if self.view is None else self._membership.meet_strangers
            effects += meet(now, source, stamp.lineage)
        if in_view and isinstance(body, Progress):  # every step; views stay as they are
            return self._done_with(now, [*effects, *self._membership.receive(now, source, body)])
        if isinstance(body, SwimBody):
            effects += [*self._swim.receive(now, source, body), *self._joining.hear_of_itself()]
        elif isinstance(body, m.Head | m.Refuse | m.LineageAnswer):
            effects += self._joining.receive(now, source, stamp.lineage, body)
        elif isinstance(body, m.Held) or (isinstance(body, m.Report) and stamp == NO_VIEW):
            effects += self._hear_of_deaths(now, source, body) if self.view is None else []
        elif in_view and isinstance(body, Paxos | m.Report | Ready | Beat | Abort | StateQuery):
            effects += self._membership.receive(now, source, body)
        else:
            effects += self._membership.receive_anywhere(now, envelope)
        return self._follow_up(now, effects)

    def _hear_of_deaths(self, now: float, source: Member, body: m.Held | m.Report) -> list[Effect]:
        """Handle messages between peers without a seat about the death of members (R29)."""
        match body:
            case m.Held():
                self._heirs.hear(source, body)
            case m.Report(m.ReportKind.PROVEN, subject, record=record) if record is not None and subject != self.me:
                why = f"{source} has proof that its process has ended"
                return self._membership.declare_dead(now, subject, why, record)
        return []

    # Follow-up

    def _notice_pause(self, now: float) -> list[Effect]:
        """If this process was stopped, discount the silence of others, and ask whether there is a later view."""
        was_stopped = now - self._expected >= self._config.pause_s
        self._expected = max(now, self._expected)
        if not was_stopped:
            return []
        self._swim.resume(now)
        self._view_change.resume(now)
        self._ways.resume(now)
        self._joining.listen_anew(now)
        return [Explain("this process was stopped for a while"), *self._membership.ask_for_view(now)]

    def _follow_up(self, now: float, effects: list[Effect]) -> list[Effect]:
        """Apply the consequences of these effects inside this peer."""
        if not self.ended and self._membership.may_finish_step_0():
            effects = [*effects, *self._steps.finished(0, b"", b"")]
        if self.view is None:
            met = [effect.claim.member for effect in effects if isinstance(effect, Discovered)]
            effects = [*effects, *(self._joining.ask(met) if met else []), *self._heirs.advance(now)]
        elif not any(isinstance(effect, Removed | Left) for effect in effects):
            effects = [*effects, *self._observing.reconsider(now), *self._membership.reconsider(now, effects)]
        return self._done_with(now, effects)

    def _done_with(self, now: float, effects: list[Effect]) -> list[Effect]:
        self.ended = self.ended or any(isinstance(effect, Removed | Left) for effect in effects)
        effects = [*self._notice_pause(now), *self._membership.note(now, effects)]
        self._expected = max(now, self.next_deadline())  # deadlines that are overdue already were not missed
        return self._stamped(effects)

    def _stamped(self, effects: list[Effect]) -> list[Effect]:
        """Stamp each message with the view in which it was made, whichever view is installed when it is sent."""
        stamp = self._said_in
        for index, effect in enumerate(effects):
            if type(effect) is Send and effect.stamp is None:
                effects[index] = Send(effect.target, effect.body, stamp)
            elif type(effect) is Installed:
                stamp = effect.view.stamp
        self._said_in = stamp
        return effects

    def _show(self, now: float) -> None:
        """Spread this peer's status, unless the last one is recent."""
        status = self._status.renew(now, self.stamp.number, self.done, self._steps.digest)
        if status is not None:
            self._swim.set_status(now, status)

    def _seek(self, now: float) -> list[Effect]:
        foundation = self._joining.foundation(now)
        self._next_beat = min(now + 2 * self._config.beat_s, self._joining.foundation_due)
        if foundation is None or self._joining.run is None:
            return [*self._joining.ask(), *self._heirs.advance(now, repeat=True)]
        return self.found(now, foundation.lineage, foundation.size, self._joining.run, foundation.policy)
