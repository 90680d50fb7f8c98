"""Finds out that members call one operation differently.

Whoever sees a fingerprint that is not its own says in words what it has called, and so does everybody who hears of
another call than its own. So every member learns of both sides, and gives the step up. A *fresh* member, which is not
on the last receipt, takes nobody down with it who is: it is told, and goes alone.
"""

from collections.abc import Iterable

from gossip import Member, View
from gossip.effects import Send
from gossip.progress import Abort

from .submission import Submission


class Mismatches:
    """What others say that they have called in the open step.

    Attributes:
        heard: by operation and member; nothing of fresh ones.
    """

    def __init__(self, me: Member) -> None:
        self._me = me
        self._contributors: frozenset[str] = frozenset()
        self.heard: dict[int, dict[Member, str]] = {}

    def begin(self) -> None:
        """The open step starts, or starts over."""
        self.heard = {}

    def commit(self, contributors: Iterable[str]) -> None:
        """A step is committed, here or before this peer joined, with these peers on its receipt."""
        self._contributors = frozenset(contributors)
        self.begin()

    def is_fresh(self, view: View, member: Member) -> bool:
        """Whether others of `view` are on the last receipt, and `member` is not, as far as this peer knows."""
        is_known = any(other.peer_id in self._contributors for other in view.members)
        return is_known and member.peer_id not in self._contributors

    def see(self, view: View, submission: Submission, index: int, source: Member) -> list[Send]:
        """A segment of `source` carries another fingerprint than ours: whom to tell what we have called."""
        ours = Abort(submission.step, index, submission.operations[index].describe())
        is_private = self.is_fresh(view, self._me) or self.is_fresh(view, source)
        return self._tell((source,) if is_private else view.members, view, ours)

    def _tell(self, members: Iterable[Member], view: View, ours: Abort) -> list[Send]:
        return [Send(member, ours, view.stamp) for member in members if member != self._me]

    def hear(self, view: View, submission: Submission | None, step: int, source: Member, abort: Abort) -> list[Send]:
        """`source` says what it has called in `step`, the open one: whom to answer."""
        if abort.step != step:
            return []
        if not self.is_fresh(view, source):
            self.heard.setdefault(abort.operation, {})[source] = abort.fingerprint
            return []
        ours = None if self.is_fresh(view, self._me) or submission is None else _ours(submission, abort.operation)
        return [] if ours is None or ours.fingerprint == abort.fingerprint else [Send(source, ours, view.stamp)]

    def find(self, view: View, submission: Submission) -> tuple[str, list[Send]] | None:
        """An operation of the step that somebody calls differently: both sides in words, and ours for all members."""
        for index, sides in self.heard.items():
            ours = _ours(submission, index)
            for source, theirs in sides.items():
                if ours is not None and theirs != ours.fingerprint:
                    both = f"{ours.fingerprint} at peer {self._me}, {theirs} at peer {source}"
                    reason = f"operation {index} of step {submission.step} is {both}"
                    return reason, self._tell(view.members, view, ours)
        return None


def _ours(submission: Submission, index: int) -> Abort | None:
    called = submission.called(index)
    return None if called is None else Abort(submission.step, index, called)
