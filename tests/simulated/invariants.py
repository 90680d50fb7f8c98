"""Invariants of steps, by their names in PROTOCOL.md, checked after every event."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from gossip import Member, RunDescription, Stamp, View
from gossip.effects import Feed
from gossip.progress import NOTHING_DONE, Finish, Ready

from .divergence import DivergenceOracle
from .measuring import Agreed
from .memory import Tokens
from .parameters import Parameters
from .report import brief
from .training import NUM_OPERATIONS, OTHER, Results


class Violation(Exception):
    """An invariant does not hold; the members concerned are named in the message."""

    def __init__(self, invariant: str, message: str) -> None:
        super().__init__(f"{invariant}: {message}")
        self.invariant = invariant


@dataclass(eq=False, slots=True)
class Lineage:
    """One chain of views, as observed by all of its members together.

    Attributes:
        started: per view, the step from which it started, the digest of the state, and the first member to start.
        committed: per step, its content, and the first member to commit it.
        committed_in: per step, the earliest view in which a member had committed it.
        raised: per step and member whose script was told that it was given up: the view in which it was given up, the
            time at which the script was told, the view from which on others may know, and the view of the telling.
        mixed: steps that were finished in a view of several numerics classes.
        truths: per step, the updates that the parameters have had.
        gap_s: the longest time between two steps.
    """

    views: dict[int, View] = field(default_factory=dict)
    latest: View | None = None
    last_committed: int = NOTHING_DONE
    started: dict[int, tuple[int, Parameters, Member]] = field(default_factory=dict)
    committed: dict[int, tuple[Finish, Member]] = field(default_factory=dict)
    committed_in: dict[int, int] = field(default_factory=dict)
    raised: dict[int, dict[Member, tuple[int, float, int, int]]] = field(default_factory=dict)
    mixed: set[int] = field(default_factory=set)
    truths: dict[int, tuple[bytes, ...]] = field(default_factory=dict)
    last_commit_s: float | None = None
    gap_s: float = 0.0


class Invariants:
    """All observations of all processes of one run, including dead and excluded ones."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self.lineages: dict[bytes, Lineage] = {}
        self.done: dict[Member, int] = {}
        self.damaged: set[Member] = set()
        self.who_goes = DivergenceOracle(self)
        self.agreed = Agreed()
        self.heirs: dict[bytes, Member] = {}
        self._began_with: dict[tuple[Stamp, bytes | None], bytes] = {}
        self._first_active: dict[tuple[bytes, Member], int] = {}
        self._active_in: dict[Stamp, set[Member]] = {}
        self._runs: dict[Stamp, tuple[Member, RunDescription]] = {}
        self._ready: dict[tuple[Member, Stamp], Ready] = {}
        self._finished: dict[tuple[bytes, int, int], dict[Member, tuple[bytes, bytes]]] = {}
        self._contributed: dict[tuple[Stamp, int, int], dict[Member, str]] = {}
        self._computed: dict[Member, int] = {}
        self.left: set[Member] = set()
        self.heard_leaving: dict[Member, int] = {}
        """Members whose LEAVE was heard, with the number of the latest view in which it was said."""
        self._given: dict[tuple[Member, int], Parameters] = {}
        self._to_be_told: set[tuple[Member, int]] = set()
        self._taken_back: set[str] = set()

    def lineage(self, view: View) -> Lineage:
        return self.lineages.setdefault(view.lineage, Lineage())

    def was_active(self, lineage: bytes, member: Member, before: float = math.inf) -> bool:
        """Whether `member` has completed the barrier of a view with a number below `before`."""
        return self._first_active.get((lineage, member), math.inf) < before

    def said_ready(self, who: Member, stamp: Stamp, ready: Ready) -> None:
        first = self._ready.setdefault((who, stamp), ready)
        if first is not ready and first.seated and first != ready:
            raise Violation("R4", f"READY of {brief(who)} in view {stamp.number} was {brief(first)}, is {brief(ready)}")

    # Starts of views

    def activated(self, who: Member, view: View, done: int, state: Parameters) -> None:
        lineage = self.lineage(view)
        self._first_active.setdefault((view.lineage, who), view.number)
        self._active_in.setdefault(view.stamp, set()).add(who)
        first = lineage.started.setdefault(view.number, (done, state, who))
        like = self._began_with.setdefault((view.stamp, view.numerics_of(who)), state.digest)
        is_like = first[1].truths == state.truths and like == state.digest
        if first[0] != done or not (is_like or self.damaged):
            raise Violation(
                "S12",
                f"{brief(who)} starts view {view.number} from {done} {brief(state.digest)}, {brief(first[2])} "
                f"from {first[0]} {brief(first[1].digest)}",
            )
        for step in range(done + 1, lineage.last_committed + 1):
            finish, other = lineage.committed[step]
            if lineage.committed_in[step] < view.number:
                raise Violation(
                    "S4", f"{brief(who)} starts view {view.number} at {done}, {brief(other)} committed {brief(finish)}"
                )

    def trains(self, who: Member, view: View, run: RunDescription) -> None:
        """S32: all members start a view with one run description."""
        other, theirs = self._runs.setdefault(view.stamp, (who, run))
        if theirs != run:
            raise Violation("S32", f"{brief(who)} starts view {view.number} with {run}, {brief(other)} with {theirs}")

    def refused(self, who: Member, *, is_unlike: bool) -> None:
        """S32: only peers with another run description are refused."""
        self.seen["refused"] += 1
        if not is_unlike:
            raise Violation("S32", f"{brief(who)} is refused, and trains what the members do")

    # Computing and finishing steps

    def computed(self, who: Member, step: int, operation: int) -> None:
        """S6: no input is computed twice. Steps are computed in order, so the last one is enough to tell."""
        index = step * NUM_OPERATIONS + operation
        if self._computed.get(who, -1) >= index:
            raise Violation("S6", f"{brief(who)} computes its input of operation {operation} of step {step} twice")
        self._computed[who] = index

    def contributed(self, who: Member, stamp: Stamp, step: int, operation: int, token: str) -> None:
        """Record what `who` has submitted in this view."""
        self._contributed.setdefault((stamp, step, operation), {})[who] = token

    def finished(self, who: Member, view: View, step: int, digests: tuple[bytes, bytes]) -> None:
        others = self._finished.setdefault((view.lineage, view.number, step), {})
        for other, theirs in others.items():
            is_alike = view.numerics_of(who) != view.numerics_of(other) or theirs[1] == digests[1]
            if theirs[0] != digests[0] or not (is_alike or self.damaged):
                raise Violation(
                    "S2", f"step {step} has other digests at {brief(who)} than at {brief(other)} in view {view.number}"
                )
        others[who] = digests

    def parameters(self, view: View, step: int) -> dict[Member, bytes]:
        """The parameters with which members have finished `step` in `view`."""
        finished = self._finished.get((view.lineage, view.number, step), {})
        return {member: digests[1] for member, digests in finished.items()}

    def fed(self, who: Member, feed: Feed, forgotten: set[Member]) -> None:
        """S23: only present observers are fed. `forgotten`: members that `who` had to forget and has not met again."""
        if feed.member in forgotten:
            raise Violation(
                "S23", f"{brief(who)} feeds {brief(feed.member)} with step {feed.step}, and has forgotten it"
            )

    def gives(self, first: Member, step: int, state: Parameters) -> None:
        """Record the state after `step` that `first` gives as one of several donors."""
        self._given[first, step] = state

    def gathered(self, who: Member, first: Member, step: int, state: Parameters) -> None:
        """S27: a state from several donors equals that of the first, bit for bit."""
        self.seen["states gathered"] += 1
        if state != self._given[first, step]:
            raise Violation(
                "S27", f"{brief(who)} has gathered another state after {step} than {brief(first)}, its first donor, has"
            )

    def differs(self, who: Member, source: Member, first: Member, step: int) -> None:
        """S28: chunks differ only if a replica is damaged."""
        self.seen["chunks that differ"] += 1
        if not self.damaged:
            raise Violation(
                "S28", f"{brief(who)} has a chunk of {brief(source)}, which differs from {brief(first)} after {step}"
            )

    def has_foreign_bits(self, who: Member) -> None:
        """Note that `who` received a state from a member of another class than its seat, as none of its own had one."""
        self.seen["foreign bits"] += 1
        self.damaged.add(who)

    def resynchronised(self, who: Member, step: int, view: View, slice: str) -> None:
        """S20: after a receipt of several classes a slice is taken, from the member that the view determines."""
        lineage = self.lineage(view)
        if bool(slice) != (step - 1 in lineage.mixed):
            raise Violation("S20", f"{brief(who)} has in step {step} of {brief(view)} the slice {slice or 'of nobody'}")
        if slice:
            self.seen["slices"] += 1
            sizes = Counter(seat.numerics for seat in view.seats)
            largest = [seat for seat in view.seats if sizes[seat.numerics] == max(sizes.values())]
            expected = f"{largest[0].member.peer_id}/{largest[0].member.incarnation}"
            if not slice.endswith(f" of {expected}"):
                raise Violation("S20", f"{brief(who)} takes slice {slice} in {brief(view)}, its source is {expected}")

    def updated(self, who: Member, view: View, finish: Finish, state: Parameters) -> None:
        """S21: each slice of the parameters has had the update of each committed step exactly once."""
        lineage = self.lineage(view)
        truths = lineage.truths
        if len({seat.numerics for seat in view.seats}) > 1:
            lineage.mixed.add(finish.step)
        before = truths.get(finish.step - 1, Parameters().truths)
        after = Parameters(before, before).updated(finish.digest, b"").truths if finish.step > 0 else before
        expected = truths.setdefault(finish.step, after)
        if state.truths != expected and not self.damaged:
            raise Violation("S21", f"{brief(who)} has not had each update of its parameters after {brief(finish)}")

    def who_stays(self, reason: str) -> None:
        """S19: exactly the members that must go, go; `reason`: why that does not hold."""
        if reason:
            raise Violation("S19", reason)

    def agrees(self, who: Member, wrong: str) -> None:
        """S24: rows are gathered, and tables used, as the receipts determine; `wrong`: the deviation."""
        if wrong:
            raise Violation("S24", f"{brief(who)}: {wrong}")

    def moved(self, who: Member, wrong: str, *, is_void: bool) -> None:
        """S25: a broadcast is from the named peer, or void; `wrong`: the deviation."""
        self.seen["broadcasts"] += 1
        self.seen["broadcasts of nobody"] += is_void
        if wrong:
            raise Violation("S25", f"{brief(who)}: {wrong}")

    def inherits(self, who: Member, last: View, living: Iterable[Member]) -> None:
        """S29: after the death of all members, one peer continues. `living`: those that could continue the lineage."""
        self.seen["heirs"] += 1
        if (other := self.heirs.setdefault(last.lineage, who)) != who:
            raise Violation("S29", f"{brief(who)} goes on without {brief(last)}, and so does {brief(other)}")
        if living := tuple(living):
            raise Violation("S29", f"{brief(who)} goes on without {brief(last)}, of whose lineage {brief(living)} live")

    # Committing steps

    def committed(self, who: Member, finish: Finish, finished_in: View, installed: View, now: float) -> None:
        step, lineage = finish.step, self.lineage(installed)
        self.who_stays(self.who_goes.committed(who, step))
        first, other = lineage.committed.setdefault(step, (finish, who))
        if first != finish:
            raise Violation("S3", f"{brief(who)} commits {brief(finish)}, {brief(other)} committed {brief(first)}")
        if step != self.done.get(who, NOTHING_DONE) + 1:
            raise Violation("S5", f"{brief(who)} commits step {step} after {self.done.get(who)}")
        for told, (given_up_in, _, known_in, told_in) in lineage.raised.get(step, {}).items():
            is_heard = self.heard_leaving.get(told, 0) >= told_in  # an earlier LEAVE says nothing about the step
            is_known = is_heard or known_in <= given_up_in  # otherwise it was told before others could know
            stays = installed.since(told) is not None or (told in self.left and is_known)
            if stays and finish.view_number <= given_up_in:
                said = f"{brief(told)} was told that it came to nothing"
                raise Violation("S14", f"{brief(who)} commits {brief(finish)}, {said}")
        if finish.view_number != finished_in.number:
            raise Violation("S9", f"{brief(who)} commits {brief(finish)} as finished in {brief(finished_in)}")
        self.done[who] = step
        lineage.committed_in[step] = min(lineage.committed_in.get(step, installed.number), installed.number)
        if lineage.started and max(lineage.started) > installed.number:
            self._never_started_below(who, finish, installed, lineage)
        if step > 0:
            self._finished_by_all(who, finish, installed)
        self._close_together(who, step, installed)
        if step > lineage.last_committed:
            lineage.last_committed = step
            self.seen["steps"] += 1
            if step > 1 and lineage.last_commit_s is not None:
                lineage.gap_s = max(lineage.gap_s, now - lineage.last_commit_s)
            lineage.last_commit_s = now

    def _never_started_below(self, who: Member, finish: Finish, installed: View, lineage: Lineage) -> None:
        for number, (done, _, starter) in lineage.started.items():
            if number > installed.number and done < finish.step:
                raise Violation(
                    "S4", f"{brief(who)} commits {brief(finish)}, {brief(starter)} started view {number} at {done}"
                )

    def _finished_by_all(self, who: Member, finish: Finish, installed: View) -> None:
        has = self._finished.get((installed.lineage, finish.view_number, finish.step), {})
        for member in installed.members:
            is_seated = self.was_active(installed.lineage, member, installed.number)
            held_back = is_seated or finish.view_number == installed.number
            if held_back and member not in has and self.done.get(member, NOTHING_DONE) < finish.step:
                what = f"{brief(who)} commits {brief(finish)} in view {installed.number}"
                raise Violation("S8", f"{what}, {brief(member)} has not finished it")

    def _close_together(self, who: Member, step: int, installed: View) -> None:
        """Active members of one view are never more than a step apart (I9)."""
        for member in self._active_in.get(installed.stamp, ()):
            if self.done.get(member, NOTHING_DONE) < step - 1:
                raise Violation("I9", f"{brief(who)} commits {step}, {brief(member)} is at {self.done.get(member)}")

    def contains(self, who: Member, finish: Finish, view: View, results: Results) -> None:
        """A committed step contains exactly what each member of its view has submitted in it."""
        if finish.step == 0:
            return
        if (who, finish.step) in self._to_be_told:
            raise Violation(
                "S17", f"{brief(who)} commits {brief(finish)}, and was not told that it had come to nothing"
            )
        if not results:
            raise Violation("S5", f"{brief(who)} commits {brief(finish)}, whose result it does not have")
        for operation, chunks in enumerate(results):
            inputs = self._contributed.get((view.stamp, finish.step, operation), {})
            expected: Tokens = tuple(inputs.get(member, "nothing") for member in view.members)
            for chunk in chunks:
                if len(chunk) != len(view.members):
                    raise Violation("S9", f"{brief(who)} commits {brief(finish)} of {len(chunk)} members: {chunk}")
                if len({OTHER in token for token in chunk}) > 1:
                    raise Violation(
                        "S30", f"{brief(who)} commits {brief(finish)}, the sum of calls that differ: {chunk}"
                    )
                if not self._taken_back.isdisjoint(chunk):
                    raise Violation("S16", f"{brief(who)} commits {brief(finish)} with what was taken back: {chunk}")
                if chunk != expected:
                    raise Violation(
                        "S7", f"{brief(who)} commits {brief(finish)} with {chunk}, submitted was {expected}"
                    )

    def used(self, who: Member, finish: Finish, handed_out: tuple[Tokens, ...], committed: tuple[Tokens, ...]) -> None:
        """S13: results that were returned before the commit are those that commit."""
        if handed_out != committed:
            raise Violation("S13", f"{brief(who)} has used {handed_out}, and commits {brief(finish)} with {committed}")

    def loaded(self, who: Member, step: int) -> None:
        self.done[who] = step

    def raised(
        self, who: Member, view: View, step: int, given_up_in: int, now: float, *, is_alone: bool = False
    ) -> None:
        """A script was told, in `view`, that a step does not count that was given up in view `given_up_in` (S14).

        `is_alone`: the member goes, and the others redo the step as soon as one of them has heard of it.
        """
        lineage = self.lineage(view)
        self._to_be_told.add((who, step))
        lineage.raised.setdefault(step, {})[who] = given_up_in, now, view.number + is_alone, view.number
        is_out = lineage.latest is not None and lineage.latest.since(who) is None  # it will hear so next
        if not is_out and step in lineage.committed and lineage.committed[step][0].view_number <= given_up_in:
            raise Violation("S14", f"{brief(who)} is told that step {step} came to nothing, it is committed")

    def told(self, who: Member, step: int) -> None:
        """A script is told that `step` was given up."""
        self._to_be_told.discard((who, step))

    def took_back(self, tokens: Iterable[str]) -> None:
        """A script has withdrawn these inputs: they count nowhere."""
        self._taken_back.update(tokens)

    def ended(self, who: Member, now: float) -> None:
        """Forget what a script was told in the last second before its end: it binds no other member."""
        for lineage in self.lineages.values():
            for told in lineage.raised.values():
                if who in told and now - told[who][1] <= 1.0:
                    del told[who]
