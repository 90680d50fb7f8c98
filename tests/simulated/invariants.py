"""What must hold after every event: the invariants of research/step-commit.md, section 3, by their names there."""

import math
from collections import Counter

from gossip import Member, Stamp, View
from gossip.messages import NOTHING_DONE, Finish, Ready

from .report import brief


class Violation(Exception):
    """An invariant does not hold; the members concerned are named in the message."""

    def __init__(self, invariant: str, message: str) -> None:
        super().__init__(f"{invariant}: {message}")
        self.invariant = invariant


class Invariants:
    """All that was ever observed of any process of one run, the dead and the excluded included."""

    def __init__(self) -> None:
        self.views: dict[int, View] = {}
        self.latest: View | None = None
        self.last_committed = NOTHING_DONE
        self.seen: Counter[str] = Counter()
        self._first_active: dict[Member, int] = {}
        self._started: dict[int, tuple[int, bytes, Member]] = {}
        self._ready: dict[tuple[Member, Stamp], Ready] = {}
        self._finished: dict[tuple[int, int], dict[Member, tuple[bytes, bytes]]] = {}
        self._committed: dict[int, tuple[Finish, Member]] = {}
        self._committed_in: dict[int, int] = {}
        self._done: dict[Member, int] = {}
        self._computed: set[tuple[Member, int]] = set()

    def was_active(self, member: Member, before: float = math.inf) -> bool:
        """Whether `member` has completed a barrier, of a view before the one of this number."""
        return self._first_active.get(member, math.inf) < before

    def decided(self, who: Member, view: View) -> None:
        """A view was installed, or told as decided."""
        known = self.views.setdefault(view.number, view)
        if known.hash != view.hash:
            raise Violation("S1", f"{brief(who)} has view {view.number} as {brief(view)}, others as {brief(known)}")
        if self.latest is None or view.number > self.latest.number:
            self.latest = view
            self.seen["views"] += 1

    def said_ready(self, who: Member, stamp: Stamp, ready: Ready) -> None:
        first = self._ready.setdefault((who, stamp), ready)
        if first is not ready and first.seated and first != ready:
            raise Violation("R4", f"READY of {brief(who)} in view {stamp.number} was {brief(first)}, is {brief(ready)}")

    def activated(self, who: Member, view: View, done: int, digest: bytes) -> None:
        self._first_active.setdefault(who, view.number)
        first = self._started.setdefault(view.number, (done, digest, who))
        if first[:2] != (done, digest):
            raise Violation(
                "S12",
                f"{brief(who)} starts view {view.number} from {done} {brief(digest)}, {first[2]} from {brief(first)}",
            )
        for step in range(done + 1, self.last_committed + 1):
            finish, other = self._committed[step]
            if self._committed_in[step] < view.number:
                raise Violation(
                    "S4", f"{brief(who)} starts view {view.number} at {done}, {brief(other)} committed {brief(finish)}"
                )

    def computed(self, who: Member, step: int) -> None:
        if (who, step) in self._computed:
            raise Violation("S6", f"{brief(who)} computes its input of step {step} twice")
        self._computed.add((who, step))

    def finished(self, who: Member, view: View, step: int, digests: tuple[bytes, bytes]) -> None:
        others = self._finished.setdefault((view.number, step), {})
        for other, theirs in others.items():
            if theirs != digests:
                raise Violation(
                    "S2", f"step {step} has other digests at {brief(who)} than at {brief(other)} in view {view.number}"
                )
        others[who] = digests

    def committed(self, who: Member, finish: Finish, finished_in: View, installed: View, counted: list[Member]) -> None:
        """`counted`: whose inputs are in the result."""
        step = finish.step
        first, other = self._committed.setdefault(step, (finish, who))
        if first != finish:
            raise Violation("S3", f"{brief(who)} commits {brief(finish)}, {brief(other)} committed {brief(first)}")
        if step != self._done.get(who, NOTHING_DONE) + 1:
            raise Violation("S5", f"{brief(who)} commits step {step} after {self._done.get(who)}")
        self._done[who] = step
        self._committed_in[step] = min(self._committed_in.get(step, installed.number), installed.number)
        for number, (done, _, starter) in self._started.items():
            if number > installed.number and done < step:
                raise Violation(
                    "S4", f"{brief(who)} commits {brief(finish)}, {brief(starter)} started view {number} at {done}"
                )
        has = self._finished.get((finish.view_number, step), {})
        for member in installed.members:
            held_back = self.was_active(member, installed.number) or finish.view_number == installed.number
            if held_back and member not in has and self._done.get(member, NOTHING_DONE) < step:
                what = f"{brief(who)} commits {brief(finish)} in view {installed.number}"
                raise Violation("S8", f"{what}, {brief(member)} has not finished it")
        if sorted(counted) != sorted(finished_in.members):
            raise Violation(
                "S9", f"{brief(who)} counts {brief(counted)} in {brief(finish)}, finished in {brief(finished_in)}"
            )
        if step > self.last_committed:
            self.last_committed = step
            self.seen["steps"] += 1

    def loaded(self, who: Member, step: int) -> None:
        self._done[who] = step
