"""Parting: members that separate in the open step, as one of them knows it. R2 and R17 of PROTOCOL.md.

A member that has to go says LEAVE with the step, and results of it finished in that view are void. A member that has
gone for another reason, with different parameters, is remembered until the step commits: of founders without a majority
none continues.
"""

from collections.abc import Mapping

from .effects import Explain, Outvoted
from .progress import NOTHING_DONE, Finish, Progress
from .seniority import NOBODY, staying
from .view import Member, Seat, View


class Parting:
    """Knowledge of one member about members that separate from it.

    Attributes:
        founded_in: number of the view in which step 0 was finished; 0: not known.
        is_void: results of the open step finished in the installed view are void.
        goes_in: the step in which this member has to go; NOTHING_DONE: it need not.
        why: why it is removed in the end, and may return; empty: it leaves.
        damaged: why this member has to leave once it is known whether the open step commits (R28); empty: it need not.
        departed: seats of older views, and with which parameters (`Finish.bits`) they had finished the open step.
    """

    def __init__(self, me: Member) -> None:
        self.founded_in = 0
        self.is_void = False
        self.goes_in, self.why, self.damaged = NOTHING_DONE, "", ""
        self.departed: dict[Seat, bytes] = {}
        self._me = me
        self._outvoted: frozenset[Member] = frozenset()

    def install(self, before: View | None, view: View, step: int, said: Mapping[Member, Progress]) -> None:
        """`view` follows `before`, in which members have `said` this; `step` is open."""
        for seat in before.seats if before is not None else ():
            finish = said[seat.member].finish if seat.member in said else None
            is_gone = view.since(seat.member) is None and seat.member not in self._outvoted
            if is_gone and finish is not None and finish.step == step:
                self.departed[seat] = finish.bits
        self._outvoted, self.is_void = frozenset(), False

    def part_from(self, member: Member, step: int) -> list[Explain]:
        """`member` goes: results of the open `step` finished in this view are void, also later ones."""
        if member in self._outvoted:
            return []
        self.is_void, self._outvoted = True, self._outvoted | {member}
        return [
            Explain(f"{member} differs in step {step} from the members that stay, which redo it without that member")
        ]

    def go_damaged(self, step: int) -> list[Outvoted]:
        """Leave with `step`, which is open and not finished here, if this member is damaged."""
        if not self.damaged:
            return []
        self.why, self.damaged = self.damaged, ""
        return [Outvoted(step, is_damaged=True)]

    def why_contradicted(self, view: View, step: int, digest: bytes) -> str:
        """In what departed founders differ from these parameters of `step`, if too few are left to outvote them.

        All members of `view` are taken to have these parameters: if not, they are told when all have finished. Founders
        of another numerics class have others anyway (R20).
        """
        numerics = view.numerics_of(self._me)
        seats = [seat for seat in (*self.departed, *view.seats) if seat.numerics == numerics]
        said = {seat.member: self.departed.get(seat, digest[:15]) for seat in seats}
        other = next((seat.member for seat in self.departed if said.get(seat.member, digest[:15]) != digest[:15]), None)
        if other is None or staying(seats, self.founded_in, said) != NOBODY:
            return ""
        theirs = f"{said[other].hex()} at {other}, which has gone"
        return f"parameters of step {step} differ: {digest.hex()} at {self._me}, {theirs}"

    def committed(self, finish: Finish) -> None:
        """`finish` is committed: departed members did not differ."""
        self.departed = {}
        if finish.step == 0:
            self.founded_in = finish.view_number
