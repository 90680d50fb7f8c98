"""The acceptor of single-decree Paxos (Lamport 2001, section 2.2), and its record.

Under policy `live` every change is written to a page that outlives the process before it is sent to any peer, so a dead
member still answers phase 1. Under `majority` the state is volatile: a restarted process is another member and no
acceptor of any older view.
"""

from typing import Final

from .effects import WriteRecord
from .messages import Accepted, AcceptorRecord, Ballot, Nack, Promise, Vote
from .view import Policy, View

NO_BALLOT: Final = Ballot(0, -1)
"""Below every ballot."""

MAX_ROUND: Final = 2**40
"""Greatest valid round. A faulty peer that sends a greater one must not exhaust the numbers that fit on the wire."""


def has_shortcut(view: View) -> bool:
    """Whether the owner of `view` may begin with ACCEPT. Not where dead members count: phase 1 reads their records."""
    return view.policy is Policy.MAJORITY


def opening_promise(view: View) -> Ballot:
    """The initial promise of every acceptor: the owner's first ballot, where it has the shortcut."""
    return Ballot(0, view.number % len(view.members)) if has_shortcut(view) else NO_BALLOT


def is_ballot(ballot: Ballot, view: View) -> bool:
    """Whether a member of `view` can have begun `ballot`."""
    if ballot.round == 0:
        return has_shortcut(view) and ballot == opening_promise(view)
    return 0 < ballot.round <= MAX_ROUND and 0 <= ballot.rank < len(view.members)


def is_successor(candidate: View, view: View) -> bool:
    """Whether `candidate` can follow `view`, with any members."""
    return (candidate.lineage, candidate.number, candidate.parent, candidate.policy) == (
        view.lineage,
        view.number + 1,
        view.hash,
        view.policy,
    )


def is_vote(vote: Vote, view: View) -> bool:
    return is_ballot(vote.ballot, view) and is_successor(vote.view, view)


BLANK: Final = WriteRecord(AcceptorRecord(None, NO_BALLOT, None))
"""The first record of a peer: it may die after it was given a seat, and before it knows of it."""


def decided_record(decided: View) -> list[WriteRecord]:
    """The record to write before `decided` is announced to any peer, or when it is installed.

    A reader of the record of a dead member then finds this view, not the one before.
    """
    return Acceptor(decided).write()


def reading(record: AcceptorRecord, view: View) -> AcceptorRecord | None:
    """The record of a dead member of `view`, read as its answer about the successor; None if it gives no answer.

    The writer of an older view's record never installed `view`, so it has promised and accepted nothing in it; nor has
    a writer that had a seat in another swarm. A record of a later view proves that view, which is for the caller to
    handle.
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
    """Promise and vote of one member for the successor of one view."""

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
        """Whether `vote` names another view than was accepted at the same ballot, which no correct proposer does."""
        return self.vote is not None and self.vote.ballot == vote.ballot and self.vote != vote

    def _become(self, promised: Ballot, vote: Vote | None) -> list[WriteRecord]:
        if (promised, vote) == (self.promised, self.vote):
            return []  # repeated; it is written already
        self.promised, self.vote = promised, vote
        return self.write()
