"""View change: what should change in the installed view, as one member sees it, and when it may propose that.

It turns observations of discovery and the host into reports, evaluates the reports of all members, and feeds the
agreement. Every decision carries its reason as a sentence.
"""

import math
from collections.abc import Collection
from dataclasses import replace
from random import Random

from .acceptor import reading
from .admission import FIRST, Admission
from .agreement import Agreement, Result
from .commit import Phase, StepMachine
from .config import CoreConfig
from .effects import Effect, Explain, Paused, Resumed, Send, WriteRecord
from .messages import AcceptorRecord, Report, ReportKind
from .progress import NOTHING_DONE
from .reports import Cut, Reports
from .swim import Swim
from .view import Change, Decision, Joiner, Member, View, can_decide, feeder_of, propose_view

MOST_DEAD = 256
"""Limit of dead peers whose records are kept: they may have a seat in a view that is not known yet."""


class ViewChange:
    """Reports, joiners, leavers and the agreement of one member. It has a view once `install` was called."""

    def __init__(self, me: Member, swim: Swim, *, rng: Random, config: CoreConfig) -> None:
        self.me = me
        self.reason = "not in a view yet"
        self.agreement = Agreement(me, rng=rng, config=config.agreement)
        self.reports = Reports(config.reports)
        self.admission = Admission(config.admission)
        self.leavers: dict[Member, None] = {}
        self.view: View | None = None
        self._swim = swim
        self._config = config
        self._refused: dict[Member, float] = {}
        self._behind: dict[Member, float] = {}
        self._undelivered: dict[Member, float] = {}
        self.dead: dict[Member, AcceptorRecord | None] = {}
        self._restart_request: Report | None = None
        self._own: tuple[Report, ...] = ()
        self._settles_at = math.inf
        self._held, self._held_until, self._hold_again = NOTHING_DONE, -math.inf, -math.inf
        self._final_since = math.inf
        self._seen: tuple[object, ...] | None = None
        self._paused: Paused | None = None

    @property
    def leaving(self) -> bool:
        """Whether this member has said LEAVE."""
        return self.me in self.leavers

    def install(self, now: float, view: View) -> list[WriteRecord]:
        """Begin to watch for the successor of `view`."""
        before, self.view = self.view, view
        self.reason = propose_view(view, Change()).reason
        for member in before.members if before is not None else ():
            is_removed = view.since(member) is None and member not in self.leavers
            if is_removed and not self._swim.flaps(now, member):  # else it has to be quiet
                self.admission.removed(now, member, flaps=self.reports.flaps(member))
        if before is not None:
            self.admission.view_changed(now, before, view)
        self._restart_request, self._own = None, ()
        self._settles_at = self._final_since = math.inf
        self._held, self._hold_again = NOTHING_DONE, -math.inf
        self.leavers = {m: None for m in self.leavers if view.since(m) is not None or m == self.me}
        self._behind.clear()
        self._undelivered.clear()
        self.reports.install(view)
        self.admission.install(view)
        effects = self.agreement.install(view)
        for member in view.members:
            if member in self.dead:  # before this view was known
                self.declare_dead(now, member, self.dead[member])
        return effects

    def next_deadline(self) -> float:
        held_until = math.inf if self._held == NOTHING_DONE else self._held_until
        return math.inf if self.view is None else min(self.agreement.next_deadline(), self._settles_at, held_until)

    # Observations

    def declare_dead(self, now: float, member: Member, record: AcceptorRecord | None) -> list[Result]:
        """`member` is dead for certain. `record` was read after its death, by the peer that reports it."""
        self.dead[member] = record or self.dead.pop(member, None)
        while len(self.dead) > MOST_DEAD:
            del self.dead[next(iter(self.dead))]
        if self.view is None or self.view.since(member) is None:
            return []
        if record is not None and reading(record, self.view) is None:
            record = None
        self.reports.receive(now, self.me, Report(ReportKind.PROVEN, member, record=record))
        return self.agreement.declare_dead(now, member, record) if record is not None else []

    def link_refused(self, now: float, member: Member) -> bool:
        """The link to `member` was lost and a new one refused, or it is in another swarm. Whether that is new."""
        self._refused = {other: until for other, until in self._refused.items() if until > now}
        was_known = member in self._refused
        self._refused[member] = now + self._config.reports.lease_s
        return not was_known

    def mark_behind(self, now: float, member: Member) -> None:
        """`member`, which has a seat, sends messages in an older view, and is told of this one each time."""
        self._behind.setdefault(member, now)

    def undelivered(self, now: float, member: Member) -> None:
        """Data do not reach `member`, which answers (G16). The caller repeats this while it is so."""
        self._undelivered[member] = now + self._config.reports.lease_s

    def clear_behind(self, member: Member) -> None:
        """`member` sends messages in the installed view."""
        if self._behind:
            self._behind.pop(member, None)

    def request_redo(self, report: Report) -> None:
        """Ask for a restart of the open step, by the same members in a new view."""
        self._restart_request = report

    def wants_redo(self, step: int) -> bool:
        """Whether this member has already asked for a restart of `step`."""
        return self._restart_request is not None and self._restart_request.step == step

    def cancel_redo(self, kind: ReportKind) -> None:
        """Withdraw a restart request of this kind, which is no longer needed."""
        if self._restart_request is not None and self._restart_request.kind is kind:
            self._restart_request = None

    def resume(self, now: float) -> None:
        """This process was stopped: the silence of others meanwhile proves nothing."""
        self.admission.resume(now)
        self._behind.clear()

    def send_reports(self, now: float, *, repeat: bool) -> list[Effect]:
        """Report new observations to all members, or all of them if it is time to `repeat` them."""
        if self.view is None:
            return []
        known, self._own = self._own, tuple(self._observations(now))
        self._seen = None if repeat else self._seen
        news = self._own if repeat else [report for report in self._own if report not in known]
        for report in news:
            self.reports.receive(now, self.me, report)
        others = [member for member in self.view.members if member != self.me and not self._swim.is_gone(member)]
        return [Send(member, report) for report in news for member in others]

    def _observations(self, now: float) -> list[Report]:
        assert self.view is not None
        is_first = self.me == next(member for member in self.view.members if not self._swim.is_gone(member))
        known = self._known_silent()
        found: list[Report] = []
        for member in self.view.members:
            if member == self.me:
                continue
            if self._swim.is_gone(member):
                found.append(
                    Report(ReportKind.PROVEN, member, record=self.reports.records.get(member) if is_first else None)
                )
                continue
            if self._refused.get(member, -math.inf) > now:
                found.append(Report(ReportKind.REFUSED, member))
                continue
            if self._is_silent(now, member, known):
                found.append(Report(ReportKind.SILENT, member))
            if self._swim.flaps(now, member):
                found.append(Report(ReportKind.FLAPPING, member))
        return [*found, self._restart_request] if self._restart_request is not None else found

    def _known_silent(self) -> set[Member]:
        """Members that this one reports as silent."""
        return {report.subject for report in self._own if report.kind is ReportKind.SILENT}

    def _is_silent(self, now: float, member: Member, known: Collection[Member]) -> bool:
        """Whether to report `member` as silent; `known`: it is reported already."""
        patience = 1 if member in known else self._swim.health_multiplier()  # delays a report, and withdraws none
        limit_s = self._config.reports.silent_s * patience / (2 if self._swim.is_lost(member) else 1)
        is_deaf = now - self._behind.get(member, now) >= self._config.reports.force_cut_s
        is_unreached = self._undelivered.get(member, -math.inf) > now
        return is_deaf or is_unreached or self._swim.silence_s(now, member) >= limit_s

    def _hears(self, now: float, member: Member) -> bool:
        """Whether this peer has nothing to report of `member`, whatever others report of it."""
        return not (self._is_silent(now, member, self._known_silent()) or self._swim.flaps(now, member))

    # Conclusions

    def reconsider(self, now: float, steps: StepMachine) -> list[Effect]:
        """Propose what should change, if anything, and explain the decision when its reason changes."""
        assert self.view is not None
        if now >= self._held_until:
            self._held = NOTHING_DONE
        if self._is_idle():
            return []
        is_active = steps.phase is Phase.ACTIVE
        cut = self.reports.cut(now, steps.done + 1)
        view, going = self.view, {*cut.gone, *self.leavers}
        joiners = self.admission.joiners() if going else []
        unfed = [joiner for joiner in joiners if feeder_of(joiner, view, self.admission.numerics_of(joiner)) in going]
        has_finished = steps.finish is not None
        candidates = self.admission.candidates(now, steps.done, unfed, has_finished=has_finished) if is_active else []
        num_records = len(self.reports.records)
        is_heard = any(self._hears(now, member) for member in cut.silent)
        settles_at = cut.forced_at if is_heard else cut.settles_at
        seen = (
            cut,
            settles_at,
            now < settles_at,
            candidates,
            [*self.leavers],
            is_active,
            steps.seated,
            self._own,
            num_records,
        )
        if seen == self._seen:
            return []  # called for every frame; few frames change anything
        self._seen = seen
        change = Change(
            gone=cut.gone,
            proven=self.reports.proven,
            witnessed=self.reports.records,
            leaving=self.leavers,
            joiners=self._reachable(now, candidates),
            redo_reason=cut.redo_reason if is_active else "",
        )
        decision = propose_view(self.view, change)
        if self.me in cut.gone:
            decision = replace(
                decision, reason=f"others in view {self.view.number} report that they do not hear this peer"
            )
        if not steps.seated and all(member in self.reports.proven for member in steps.possibly_seated()):
            reason = f"all members of view {self.view.number} that have the state are dead"
            decision = Decision(None, reason, quorum_lost=True, is_final=True)
        wanted = decision.successor if steps.seated and self.me not in cut.gone else None
        self._settles_at = settles_at if now < settles_at and wanted is not None else math.inf
        if now < settles_at:
            wanted = None
        needed_s = max((self.admission.needed_s(now, member) for member in change.joiners), default=-math.inf)
        needs_state = wanted is not None and needed_s >= 0 and steps.done >= FIRST
        self._hold(now, steps.done if needs_state else NOTHING_DONE)
        is_long = needed_s >= self._config.admission.lag_s  # the member whose turn it is has not proposed it
        self.agreement.want(now, wanted, 0.0 if is_long else self._delay(cut))
        return [*self._explain(decision), *self._pause_or_resume(now, decision)]

    def _hold(self, now: float, done: int) -> None:
        """A joiner is wanted that needs the state after step `done`; NOTHING_DONE: there is none."""
        if done not in (NOTHING_DONE, self._held) and now >= self._hold_again:
            config = self._config.admission
            self._held_until, self._hold_again = now + config.lag_s, now + config.load_timeout_s
        self._held = done if now < self._held_until else NOTHING_DONE

    def holds_step(self, now: float, done: int) -> bool:
        """Whether step `done` + 1 must not be finished here yet.

        This member proposes a view in whose barrier a joiner needs the state after `done`, which no member has any more
        once that step is committed. The hold is short, and is not repeated soon: the members that must accept may be
        out of reach.
        """
        return self._held == done and self.agreement.is_under_way(now)

    def _reachable(self, now: float, candidates: list[Member]) -> dict[Member, Joiner]:
        here = [member for member in candidates if self._swim.is_alive(member) and self._swim.is_steady(now, member)]
        claims = {member: self._swim.claim_of(member) for member in here}
        known = [(member, claim, self.admission.join_of(member)) for member, claim in claims.items()]
        return {member: Joiner(claim.contact, join.numerics) for member, claim, join in known if claim is not None}

    def _is_idle(self) -> bool:
        """Whether there is, as before, no reason to change the view."""
        idle = self.reports.is_empty() and self.admission.is_empty() and not self._own and not self.leavers
        return idle and self._paused is None and self._settles_at == math.inf and not self.agreement.is_wanted

    def _delay(self, cut: Cut) -> float:
        """Delay before a proposal: the first survivor begins if a member is gone for certain, else a rotating one."""
        assert self.view is not None
        order = [m for m in self.view.members if m not in cut.gone and (m not in self.leavers or m == self.me)]
        if self.me not in order:
            return len(self.view.members) * self._config.join_stagger_s
        turn = order.index(self.me)
        if cut.is_urgent and (len(order) < len(self.view.members) or self.leaving or cut.redo_reason):
            return turn * self._config.death_stagger_s
        return (turn - self.view.number) % len(order) * self._config.join_stagger_s

    def _explain(self, decision: Decision) -> list[Effect]:
        if decision.reason == self.reason:
            return []
        self.reason = decision.reason
        return [Explain(decision.reason)]

    def _pause_or_resume(self, now: float, decision: Decision) -> list[Effect]:
        """Pause if this side cannot decide anything, else resume; silence seen by this member alone counts, too."""
        assert self.view is not None
        missing = {report.subject: None for report in self._own if report.kind <= ReportKind.SILENT}
        here = [member for member in self.view.members if member not in missing]
        paused = None
        self._final_since = min(self._final_since, now) if decision.is_final else math.inf
        if decision.quorum_lost:  # a record may arrive a little later than the news of the death
            is_final = now - self._final_since >= self._config.reports.lease_s
            paused = Paused(decision.reason, is_final)
        elif missing and not can_decide(here, self.reports.records, self.view):
            unheard = ", ".join(map(str, missing))
            share = f"{len(here)} of {len(self.view.members)}"
            reason = f"{share} members of view {self.view.number} can be heard, not {unheard}"
            paused = Paused(reason, is_final=False)
        before, self._paused = self._paused, paused
        if paused == before:
            return []
        return [paused] if paused is not None else [Resumed(decision.reason)]
