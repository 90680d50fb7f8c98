"""Which view is next: single-decree Paxos among the members of the view before (Lamport 2001, section 2).

One instance per view. Any member may propose; whoever proposes later than others waits a little (the caller gives
the delay). After a random back-off, a ballot that nobody has outbid is repeated to those who have not answered, and one
that was outbid is followed by a greater one. Acceptor state is volatile: a restarted process is another member and no
acceptor of any older view.

Leaves out: the owner's shortcut past phase 1, acceptor records.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum, auto
from random import Random

from .messages import Accept, Accepted, Ballot, Nack, Prepare, Promise, Send, Vote
from .view import Member, View, is_quorum

NO_BALLOT = Ballot(0, -1)

Body = Prepare | Promise | Accept | Accepted | Nack


@dataclass(frozen=True, slots=True)
class Decided:
    """A quorum has accepted this view."""

    view: View


class Round(Enum):
    """Where this member's own proposal stands."""

    IDLE = auto()
    PREPARING = auto()
    ACCEPTING = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class AgreementConfig:
    """When to try, and when to try again."""

    retry_s: float = 0.1
    """A ballot is repeated, or followed by a greater one, after this long, doubled each time, with jitter."""

    retry_max_s: float = 2.0

    complete_s: float = 0.5
    """A member that accepted a view and hears of no decision proposes it itself after this long per rank."""

    def __post_init__(self) -> None:
        if not 0 < self.retry_s <= self.retry_max_s < math.inf or not 0 < self.complete_s < math.inf:
            raise ValueError(
                "need 0 < retry_s <= retry_max_s and 0 < complete_s, all finite, "
                f"got {self.retry_s}, {self.retry_max_s} and {self.complete_s}"
            )


class Agreement:
    """Acceptor and proposer of one member, for the successor of the view that it has installed."""

    def __init__(self, me: Member, *, rng: Random, config: AgreementConfig) -> None:
        self._me = me
        self._rng = rng
        self._config = config

    def install(self, view: View) -> None:
        """Start over: decide the successor of `view`."""
        self._view = view
        self._rank = view.members.index(self._me)
        self._promised = NO_BALLOT
        self._vote: Vote | None = None
        self._candidate: View | None = None
        self._round = Round.IDLE
        self._ballot = NO_BALLOT
        self._promises: dict[Member, Promise] = {}
        self._accepted: set[Member] = set()
        self._attempts = 0
        self._deadline = math.inf
        self._not_before = -math.inf

    def next_deadline(self) -> float:
        return self._deadline

    def want(self, now: float, candidate: View | None, delay_s: float) -> None:
        """Propose `candidate` after `delay_s`, unless something is decided before. None takes the wish back."""
        self._candidate = candidate
        if self._round is not Round.IDLE:
            return
        if candidate is not None:
            self._deadline = min(self._deadline, max(now + delay_s, self._not_before))
        elif self._vote is None:
            self._deadline = math.inf

    def tick(self, now: float) -> list[Send | Decided]:
        if now < self._deadline:
            return []
        if self._candidate is None and self._vote is None:
            self._round, self._deadline = Round.IDLE, math.inf
            return []
        self._back_off(now)
        if self._promised == self._ballot and self._round is Round.PREPARING:
            return self._tell_all(now, Prepare(self._ballot), answered=self._promises)
        if self._promised == self._ballot and self._round is Round.ACCEPTING:
            return self._tell_all(now, Accept(Vote(self._ballot, self._proposal)), answered=self._accepted)
        self._round = Round.PREPARING
        self._ballot = Ballot(max(self._promised.round, self._ballot.round) + 1, self._rank)
        self._promises, self._accepted = {}, set()
        return self._tell_all(now, Prepare(self._ballot))

    def receive(self, now: float, source: Member, body: Body) -> list[Send | Decided]:
        """`source` is a member of the installed view, and so is whoever counted in it."""
        match body:
            case Prepare(ballot):
                return self._answer_prepare(now, source, ballot)
            case Accept(vote):
                return self._answer_accept(now, source, vote)
            case Promise(ballot, _) if ballot == self._ballot and self._round is Round.PREPARING:
                self._promises[source] = body
                return self._ask_to_accept(now)
            case Accepted(ballot) if ballot == self._ballot and self._round is Round.ACCEPTING:
                self._accepted.add(source)
                if is_quorum(self._accepted, self._view):
                    self._round, self._deadline = Round.IDLE, math.inf
                    return [Decided(self._proposal)]
            case Nack(promised):
                self._promised = max(self._promised, promised)
        return []

    def _answer_prepare(self, now: float, source: Member, ballot: Ballot) -> list[Send | Decided]:
        if ballot < self._promised:
            return self._tell(now, source, Nack(self._promised))
        self._yield_to(now, ballot)
        return self._tell(now, source, Promise(ballot, self._vote))

    def _answer_accept(self, now: float, source: Member, vote: Vote) -> list[Send | Decided]:
        if vote.ballot < self._promised:
            return self._tell(now, source, Nack(self._promised))
        self._yield_to(now, vote.ballot)
        self._vote = vote
        if self._round is Round.IDLE:  # whoever proposed may be dead before it tells of the decision
            self._deadline = min(self._deadline, now + self._config.complete_s * (1 + self._rank))
        return self._tell(now, source, Accepted(vote.ballot))

    def _yield_to(self, now: float, ballot: Ballot) -> None:
        """A greater ballot of somebody else ends ours; come back only if it comes to nothing."""
        self._promised = ballot
        if ballot > self._ballot and (self._candidate is not None or self._round is not Round.IDLE):
            self._round = Round.IDLE
            self._back_off(now)

    def _ask_to_accept(self, now: float) -> list[Send | Decided]:
        if not is_quorum(self._promises, self._view):
            return []
        votes = [promise.vote for promise in self._promises.values() if promise.vote is not None]
        proposal = max(votes, key=lambda vote: vote.ballot).view if votes else self._candidate
        if proposal is None:
            self._round, self._deadline = Round.IDLE, math.inf
            return []
        self._round, self._proposal = Round.ACCEPTING, proposal
        return self._tell_all(now, Accept(Vote(self._ballot, proposal)))

    def _back_off(self, now: float) -> None:
        wait_s = min(self._config.retry_s * 2**self._attempts, self._config.retry_max_s)
        self._attempts = min(self._attempts + 1, 16)
        self._deadline = self._not_before = now + wait_s * self._rng.uniform(1.0, 2.0)

    def _tell_all(self, now: float, body: Body, answered: Collection[Member] = ()) -> list[Send | Decided]:
        silent = [member for member in self._view.members if member not in answered]
        return [effect for member in silent for effect in self._tell(now, member, body)]

    def _tell(self, now: float, target: Member, body: Body) -> list[Send | Decided]:
        return self.receive(now, self._me, body) if target == self._me else [Send(target, body)]
