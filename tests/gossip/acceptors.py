"""Members with one agreement each, pages that outlive them, and a network that the test controls."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from gossip import Member, Seat, View
from gossip.agreement import Agreement, AgreementConfig, Body, Decided, Result
from gossip.effects import Send, WriteRecord
from gossip.messages import Accept, Accepted, AcceptorRecord, Ballot, Decide, Prepare, Promise, Vote
from gossip.view import Policy, can_decide

from .members import view_of

NOTHING = Ballot(0, -1)


def of_policy(policy: Policy, number: int, *members: Member) -> View:
    return replace(view_of(number, *members), policy=policy)


def successor(view: View, *members: Member) -> View:
    number = view.number + 1
    seats = tuple(Seat(member, view.since(member) or number) for member in members)
    return replace(view, number=number, seats=seats, parent=view.hash)


class Swarm:
    """Members of one view, until each has learnt of the next. Checks every effect when it is carried out.

    A killed member carries out no more effects; its page stays as it is. A member that hears of a decision no longer
    takes part, as in the core.
    """

    def __init__(self, view: View, seed: int = 0) -> None:
        self.view = view
        self.now = 0.0
        self.decided: dict[View, None] = {}
        self.under_way: list[tuple[Member, Member, Body | Decide]] = []
        self.dead: dict[Member, None] = {}
        self.pages: dict[Member, AcceptorRecord] = {}
        self.agreements: dict[Member, Agreement] = {}
        self._informed: set[Member] = set()
        self._lists_end: dict[Member, int] = {}
        self._proposals: dict[Ballot, tuple[Member, View | None]] = {}
        self._promised: dict[Member, Ballot] = {}
        self._voters: dict[Vote, set[Member]] = {}
        for rank, member in enumerate(view.members):
            self.agreements[member] = Agreement(member, rng=Random(seed + rank), config=AgreementConfig())
            self.perform(member, self.agreements[member].install(view))

    @property
    def alive(self) -> list[Member]:
        return [member for member in self.view.members if member not in self.dead]

    @property
    def deciding(self) -> list[Member]:
        return [member for member in self.alive if member not in self._informed]

    def kill(self, member: Member, after: int | None = None) -> None:
        """Kill `member` at once, or when it has carried out `after` effects of the next list."""
        if after is None:
            self.dead[member] = None
        else:
            self._lists_end[member] = after

    def want(self, member: Member, candidate: View) -> None:
        self.agreements[member].want(self.now, candidate, 0.0)

    def tick(self, member: Member) -> None:
        """Fire the next timer of `member`, at whatever time."""
        if member in self.deciding:
            deadline = self.agreements[member].next_deadline()
            self.perform(member, self.agreements[member].tick(max(self.now, min(deadline, 1e6))))

    def find(self, source: Member, target: Member, kind: type[Body | Decide]) -> int:
        """Index of the oldest such message in `under_way`."""
        return next(i for i, (s, t, b) in enumerate(self.under_way) if (s, t) == (source, target) and type(b) is kind)

    def deliver(self, source: Member, target: Member, kind: type[Body | Decide]) -> None:
        self.arrive(*self.under_way.pop(self.find(source, target, kind)))

    def arrive(self, source: Member, target: Member, body: Body | Decide) -> None:
        if target not in self.deciding:
            return
        if isinstance(body, Decide):
            self._learn(target, body.view)
        else:
            self.perform(target, self.agreements[target].receive(self.now, source, body))

    def read(self, reader: Member, dead: Member) -> None:
        """Tell `reader` that `dead` is dead, with the content of its page."""
        if reader not in self.deciding or self.view.policy is not Policy.LIVE:
            return
        page = self.pages[dead]
        assert page.view is not None, "everybody has installed the view"
        if page.view.number > self.view.number:
            self._learn(reader, page.view)
        else:
            self.perform(reader, self.agreements[reader].declare_dead(self.now, dead, page))

    def perform(self, member: Member, results: Sequence[Result]) -> None:
        end = self._lists_end.pop(member, None) if results else None
        for result in results[:end]:
            match result:
                case WriteRecord(record):
                    self.pages[member] = record
                case Decided(view):
                    self._learn(member, view)
                    others = [other for other in self.view.members if other != member]
                    self.under_way += [(member, other, Decide(view)) for other in others]
                case Send(target, body):
                    assert isinstance(body, Body)
                    self._check(member, body)
                    self.under_way.append((member, target, body))
        if end is not None:
            self.dead[member] = None
        if end is None or end >= len(results):
            self._count_vote(member)

    def _learn(self, member: Member, view: View) -> None:
        self.decided[view] = None
        self._informed.add(member)
        if self.view.policy is Policy.LIVE:
            self.pages[member] = AcceptorRecord(view, NOTHING, None)

    def _count_vote(self, member: Member) -> None:
        """A view that enough members have accepted is decided, even if no survivor knows."""
        vote = self.agreements[member]._acceptor.vote
        if vote is None:
            return
        voters = self._voters.setdefault(vote, set())
        voters.add(member)
        proposer = self.agreements[self.view.members[vote.ballot.rank]]
        if can_decide(voters, proposer._counted if proposer._ballot == vote.ballot else {}, self.view):
            self.decided[vote.view] = None

    def _check(self, member: Member, body: Body) -> None:
        """Ballots are unique, no member accepts below its promise, and no page is older than the messages sent."""
        promised = self._promised.get(member, NOTHING)
        page = self.pages.get(member, AcceptorRecord(self.view, NOTHING, None))
        is_live = self.view.policy is Policy.LIVE
        match body:
            case Prepare(ballot):
                assert self._proposals.setdefault(ballot, (member, None))[0] == member
            case Accept(vote):
                proposer, view = self._proposals.get(vote.ballot, (member, None))
                assert proposer == member
                assert view in (None, vote.view)
                self._proposals[vote.ballot] = member, vote.view
            case Promise(ballot, vote_before):
                assert ballot >= promised
                assert not is_live or (page.promised >= ballot and page.vote == vote_before)
                self._promised[member] = ballot
            case Accepted(ballot):
                assert ballot >= promised
                assert not is_live or (page.promised >= ballot and page.vote is not None)
