"""Invariants of views, ballots and claims, checked after every event.

PROTOCOL.md defines I1 to I17, S1 and S11.
"""

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gossip import Member, Stamp, State, View, is_quorum
from gossip.effects import Discovered
from gossip.messages import (
    Accept,
    Accepted,
    AcceptorRecord,
    Ack,
    Ballot,
    Body,
    Decide,
    Gossip,
    Ping,
    Prepare,
    Promise,
    Report,
    ReportKind,
    SyncReply,
)
from gossip.progress import Beat, Ready
from gossip.view import Policy

from .invariants import Invariants, Violation
from .report import brief

if TYPE_CHECKING:
    from .peer import Peer

MOST_CHURN = 400
"""Most views and removals of one run: more means an endless cycle."""


class Membership:
    """Observations of all processes' views, votes and news."""

    def __init__(self, invariants: Invariants) -> None:
        self.superseded: set[Member] = set()
        """Members that have left, died, or returned as another incarnation."""
        self._invariants = invariants
        self._proposers: dict[tuple[Stamp, Ballot], Member] = {}
        self._proposals: dict[tuple[Stamp, Ballot], View] = {}
        self._proposed: set[bytes] = set()
        self._voters: dict[tuple[Stamp, Ballot], set[Member]] = {}
        self._promised: dict[tuple[Member, Stamp], Ballot] = {}
        self._pages: dict[Member, AcceptorRecord] = {}
        self._accused: set[Member] = set()
        self._lineages: dict[Member, bytes] = {}
        self._excluded: dict[bytes, set[Member]] = {}
        self._final: dict[Member, set[Member]] = {}
        self._churn: Counter[bytes] = Counter()

    # Views

    def decided(self, who: Member, view: View) -> None:
        """Record a view that was installed, or announced as decided."""
        lineage = self._invariants.lineage(view)
        known = lineage.views.get(view.number)
        if known is None:
            lineage.views[view.number] = view
            self._check_new(who, view)
            if lineage.latest is None or view.number > lineage.latest.number:
                lineage.latest = view
        elif known.hash != view.hash:
            raise Violation("S1", f"{brief(who)} has view {view.number} as {brief(view)}, others as {brief(known)}")

    def installed(self, who: Member, before: View | None, view: View) -> None:
        self.decided(who, view)
        self._lineages[who] = view.lineage
        if before is not None and (view.lineage != before.lineage or view.number <= before.number):
            raise Violation("I2", f"{brief(who)} installs {brief(view)} after {brief(before)}")
        since = view.since(who)
        if since is None or (before is not None and since > before.number):
            raise Violation("R8", f"{brief(who)} installs {brief(view)} after {brief(before)}")

    def _check_new(self, who: Member, view: View) -> None:
        self._invariants.seen["views"] += 1
        self._churn[view.lineage] += 1
        if self._churn[view.lineage] > MOST_CHURN:
            raise Violation("churn", f"{brief(view)} is one view too many for one run")
        gone = self._excluded.setdefault(view.lineage, set())
        if back := [member for member in view.members if member in gone]:
            raise Violation("I2", f"{brief(back)} was excluded, and is in {brief(view)}")
        if view.number == 1:
            return
        parent = self._invariants.lineage(view).views.get(view.number - 1)
        if parent is None or parent.hash != view.parent:
            raise Violation("I1", f"{brief(view)} does not follow {brief(parent)}")
        if view.hash not in self._proposed and who not in parent.members:
            raise Violation("I5", f"{brief(who)} knows {brief(view)}, which nobody proposed")
        self._check_succession(parent, view)
        gone.update(member for member in parent.members if view.since(member) is None)

    def _check_succession(self, parent: View, view: View) -> None:
        """Survivors keep their order and their `since`, joiners follow, and no member goes without a reason."""
        staying = [seat for seat in parent.seats if view.since(seat.member) is not None]
        joined = view.seats[len(staying) :]
        if list(view.seats[: len(staying)]) != staying or any(seat.since != view.number for seat in joined):
            raise Violation("I6", f"{brief(view)} is no successor of {brief(parent)}")
        if (view.founding_size, view.policy) != (parent.founding_size, parent.policy):
            raise Violation("I6", f"{brief(view)} has another policy than {brief(parent)}")
        names = {member.peer_id for member in view.members}
        for member in parent.members:
            is_replaced = member.peer_id in names or any(
                gone.peer_id == member.peer_id and gone >= member for gone in self.superseded
            )
            is_elsewhere = self._lineages.get(member, view.lineage) != view.lineage
            if view.since(member) is None and not (member in self._accused or is_replaced or is_elsewhere):
                raise Violation("I5", f"{brief(member)} is not in {brief(view)}, and nobody had anything against it")

    # Votes

    def sends(self, who: Member, stamp: Stamp, body: Body) -> None:
        check = _CHECKS.get(type(body))
        if check is not None:
            check(self, who, stamp, body)

    def _ready(self, who: Member, stamp: Stamp, body: Ready) -> None:
        self._invariants.said_ready(who, stamp, body)

    def _beat(self, who: Member, stamp: Stamp, body: Beat) -> None:
        self._invariants.said_ready(who, stamp, body.ready)

    def _decide(self, who: Member, stamp: Stamp, body: Decide) -> None:
        self.decided(who, body.view)
        page = self._pages.get(who)
        is_behind = page is None or number_on(page) < body.view.number
        if is_behind and body.view.policy is Policy.LIVE and stamp.lineage == body.view.lineage:
            raise Violation("S11", f"{brief(who)} tells of {brief(body.view)} before its record does: {brief(page)}")

    def _prepare(self, who: Member, stamp: Stamp, body: Prepare) -> None:
        if self._proposers.setdefault((stamp, body.ballot), who) != who:
            raise Violation("I4", f"{brief(who)} uses a ballot of another one: {brief(body.ballot)}")

    def _accept(self, who: Member, stamp: Stamp, body: Accept) -> None:
        ballot, view = body.vote.ballot, body.vote.view
        self._prepare(who, stamp, Prepare(ballot))
        if self._proposals.setdefault((stamp, ballot), view) != view:
            raise Violation("I4", f"{brief(who)} proposes two views with ballot {brief(ballot)}")
        self._proposed.add(view.hash)

    def _promise(self, who: Member, stamp: Stamp, body: Promise) -> None:
        self._vote(who, stamp, body.ballot)
        if body.vote is not None:
            self._on_page(who, stamp, body.vote.ballot, is_vote=True)

    def _accepted(self, who: Member, stamp: Stamp, body: Accepted) -> None:
        self._vote(who, stamp, body.ballot)
        self._on_page(who, stamp, body.ballot, is_vote=True)
        proposal = self._proposals.get((stamp, body.ballot))
        if proposal is not None:
            self._count(who, self._invariants.lineages[stamp.lineage].views[stamp.number], body.ballot, proposal)

    def _count(self, who: Member, parent: View, ballot: Ballot, proposal: View) -> None:
        """A proposal that a quorum has accepted is decided, whichever members know it."""
        voters = self._voters.setdefault((parent.stamp, ballot), set())
        voters.add(who)
        if is_quorum(voters, parent):
            self._proposed.add(proposal.hash)
            self.decided(who, proposal)

    def _vote(self, who: Member, stamp: Stamp, ballot: Ballot) -> None:
        promised = self._promised.get((who, stamp), ballot)
        if ballot < promised:
            raise Violation("I4", f"{brief(who)} votes for {brief(ballot)} after its promise of {brief(promised)}")
        self._promised[who, stamp] = ballot
        self._on_page(who, stamp, ballot, is_vote=False)

    def _on_page(self, who: Member, stamp: Stamp, ballot: Ballot, *, is_vote: bool) -> None:
        """S11, checked as the message leaves, since the process may die right after."""
        view = self._invariants.lineages[stamp.lineage].views[stamp.number]
        if view.policy is not Policy.LIVE:
            return
        page, written = self._pages.get(who), None
        if page is not None and number_on(page) == stamp.number:
            written = page.promised if not is_vote else (page.vote.ballot if page.vote is not None else None)
        if (page is None or number_on(page) <= stamp.number) and (written is None or written < ballot):
            raise Violation("S11", f"{brief(who)} sends a vote for {brief(ballot)}, its record has {brief(page)}")

    def wrote(self, who: Member, record: AcceptorRecord) -> None:
        before = self._pages.get(who)
        if before is not None and (number_on(before), before.promised) > (number_on(record), record.promised):
            raise Violation("S11", f"the record of {brief(who)} goes back from {brief(before)} to {brief(record)}")
        self._pages[who] = record
        if record.view is not None:
            self.decided(who, record.view)
            if record.vote is not None:
                self._count(who, record.view, record.vote.ballot, record.vote.view)

    # News and reasons

    def proven(self, peer: "Peer", member: Member) -> None:
        """`peer` is told that `member` is dead."""
        self._accused.add(member)
        self._final.setdefault(peer.member, set()).add(member)

    def accused(self, member: Member) -> None:
        """A peer has evidence against `member`."""
        self._accused.add(member)

    def _report(self, who: Member, stamp: Stamp, body: Report) -> None:
        if body.kind <= ReportKind.SILENT or body.kind is ReportKind.FLAPPING:
            self._accused.update((body.subject, who))  # either of two members that do not hear each other may go

    def heard(self, peer: "Peer", body: Body) -> None:
        if isinstance(body, Ping | Ack | Gossip | SyncReply) and body.claims:
            for claim in body.claims:
                if claim.state >= State.LEFT:
                    self._final.setdefault(peer.member, set()).add(claim.member)
                elif claim.state is not State.ALIVE:
                    self._accused.add(claim.member)

    def discovered(self, peer: "Peer", effect: Discovered) -> None:
        member = effect.claim.member
        if member in self._final.get(peer.member, ()):
            raise Violation("I16", f"{brief(peer.member)} discovers {brief(member)}, of whose end it had heard")


def number_on(page: AcceptorRecord) -> int:
    """Number of the view on an acceptor record; 0: the page is still blank."""
    return 0 if page.view is None else page.view.number


_CHECKS: dict[type, Callable[[Membership, Member, Stamp, Any], None]] = {
    Ready: Membership._ready,
    Beat: Membership._beat,
    Decide: Membership._decide,
    Prepare: Membership._prepare,
    Accept: Membership._accept,
    Promise: Membership._promise,
    Accepted: Membership._accepted,
    Report: Membership._report,
}
