"""Commit of steps: a step commits when all members have finished it.

A member *finishes* a step when its own results are complete, and says so to all; it *commits* the step when every
member of the view has finished it with the same bits. A new view ends the older one at once; its barrier shows what
every seated member has finished, commits that, and drops the rest, which the survivors redo. So a member that commits a
step knows that every survivor will, and a receipt is final when it is written.

A member that gives up a step has not finished it. Every member that knows of that says so, and results of the step
finished until then are void.

Invariants: what one member has committed, every seated member of its view has finished; all members of a view start it
from the same step and digest; what READY says of a seated member is fixed when the view is installed; a void result is
committed nowhere.

Knows names and step numbers, not tensors. Leaves out: why members redo a step (reports.py), and how a peer without a
seat gets what it lacks (observing.py).
"""

from dataclasses import replace
from enum import Enum, auto
from hashlib import blake2b

from .claim import State
from .effects import (
    Aborted,
    AbortReceived,
    Activated,
    Committed,
    Diverged,
    Effect,
    Installed,
    Outvoted,
    Removed,
    Send,
)
from .given_up import Cause, GivenUp, GivingUp, latest_view
from .levels import chain, common_level, difference, has_finished, is_sound, recency, who_stays, without_void
from .parting import Parting
from .progress import LAST_STEP, NOT_CALLED, NOTHING_DONE, Abort, Beat, Finish, Progress, Ready
from .view import Member, View


class Phase(Enum):
    """Phase of a member with regard to its view."""

    JOINING = auto()
    INSTALLING = auto()
    ACTIVE = auto()


class StepMachine:
    """Steps that one member has finished and committed, and what it knows of the others in the installed view."""

    def __init__(self, me: Member) -> None:
        self._me = me
        self.phase = Phase.JOINING
        self.view: View | None = None
        self._others: tuple[Member, ...] = ()
        self.seated = False
        self.done = NOTHING_DONE
        self.digest = b""
        self.previous = b""
        self.submitted = self.complete = self.inner_steps = 0
        self.finish: Finish | None = None
        self._finish_view: View | None = None
        self.parting = Parting(me)
        self._giving_up = GivingUp()
        self._called: dict[int, Abort] = {}
        self._ready: dict[Member, Ready] = {}
        self._progress: dict[Member, Progress] = {}
        self._target: tuple[int, bytes] | None = None
        self.reads: set[Member] = set()
        self._maps_all = False

    @property
    def given_up(self) -> GivenUp | None:
        """The step that this member announces as given up."""
        return self._giving_up.known

    # Views and barriers

    def could_share(self) -> bool:
        """Whether the host can now read the memory of all others, and could not when the view was installed."""
        return self.view is not None and not self._maps_all and self._reads_all(self.view)

    def _reads_all(self, view: View) -> bool:
        return all(member in self.reads for member in view.members if member != self._me)

    def found(self, view: View) -> list[Effect]:
        """Begin a lineage without committed steps."""
        self.seated = True
        self.digest = blake2b(view.lineage, digest_size=16).digest()
        return self.install(view)

    def install(
        self, view: View, gone: tuple[tuple[Member, State], ...] = (), *, has_stalled: bool = False
    ) -> list[Effect]:
        """End the view before and say READY for this one. `gone`, `has_stalled`: see `Installed`."""
        if self._giving_up.is_in_use and self.view is not None and self.view.members != view.members:
            reason = "its results were in use before its commit, and members have joined or left"
            self._giving_up.give_up(self.done + 1, self.view.number, Cause.IN_USE, reason)  # others have other results
        self.finish = None if self.parting.is_void else self.finish
        self.parting.install(self.view, view, self.done + 1, self._progress)
        before, self.view, self.phase = self.view, view, Phase.INSTALLING
        self._others = tuple(member for member in view.members if member != self._me)
        if before is not None and (finish := self.finish) and (reason := self.why_contradicted(finish.state_digest)):
            self._giving_up.give_up(finish.step, before.number, Cause.DIVERGED, reason)
        self._ready, self._progress, self._target, self._called = {}, {}, None, {}
        self.submitted = self.complete = 0
        self._maps_all = self._reads_all(view)
        founded_in = self.parting.founded_in
        mine = Ready(self.seated, self.done, self.digest, self.finish, self.given_up, self._maps_all, founded_in)
        effects: list[Effect] = [Installed(view, gone, has_stalled), *self._tell_all(mine)]
        return [*effects, *self.receive(self._me, mine)]

    def loaded(self, step: int, digest: bytes) -> list[Effect]:
        """The state after `step` was loaded, or an observer has run that step with the results it was fed.

        Args:
            step: the step.
            digest: of the chain up to it, as the donor gave it.
        """
        if not self.takes(step, digest):
            return []  # another view came meanwhile, and its barrier may ask for a later state
        self.done, self.digest = step, digest
        if self.phase is Phase.JOINING:
            return []
        mine = replace(self._ready[self._me], done=step, digest=digest)
        return [*self._tell_all(mine), *self.receive(self._me, mine)]

    def takes(self, step: int, digest: bytes) -> bool:
        """Whether the state after `step` is useful: later than this member's, or the one that the barrier requires."""
        is_next = (step > self.done or not self.digest) and (self._target is None or step < self._target[0])
        is_wanted = (step, digest) == self._target and self._target != (self.done, self.digest)
        return not self.seated and (is_next or is_wanted)

    def wanted_state(self) -> tuple[int, bytes, Member] | None:
        """Step and chain digest of the state that this member needs before it is seated, and a donor."""
        if self.seated or self._target is None or self._target == (self.done, self.digest):
            return None
        assert self.view is not None
        own, seated = self.view.numerics_of(self._me), [s for s in self.view.seats if self._ready[s.member].seated]
        donors = [seat for seat in seated if seat.numerics == own] or seated
        return (*self._target, donors[self.view.number % len(donors)].member)

    def receive(self, source: Member, body: Ready | Progress | Beat) -> list[Effect]:
        """Handle a message of `source`, a member of the installed view, sent in that view."""
        assert self.view is not None
        match body:
            case Ready() | Progress() if not is_sound(body, self.view):
                return []
            case Ready():
                fixed = source in self._ready and self._ready[source].seated
                if not fixed:
                    self._ready[source] = body
                    self.hear(body.given_up)
                return self._try_barrier()
            case Progress():
                known = self._progress.get(source)
                if known is None or recency(known) <= recency(body):  # a beat may be older than what overtook it
                    self._progress[source] = body
                return [*self._compare_ends(source, body), *self._try_commit()]
        return [*self.receive(source, body.ready), *self.receive(source, body.progress)]

    def _try_barrier(self) -> list[Effect]:
        assert self.view is not None
        if self.phase is not Phase.INSTALLING or len(self._ready) < len(self.view.members):
            return []
        seated = {member: ready for member, ready in self._ready.items() if ready.seated}
        if not seated:
            return [
                Removed(f"no member of view {self.view.number} has the state: those that had it have left, or died")
            ]
        effects: list[Effect] = []
        if self._target is None:
            given_up = [ready.given_up for ready in self._ready.values() if ready.given_up is not None]
            done, digest, odd = common_level(without_void(seated, given_up), self.view, self._learn_founded_in())
            self._target = done, digest
            effects += self._settle(done, digest) if self.seated else []
            effects += self._abort(done + 1, given_up)
            effects += self._diverge(done + 1, odd) if odd and self.seated else []
        joiners = [ready for ready in self._ready.values() if not ready.seated]
        if all((ready.done, ready.digest) == self._target for ready in joiners):
            self.phase, self.seated = Phase.ACTIVE, True
            self._giving_up.keep_of(self.done + 1)
            maps_all = all(ready.maps_all for ready in self._ready.values())
            effects.append(Activated(self.view, self.done, maps_all, self._learn_founded_in()))
        return effects

    def _learn_founded_in(self) -> int:
        """Learn from READY in which view step 0 was finished, if it is committed, or is by this barrier."""
        done = NOTHING_DONE if self._target is None else self._target[0]
        for ready in self._ready.values():
            is_first = ready.finish is not None and ready.finish.step == 0 <= done
            in_barrier = ready.finish.view_number if ready.finish is not None and is_first else 0
            self.parting.founded_in = self.parting.founded_in or ready.founded_in or in_barrier
        return self.parting.founded_in

    def _settle(self, done: int, digest: bytes) -> list[Effect]:
        """Commit the step if every seated member has finished it; otherwise drop it."""
        effects: list[Effect] = []
        if self.finish is not None and done == self.finish.step:
            effects += self._commit(self.finish)
        self.finish = None
        if (self.done, self.digest) != (done, digest):
            effects.append(Diverged(done, f"step {done} has digest {self.digest.hex()} here, {digest.hex()} elsewhere"))
        return [*effects, *self.parting.go_damaged(self.done + 1)]

    # Steps given up

    def hear(self, given_up: GivenUp | None) -> None:
        """A member says that a step is given up; this one repeats it in READY and LEAVE until a step commits.

        Words of non-members and about later views do not count: they could void what a barrier without them has
        committed.
        """
        assert self.view is not None
        last = self.done + 2 if self.seated else LAST_STEP  # others may have committed the open step already
        if given_up is not None and self.done < given_up.step <= last and latest_view(given_up) <= self.view.number:
            self._giving_up.hear(given_up)

    def give_up(self, step: int, cause: Cause, reason: str, *, is_told: bool) -> None:
        """This member does not finish `step`; the caller starts another view. `is_told`: its script knows."""
        assert self.view is not None and self.seated and step == self.done + 1 and self.finish is None
        self._giving_up.give_up(step, self.view.number, cause, reason)
        if is_told:
            self._giving_up.told(self.view.number)

    def _abort(self, step: int, said: list[GivenUp]) -> list[Effect]:
        """Tell the script, once, that the barrier has not committed `step`, and announce earlier finishes as void."""
        assert self.view is not None
        news = self._giving_up.news(step, self.view.since(self._me) or 0, said)
        if news is None or not (self.seated or news.cause is Cause.DIVERGED):
            return []  # what was before it had a seat does not concern this member
        told, self._giving_up.is_in_use = replace(news, void_until=self.view.number - 1), False
        self.hear(told)
        return [Diverged(step, told.reason)] if told.cause is Cause.DIVERGED else [Aborted(told)]

    def _diverge(self, step: int, reason: str) -> list[Effect]:
        """No side can stay. This member says so until the others know, and its results of `step` are void."""
        assert self.view is not None
        self._giving_up.give_up(step, self.view.number, Cause.DIVERGED, reason)
        self._giving_up.told(self.view.number)
        self.parting.is_void = True
        return [Diverged(step, reason)]

    def why_contradicted(self, state_digest: bytes) -> str:
        """In what departed founders differ from these parameters of the open step; see `Parting`."""
        assert self.view is not None
        return self.parting.why_contradicted(self.view, self.done + 1, state_digest)

    def contradict(self, state_digest: bytes) -> list[Effect]:
        """Do not finish the open step with these parameters if departed founders differ from them."""
        reason = self.why_contradicted(state_digest)
        return self._diverge(self.done + 1, reason) if reason else []

    def send_abort(self, abort: Abort) -> list[Effect]:
        """Send the operation that is called here to all members, some of which have called another."""
        self._called[abort.operation] = abort
        return self._tell_all(abort)

    def damaged(self, why: str) -> list[Effect]:
        """As `Parting.damaged`; others may have committed a step that is finished here, so its outcome is awaited."""
        self.parting.damaged = why
        is_open = self.finish is None or self.parting.is_void
        return [*self.parting.go_damaged(self.done + 1)] if is_open else []

    def go(self) -> None:
        """This member does not stay: it sends LEAVE with the open step, and what it has finished of it is void."""
        self.parting.goes_in, self.parting.is_void = self.done + 1, True

    # Finish and commit within a view

    def finished(self, step: int, digest: bytes, state_digest: bytes, *, is_shown: bool = False) -> list[Effect]:
        """All operations of `step` are complete here, in the installed view."""
        assert self.view is not None and self.phase is Phase.ACTIVE, f"step {step} finished in {self.phase.name}"
        assert step == self.done + 1 and self.finish is None, f"step {step} finished after {self.done}, {self.finish}"
        view = self.view
        self.finish, self._finish_view = Finish(step, digest, state_digest, view.number, view.is_mixed), view
        told = [] if is_shown else self._tell_all(self._own_progress())
        return [*told, *self._try_commit()]

    def _compare_ends(self, source: Member, body: Progress) -> list[Effect]:
        """If `source` finished the open step after fewer operations than were submitted here, it will call no more."""
        finish = body.finish
        if finish is None or self.finish is not None or not 0 < body.submitted < self.submitted:
            return []
        if self.view is None or (finish.step, finish.view_number) != (self.done + 1, self.view.number):
            return []
        return [AbortReceived(source, Abort(finish.step, body.submitted, NOT_CALLED))]

    def all_finished(self) -> list[Effect]:
        """Commit: every other member has finished, in this view, the same step with the same bits."""
        assert self.phase is Phase.ACTIVE and self.finish is not None
        return self._commit(self.finish)

    def num_submitted(self, member: Member) -> int | None:
        """Operations of the open step that `member` has submitted, as far as it has said; None: all."""
        if member == self._me:
            return self.submitted if self.finish is None else None
        progress = self._progress.get(member)
        if progress is None or progress.done < self.done:
            return 0
        return progress.submitted if progress.done == self.done and progress.finish is None else None

    def inner_steps_of_others(self) -> dict[Member, int]:
        """Local steps of members that have not finished the open step, as they have said."""
        said = [*self._progress.items()]
        return {who: each.inner_steps for who, each in said if each.done == self.done and each.finish is None}

    def awaited(self) -> list[Member]:
        """Members whose READY the barrier of the installed view still waits for."""
        if self.view is None or self.phase is not Phase.INSTALLING:
            return []
        current = [m for m, ready in self._ready.items() if ready.seated or (ready.done, ready.digest) == self._target]
        return [member for member in self.view.members if member not in current]

    def possibly_seated(self) -> list[Member]:
        """Other members that have the state, or may have it."""
        return [member for member in self._others if member not in self._ready or self._ready[member].seated]

    def is_seated(self, member: Member) -> bool:
        """Whether `member` of the installed view has completed a barrier, as it has said or this member has seen."""
        return self.phase is Phase.ACTIVE or (member in self._ready and self._ready[member].seated)

    def stuck_at(self) -> tuple[int, int] | None:
        """The open step and its operations, if all members have submitted these and they are incomplete here."""
        if self.phase is not Phase.ACTIVE or self.finish is not None or self.complete >= self.submitted:
            return None
        others = [self.num_submitted(member) for member in self._others]
        is_stuck = all(number is None or number >= self.submitted for number in others)
        return (self.done + 1, self.submitted) if is_stuck else None

    def mark_in_use(self) -> None:
        """Results of the open step are used here before its commit: if other members redo it, all give it up."""
        self._giving_up.is_in_use = True

    def beat(self) -> list[Effect]:
        """Repeat READY, progress and called operations, for members that lost a frame."""
        if self.view is None:
            return []
        called = [effect for abort in self._called.values() for effect in self._tell_all(abort)]
        return [*self._tell_all(Beat(self._ready[self._me], self._own_progress())), *called]

    def _own_progress(self) -> Progress:
        """Progress of this member; before it is seated nothing is done here, whatever it took over elsewhere."""
        if not self.seated:
            return Progress(NOTHING_DONE, b"", None)
        return Progress(self.done, self.digest, self.finish, self.submitted, self.inner_steps)

    def _try_commit(self) -> list[Effect]:
        assert self.view is not None
        if self.phase is not Phase.ACTIVE or self.finish is None or self.parting.is_void:
            return []
        others: dict[Member, Progress] = {}
        for member in self._others:
            progress = self._progress.get(member)
            if progress is None or not has_finished(progress, self.finish):
                return []
            others[member] = progress
        if not self.finish.is_far and all(progress.finish == self.finish for progress in others.values()):
            return self._commit(self.finish)  # a shortcut: ten times faster than the checks below
        if stay := who_stays(self.view, self.parting.founded_in, self._me, self.finish, others):
            return self._part(self.finish.step, stay)
        if reason := difference(self.view, self._me, self.finish, others, chain(self.digest, self.finish)):
            return self._diverge(self.finish.step, reason)
        return self._commit(self.finish)

    def _part(self, step: int, stay: frozenset[Member]) -> list[Effect]:
        """Members that do not stay leave, and may return for the parameters of the others, which redo the step."""
        assert self.view is not None
        if self._me in stay:
            going = [member for member in self.view.members if member not in stay]
            return [effect for member in going for effect in self.part_from(member, step)]
        names = ", ".join(str(member) for member in self.view.members if member in stay)
        self.parting.why = (
            f"the parameters of step {step} at {self._me} differ from those of {names}, which continue without it"
        )
        return [Outvoted(step)]

    def part_from(self, member: Member, step: int) -> list[Effect]:
        """`member` differs, in `step`, from the members that stay: they redo it without `member` if it is open here."""
        return [*self.parting.part_from(member, step)] if step == self.done + 1 else []

    def _commit(self, finish: Finish) -> list[Effect]:
        assert self._finish_view is not None
        self.previous, self.digest = self.digest, chain(self.digest, finish)
        self.done, self.finish, self._called = finish.step, None, {}
        self.submitted = self.complete = self.inner_steps = 0
        self.parting.committed(finish)
        self._giving_up.is_in_use = False
        self._giving_up.keep_of(self.done + 1)
        return [Committed(finish.agreed, self._finish_view), *self.parting.go_damaged(self.done + 1)]

    def _tell_all(self, body: Ready | Progress | Beat | Abort) -> list[Effect]:
        return [Send(member, body) for member in self._others]
