"""Detects that members call one operation differently, and decides which of them leave: R17 of PROTOCOL.md.

A member that sees a fingerprint other than its own says in words what it has called, and repeats that with every beat;
so does every member that hears of a call of that operation. No member gives up before it is known which side stays, or
that none can.
"""

from gossip import Member, View
from gossip.progress import Abort
from gossip.seniority import NOBODY, staying

from .effects import Disagree
from .submission import Submission


class Mismatches:
    """Calls of members of the installed view in the open step, of operations where they differ.

    Attributes:
        heard: calls by operation and member.
        founded_in: number of the view whose seats are founders; 0: all members are.
    """

    def __init__(self, me: Member) -> None:
        self._me = me
        self.founded_in = 0
        self.heard: dict[int, dict[Member, str]] = {}

    def begin(self) -> None:
        """The open step starts, or starts over."""
        self.heard = {}

    @property
    def has_spoken(self) -> bool:
        """Whether others were told the calls of this peer."""
        return any(self._me in called for called in self.heard.values())

    def see(self, index: int) -> None:
        """A member calls operation `index` differently, and will say how when it hears of ours."""
        self.heard.setdefault(index, {})

    def hear(self, step: int, source: Member, abort: Abort) -> None:
        """`source` says what it has called in a step; `step` is the open one."""
        if abort.step == step:
            self.heard.setdefault(abort.operation, {})[source] = abort.fingerprint

    def say(self, submission: Submission, view: View) -> list[Disagree]:
        """Calls of this peer that others in `view` do not know yet."""
        told: list[Disagree] = []
        for index, called in self.heard.items():
            ours = submission.called(index, view)
            if self._me not in called and ours is not None:
                called[self._me] = ours
                told.append(Disagree(Abort(submission.step, index, ours)))
        return told

    def judge(self, view: View, step: int) -> tuple[str, frozenset[Member]] | None:
        """The differing calls of this peer and another one, and the members that stay. None: not known yet."""
        for index, called in sorted(self.heard.items()):
            ours = called.get(self._me)
            others = [member for member in view.members if called.get(member, ours) != ours]
            if ours is None or not others:
                continue
            stay = staying(view.seats, self.founded_in, called)
            if stay is None:
                return None
            other = next((member for member in others if member in stay), others[0])
            both = f"{ours} at peer {self._me}, {called[other]} at peer {other}"
            return f"operation {index} of step {step} is {both}", stay
        return None

    def is_out(self, stay: frozenset[Member]) -> bool:
        """Whether this peer has to go."""
        return stay is not NOBODY and self._me not in stay
