"""Which members go when members differ: a second implementation of R17 of PROTOCOL.md, which checks S19."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING

from gossip import Member, Seat, Stamp, View
from gossip.progress import NOT_CALLED, Abort

from .report import brief

if TYPE_CHECKING:
    from .invariants import Invariants

Said = Mapping[Member, object]
Case = tuple[Sequence[Seat], Said]
"""Seats, and the words of their members."""


def verdict(seats: Sequence[Seat], founded_in: int, said: Said) -> set[Member]:
    """The members of `seats` that stay when all have spoken; empty: none."""
    members, first = [seat.member for seat in seats], seats[0].member
    founders = [seat.member for seat in seats if seat.since <= founded_in]
    for word in {*said.values()}:
        side = {member for member in members if said[member] == word}
        outvotes_founders = sum(member in side for member in founders) * 2 > len(founders)
        if len(side) * 2 > len(members) and (first in side or outvotes_founders):
            return side
    if len(founders) < len(members):
        return {member for member in members if said[member] == said[first]}
    return set()


def verdicts(seats: Sequence[Seat], founded_in: int, said: Said) -> list[set[Member]]:
    """All verdicts that are still possible, depending on the words of the silent members."""
    silent = [seat.member for seat in seats if seat.member not in said]
    words = [*{*said.values()}, *(f"another call of {member}" for member in silent)]
    return [
        verdict(seats, founded_in, {**said, **dict(zip(silent, rest, strict=True))})
        for rest in product(words, repeat=len(silent))
    ]


def cases(view: View, said: Mapping[Member, bytes]) -> list[Case]:
    """R20: parameters are compared within each class; if a member is far from a source, over all classes."""
    classes = {seat.member: seat.numerics for seat in view.seats}
    if len({*classes.values()}) > 1 and any(digest[15:] == b"\1" for digest in said.values()):
        words = {m: "near" if digest[15:] != b"\1" else f"{classes[m]!r} {digest!r}" for m, digest in said.items()}
        return [(view.seats, words)]
    groups = [[seat for seat in view.seats if seat.numerics == each] for each in {*classes.values()}]
    return [(group, {s.member: said[s.member][:15] for s in group if s.member in said}) for group in groups]


class DivergenceOracle:
    """Calls and finished steps of every member, and the members that went or raised because of them."""

    def __init__(self, invariants: "Invariants") -> None:
        self._invariants = invariants
        self._called: dict[tuple[Stamp, int], dict[int, dict[Member, str]]] = {}
        self._ends: dict[tuple[Stamp, int], dict[Member, int]] = {}
        self._diverged: dict[tuple[bytes, int], set[Member]] = {}
        self._would_finish: dict[tuple[Member, int], bytes] = {}
        self._knows: set[tuple[Member, int]] = set()

    def _founded_in(self, view: View) -> int:
        first = self._invariants.lineage(view).committed.get(0)
        return 0 if first is None else first[0].view_number

    def activated(self, who: Member, view: View, done: int, founded_in: int) -> str:
        """Check that `who` knows which view founded the run."""
        expected = self._founded_in(view) if done >= 0 else 0
        return (
            "" if founded_in == expected else f"{brief(who)} takes view {founded_in} for the founders', not {expected}"
        )

    def calls(self, who: Member, view: View, abort: Abort) -> None:
        """Record a call that `who` has reported."""
        self._called.setdefault((view.stamp, abort.step), {}).setdefault(abort.operation, {})[who] = abort.fingerprint

    def ends(self, who: Member, view: View, step: int, num_operations: int) -> None:
        """Record that `who` has finished a step after `num_operations` operations."""
        self._ends.setdefault((view.stamp, step), {})[who] = num_operations

    def _words(self, view: View, step: int) -> list[Said]:
        """The reported calls of all members, for each operation that any has reported."""
        ends = self._ends.get((view.stamp, step), {})
        called = self._called.get((view.stamp, step), {})
        return [
            {**{who: NOT_CALLED for who, end in ends.items() if end <= index}, **words}
            for index, words in called.items()
        ]

    def goes(self, who: Member, view: View, step: int, said: Iterable[Case] | None = None) -> str:
        """Why `who` need not go alone from `view`; empty: it must. `said`: the words to judge by; None: the calls."""
        reasons: list[str] = []
        for seats, words in [(view.seats, each) for each in self._words(view, step)] if said is None else said:
            left = verdicts(seats, self._founded_in(view), words)
            is_concerned = any(seat.member == who for seat in seats)
            if is_concerned and all(stay and who not in stay for stay in left):
                return ""
            reasons.append(f"{words}: stays {left[0] or 'nobody'}")
        return f"{brief(who)} goes from {brief(view)} in step {step}; {'; '.join(reasons) or 'nobody differs'}"

    def gives_up(self, who: Member, view: View, step: int) -> str:
        """Why the calls in `step` are no reason for all members to give it up."""
        called = self._words(view, step)
        if any(not any(verdicts(view.seats, self._founded_in(view), words)) for words in called):
            return ""
        return f"{brief(who)} gives step {step} up for all in {brief(view)}: {called}"

    def would_finish(self, who: Member, step: int, parameters: bytes) -> None:
        """Record that `who` has these parameters, and members that went had others: it may not finish the step."""
        self._would_finish[who, step] = parameters

    def _would_have(self, who: Member, step: int) -> list[bytes]:
        parameters = self._would_finish.get((who, step))
        return [] if parameters is None else [parameters[:15]]

    def diverged(self, who: Member, view: View, step: int) -> str:
        """`who` raises, since no side can stay; returns why that is wrong, e.g. if founders had equal parameters."""
        others = self._diverged.setdefault((view.lineage, step), set())
        others.add(who)
        if len(others) > 1:
            return ""
        lineage, founded_in = self._invariants.lineage(view), self._founded_in(view)
        parameters: dict[bytes | None, set[bytes]] = {view.numerics_of(who): {*self._would_have(who, step)}}
        for known in lineage.views.values():
            said = self._invariants.parameters(known, step)
            for seat in known.seats:
                if seat.since <= founded_in and seat.member in said:
                    parameters.setdefault(seat.numerics, set()).add(said[seat.member][:15])
                    if len({each.numerics for each in known.seats}) > 1 and said[seat.member][15:] == b"\1":
                        return ""
        if any(len(each) > 1 for each in parameters.values()):
            return ""
        return f"{brief(who)} says that step {step} has diverged in {brief(view)}, where no founders differ"

    def heard_leaving(self, who: Member, lineage: bytes, other: Member) -> None:
        """Record that `who` has heard LEAVE of `other`, a member of its view, and so knows where `other` diverged."""
        for (name, step), members in self._diverged.items():
            if name == lineage and other in members:
                self._knows.add((who, step))

    def committed(self, who: Member, step: int) -> str:
        """Why `who` may not commit `step`."""
        return f"{brief(who)} commits step {step}, and knows that founders differ in it" * ((who, step) in self._knows)
