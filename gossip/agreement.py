"""Agreement on the next view: single-decree Paxos among the members of the installed one (Lamport 2001, section 2).

One instance per view. Any member may propose; the caller delays members whose turn comes later. After a random
back-off, a ballot that was not outbid is repeated to members that have not answered, and one that was outbid is
followed by a greater one.

Under policy `majority` the owner of a view, a rank that rotates with the view's number, may skip phase 1 once: every
acceptor starts as if it had promised the owner's ballot of round 0. Under `live` no member may, and the record of a
proven dead member, read after its death, stands for its promise and its vote. A dead member never accepts: to be
counted as dead in phase 2, a member's record must have been read before phase 1, so that the ballot is above all its
promises.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from random import Random

from .acceptor import (
    NO_BALLOT,
    Acceptor,
    decided_record,
    has_shortcut,
    is_ballot,
    is_successor,
    is_vote,
    opening_promise,
    reading,
)
from .effects import Send, WriteRecord
from .messages import Accept, Accepted, AcceptorRecord, Ballot, Nack, Prepare, Promise, Vote
from .view import Member, Policy, View, can_decide, is_quorum

Body = Prepare | Promise | Accept | Accepted | Nack


@dataclass(frozen=True, slots=True)
class Decided:
    """The members have accepted this view. Always the last of a list."""

    view: View


Result = Send | WriteRecord | Decided
"""A result; the host carries results out in the order of the list."""


class Proposal(Enum):
    """State of this member's own proposal."""

    IDLE = auto()
    PREPARING = auto()
    ACCEPTING = auto()
    DECIDED = auto()
    """No messages until the next view is installed: the record names the decided view already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgreementConfig:
    """Retry timers of a proposal."""

    retry_s: float = 0.1
    """A ballot is repeated, or followed by a greater one, after this long, doubled each time, with jitter; or after
    four round trips, as measured with recent ballots, if that is longer."""

    retry_max_s: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.retry_s <= self.retry_max_s < math.inf:
            raise ValueError(f"need 0 < retry_s <= retry_max_s, both finite, got {self.retry_s} and {self.retry_max_s}")


class Agreement:
    """Acceptor and proposer of one member, for the successor of the view that it has installed.

    Attributes:
        proposed: the view that it has asked the others to accept, in a new ballot; the caller records it and resets
            this.
    """

    def __init__(self, me: Member, *, rng: Random, config: AgreementConfig) -> None:
        self._me = me
        self._rng = rng
        self._config = config
        self._round_trip_s = 0.0
        self.proposed: View | None = None

    def install(self, view: View) -> list[WriteRecord]:
        """Start an instance for the successor of `view`. Under `live`, write the returned record before all else."""
        self._view = view
        self._rank = view.members.index(self._me)
        self._acceptor = Acceptor(view)
        self._records: dict[Member, AcceptorRecord] = {}
        self._candidate: View | None = None
        self._heard = self._acceptor.promised
        self._round = Proposal.IDLE
        self._ballot = NO_BALLOT
        self._began = -math.inf
        self._counted: Mapping[Member, AcceptorRecord] = {}
        self._promises: dict[Member, Promise] = {}
        self._accepted: set[Member] = set()
        self._attempts = 0
        self._deadline = math.inf
        self._not_before = -math.inf
        return self._acceptor.write()

    @property
    def promised(self) -> Ballot:
        return self._acceptor.promised

    @property
    def records(self) -> Mapping[Member, AcceptorRecord]:
        """Records of the dead members of the installed view, as answers about its successor."""
        return dict(self._records)

    def next_deadline(self) -> float:
        return self._deadline

    @property
    def is_wanted(self) -> bool:
        """Whether this member wants another view."""
        return self._candidate is not None

    def is_under_way(self, now: float) -> bool:
        """Whether this member has proposed a view, or is about to, and knows of no decision."""
        return self._round is not Proposal.IDLE or (self._candidate is not None and self._deadline <= now)

    def want(self, now: float, candidate: View | None, delay_s: float) -> None:
        """Propose `candidate` after `delay_s`, unless a view is decided before. None withdraws the wish."""
        assert candidate is None or is_successor(candidate, self._view), f"{candidate} cannot follow {self._view}"
        self._candidate = candidate
        if self._round is not Proposal.IDLE:
            return
        if candidate is not None:
            self._deadline = min(self._deadline, max(now + delay_s, self._not_before))
        else:
            self._deadline = math.inf

    def declare_dead(self, now: float, member: Member, record: AcceptorRecord) -> list[Result]:
        """`member` is proven dead, and `record` was read after its death.

        If the survivors are no quorum without the dead, a ballot in progress starts over at once, above all promises of
        the dead. Otherwise, and where the record says nothing about this view or is known already, nothing happens.
        """
        if self._view.policy is not Policy.LIVE or self._round is Proposal.DECIDED or member in self._records:
            return []
        read = reading(record, self._view)
        if read is None or member == self._me or member not in self._view.members:
            return []
        self._records[member] = read
        self._heard = max(self._heard, read.promised)
        self._attempts, self._not_before = 0, now  # the member that outbid us may be the dead one
        living = [other for other in self._view.members if other not in self._records]
        if self._round is Proposal.IDLE or is_quorum(living, self._view):
            return []
        self._round, self._deadline = Proposal.IDLE, now
        return self.tick(now)

    def tick(self, now: float) -> list[Result]:
        if now < self._deadline:
            return []
        if self._candidate is None:
            return self._rest()
        self._back_off(now)
        if self._round is Proposal.IDLE or self._heard > self._ballot:
            return self._begin(now, self._candidate)
        if self._round is Proposal.PREPARING:
            return self._tell_all(now, Prepare(self._ballot), answered=self._promises)
        return self._tell_all(now, Accept(Vote(self._ballot, self._proposal)), answered=self._accepted)

    def receive(self, now: float, source: Member, body: Body) -> list[Result]:
        """Handle a message of `source`, a member of the installed view. An invalid one changes nothing."""
        if self._round is Proposal.DECIDED:
            return []
        match body:
            case Prepare(ballot) if self._is_from(source, ballot):
                return self._answer_prepare(now, source, ballot)
            case Accept(vote) if self._is_from(source, vote.ballot) and is_vote(vote, self._view):
                return [] if self._acceptor.contradicts(vote) else self._answer_accept(now, source, vote)
            case Promise(ballot, vote) if ballot == self._ballot and self._round is Proposal.PREPARING:
                if vote is None or (is_vote(vote, self._view) and vote.ballot < ballot):
                    self._promises[source] = body
                    self._round_trip_s = max(self._round_trip_s, now - self._began)
                    return self._ask_to_accept(now)
            case Accepted(ballot) if ballot == self._ballot and self._round is Proposal.ACCEPTING:
                self._accepted.add(source)
                return self._decide()
            case Nack(promised) if is_ballot(promised, self._view):
                self._heard = max(self._heard, promised)
        return []

    # Acceptor

    def _is_from(self, source: Member, ballot: Ballot) -> bool:
        return is_ballot(ballot, self._view) and self._view.members[ballot.rank] == source

    def _answer_prepare(self, now: float, source: Member, ballot: Ballot) -> list[Result]:
        writes, answer = self._acceptor.prepare(ballot)
        if isinstance(answer, Promise):
            self._yield_to(now, ballot)
        return [*writes, *self._tell(now, source, answer)]

    def _answer_accept(self, now: float, source: Member, vote: Vote) -> list[Result]:
        writes, answer = self._acceptor.accept(vote)
        if isinstance(answer, Accepted):
            self._yield_to(now, vote.ballot)
        return [*writes, *self._tell(now, source, answer)]

    def _yield_to(self, now: float, ballot: Ballot) -> None:
        """A greater ballot of another member ends this one's; retry only if it leads to no decision."""
        self._heard = max(self._heard, ballot)
        if ballot > self._ballot and (self._candidate is not None or self._round is not Proposal.IDLE):
            self._round = Proposal.IDLE
            self._back_off(now)

    # Proposer

    def _begin(self, now: float, candidate: View) -> list[Result]:
        """Begin a ballot above all that were heard or read. It counts the records known now, and no later ones."""
        self._began, self._round_trip_s = now, self._round_trip_s / 2
        self._counted = dict(self._records)
        self._promises, self._accepted = {}, set()
        if self._may_skip_phase_1():
            self._ballot = opening_promise(self._view)
            return self._propose(now, candidate)
        self._round = Proposal.PREPARING
        self._ballot = Ballot(self._heard.round + 1, self._rank)
        return self._tell_all(now, Prepare(self._ballot))

    def _may_skip_phase_1(self) -> bool:
        """Whether this member is the owner and no ballot has begun: then phase 1 could find no vote."""
        is_first = self._ballot == NO_BALLOT and self._heard == Ballot(0, self._rank)
        return has_shortcut(self._view) and is_first

    def _ask_to_accept(self, now: float) -> list[Result]:
        if not can_decide(self._promises, self._counted, self._view):
            return []
        answers: list[Promise | AcceptorRecord] = [*self._promises.values(), *self._counted.values()]
        votes = [answer.vote for answer in answers if answer.vote is not None]
        proposal = max(votes, key=lambda vote: vote.ballot).view if votes else self._candidate
        return self._rest() if proposal is None else self._propose(now, proposal)

    def _propose(self, now: float, proposal: View) -> list[Result]:
        self._round, self._proposal = Proposal.ACCEPTING, proposal
        self.proposed = proposal
        return self._tell_all(now, Accept(Vote(self._ballot, proposal)))

    def _decide(self) -> list[Result]:
        if not can_decide(self._accepted, self._counted, self._view):
            return []
        self._round, self._deadline = Proposal.DECIDED, math.inf
        return [*decided_record(self._proposal), Decided(self._proposal)]

    def _rest(self) -> list[Result]:
        self._round, self._deadline = Proposal.IDLE, math.inf
        return []

    def _back_off(self, now: float) -> None:
        base_s = max(self._config.retry_s, 4 * self._round_trip_s)
        wait_s = min(base_s * 2**self._attempts, self._config.retry_max_s)
        self._attempts = min(self._attempts + 1, 16)
        self._deadline = self._not_before = now + wait_s * self._rng.uniform(1.0, 2.0)

    def _tell_all(self, now: float, body: Body, answered: Collection[Member] = ()) -> list[Result]:
        """Tell living members that have not answered; this member last, since its own answer may decide."""
        silent = [m for m in self._view.members if m not in answered and m not in self._records and m != self._me]
        told: list[Result] = [Send(member, body) for member in silent]
        return told if self._me in answered else [*told, *self.receive(now, self._me, body)]

    def _tell(self, now: float, target: Member, body: Body) -> list[Result]:
        return self.receive(now, self._me, body) if target == self._me else [Send(target, body)]
