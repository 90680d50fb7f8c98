"""The acceptor of single-decree Paxos (Lamport 2001, section 2.2), and the record that it leaves behind.

Under policy `live` every change is written to a page that outlives the process before it is told to anybody, so a
dead member still answers phase 1. Under `majority` the state is volatile: a restarted process is another member and
no acceptor of any older view.
"""

from typing import Final

from .effects import WriteRecord
from .messages import Accepted, AcceptorRecord, Ballot, Nack, Promise, Vote
from .view import Policy, View

NO_BALLOT: Final = Ballot(0, -1)
"""Below every ballot."""

MAX_ROUND: Final = 2**40
"""Whoever names a greater round is wrong; it must not push the others out of the numbers that travel."""


def has_shortcut(view: View) -> bool:
    """Whether the owner of `view` may open with ACCEPT. Not where the dead count: phase 1 reads their records."""
    return view.policy is Policy.MAJORITY


def opening_promise(view: View) -> Ballot:
    """What every acceptor has promised from the start: the owner's first ballot, where it has the shortcut."""
    return Ballot(0, view.number % len(view.members)) if has_shortcut(view) else NO_BALLOT


def is_ballot(ballot: Ballot, view: View) -> bool:
    """Whether a member of `view` can have begun `ballot`."""
    if ballot.round == 0:
        return has_shortcut(view) and ballot == opening_promise(view)
    return 0 < ballot.round <= MAX_ROUND and 0 <= ballot.rank < len(view.members)


def is_successor(candidate: View, view: View) -> bool:
    """Whether `candidate` can follow `view`, whoever its members are."""
    return (candidate.lineage, candidate.number, candidate.parent, candidate.policy) == (
        view.lineage,
        view.number + 1,
        view.hash,
        view.policy,
    )


def is_vote(vote: Vote, view: View) -> bool:
    return is_ballot(vote.ballot, view) and is_successor(vote.view, view)


BLANK: Final = WriteRecord(AcceptorRecord(None, NO_BALLOT, None))
"""What a peer writes first. It may die after it was given a seat, and before it knows."""


def decided_record(decided: View) -> list[WriteRecord]:
    """What to write before anybody is told that `decided` is decided, or when it is installed.

    Whoever reads the record of a dead member then finds this view, not the one before.
    """
    return Acceptor(decided).write()


def reading(record: AcceptorRecord, view: View) -> AcceptorRecord | None:
    """What the record of a dead member of `view` says about the successor of `view`; None if nothing can be said.

    The writer of an older view's record never installed `view`, so it has promised and accepted nothing in it; nor has
    one that had taken a seat in another swarm. A record of a later view is that view, and the caller's matter.
    """
    written_in = record.view
    if written_in is None or written_in.lineage != view.lineage or written_in.number < view.number:
        return AcceptorRecord(view, NO_BALLOT, None)
    if written_in.number > view.number:
        return None
    promised, vote = record.promised, record.vote
    is_sane = promised == NO_BALLOT or is_ballot(promised, view)
    if vote is not None:
        is_sane = is_sane and is_vote(vote, view) and vote.ballot <= promised
    return record if is_sane and written_in.hash == view.hash else None


class Acceptor:
    """What one member has promised and accepted as the successor of one view."""

    def __init__(self, view: View) -> None:
        self._view = view
        self.promised = opening_promise(view)
        self.vote: Vote | None = None

    @property
    def record(self) -> AcceptorRecord:
        return AcceptorRecord(self._view, self.promised, self.vote)

    def write(self) -> list[WriteRecord]:
        return [WriteRecord(self.record)] if self._view.policy is Policy.LIVE else []

    def prepare(self, ballot: Ballot) -> tuple[list[WriteRecord], Promise | Nack]:
        """The answer, and what is to be written before it leaves."""
        if ballot < self.promised:
            return [], Nack(self.promised)
        return self._become(ballot, self.vote), Promise(ballot, self.vote)

    def accept(self, vote: Vote) -> tuple[list[WriteRecord], Accepted | Nack]:
        """The answer, and what is to be written before it leaves."""
        if vote.ballot < self.promised:
            return [], Nack(self.promised)
        return self._become(vote.ballot, vote), Accepted(vote.ballot)

    def contradicts(self, vote: Vote) -> bool:
        """Whether `vote` names another view than what was accepted at the same ballot: no proposer does that."""
        return self.vote is not None and self.vote.ballot == vote.ballot and self.vote != vote

    def _become(self, promised: Ballot, vote: Vote | None) -> list[WriteRecord]:
        if (promised, vote) == (self.promised, self.vote):
            return []  # repeated; it is written already
        self.promised, self.vote = promised, vote
        return self.write()
