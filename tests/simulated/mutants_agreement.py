"""Which view is next, with one rule removed: R12 and R13 of PROTOCOL.md."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import gossip.acceptor
import gossip.agreement
import gossip.core
import gossip.reports
import gossip.view
from gossip import Core, Envelope, Member, View
from gossip.acceptor import NO_BALLOT, Acceptor, decided_record, has_shortcut, is_ballot, opening_promise, reading
from gossip.agreement import Agreement, Body, Decided, Proposal, Result
from gossip.commit import StepMachine
from gossip.effects import Effect, Explain, WriteRecord
from gossip.membership import Membership
from gossip.messages import Accepted, AcceptorRecord, Join, Vote
from gossip.view import can_decide
from gossip.view_change import ViewChange
from tests.gossip.acceptors import Swarm

from .mutant import Mutant, mutant


def _half_is_enough(members: Collection[Member], view: View) -> bool:
    return 2 * len([member for member in view.members if member in members]) >= len(view.members)


def _blank(view: View) -> AcceptorRecord:
    return AcceptorRecord(view, NO_BALLOT, None)


# Paxos


def _ask_for_own(self: Agreement, now: float) -> list[Result]:
    if not can_decide(self._promises, self._counted, self._view):
        return []
    return self._rest() if self._candidate is None else self._propose(now, self._candidate)


def _install_with_rank_0(original: Callable[..., list[WriteRecord]]) -> Callable[..., list[WriteRecord]]:
    def install(self: Agreement, view: View) -> list[WriteRecord]:
        written = original(self, view)
        self._rank = 0
        return written

    return install


def _skip_phase_1(self: Agreement) -> bool:
    return has_shortcut(self._view) and self._rank == opening_promise(self._view).rank


def _skip_phase_1_with_live(self: Agreement) -> bool:
    return self._ballot == NO_BALLOT and self._rank == self._view.number % len(self._view.members)


def _decide_by_one(self: Agreement) -> list[Result]:
    self._round, self._deadline = Proposal.DECIDED, math.inf
    return [*decided_record(self._proposal), Decided(self._proposal)]


def _accept_anything(self: Acceptor, vote: Vote) -> tuple[list[WriteRecord], Accepted]:
    return self._become(max(self.promised, vote.ballot), vote), Accepted(vote.ballot)


def _receive_votes_unfenced(original: Callable[..., list[Effect]]) -> Callable[..., list[Effect]]:
    def receive(self: Core, now: float, envelope: Envelope) -> list[Effect]:
        if self.view is not None and isinstance(envelope.body, Body):
            envelope = replace(envelope, stamp=self.view.stamp)
        return original(self, now, envelope)

    return receive


def _count_observers(original: Callable[..., list[Effect]]) -> Callable[..., list[Effect]]:
    """A JOIN that comes while a view is being decided counts as a vote for it."""

    def consider_join(self: Membership, now: float, source: Member, join: Join) -> list[Effect]:
        effects = original(self, now, source, join)
        agreement: Any = self.view_change.agreement
        if self.view is not None and agreement._round is Proposal.ACCEPTING:
            agreement._accepted.add(source)
            effects = [*effects, *self.take(now, agreement._decide())]
        return effects

    return consider_join


def _decide_with_observers(self: Agreement) -> list[Result]:
    observers = [member for member in self._accepted if member not in self._view.members]
    votes = len([member for member in self._view.members if member in self._accepted or member in self._counted])
    if 2 * (votes + len(observers)) <= len(self._view.members) + len(observers):
        return []
    return _decide_by_one(self)


# Records of dead members


def _bury_without_record(original: Callable[..., list[Result]]) -> Callable[..., list[Result]]:
    def declare_dead(self: ViewChange, now: float, member: Member, record: AcceptorRecord | None) -> list[Result]:
        return original(self, now, member, None if self.view is None else _blank(self.view))

    return declare_dead


def _take_proof_alone(original: Callable[..., list[Effect]]) -> Callable[..., list[Effect]]:
    def take_proof(self: Membership, now: float, member: Member, record: AcceptorRecord | None) -> list[Effect]:
        return original(self, now, member, None)

    return take_proof


def _reconsider_by_silence(original: Callable[..., list[Effect]]) -> Callable[..., list[Effect]]:
    def reconsider(self: ViewChange, now: float, steps: StepMachine) -> list[Effect]:
        assert self.view is not None
        for member in self.reports.cut(now, steps.done + 1).gone:
            self.reports.proven[member] = None
            self.reports.records.setdefault(member, _blank(self.view))
            self.agreement._records.setdefault(member, _blank(self.view))
        return original(self, now, steps)

    return reconsider


def _take_and_write_last(original: Callable[..., list[Effect]]) -> Callable[..., list[Effect]]:
    def take(self: Membership, now: float, results: Sequence[Result]) -> list[Effect]:
        effects = original(self, now, results)
        is_write = [isinstance(effect, WriteRecord) for effect in effects]
        others = [effect for effect, written in zip(effects, is_write, strict=True) if not written]
        return [*others, *(effect for effect, written in zip(effects, is_write, strict=True) if written)]

    return take


def _take_proof_of_this_view(original: Callable[..., list[Effect]]) -> Callable[..., list[Effect]]:
    def take_proof(self: Membership, now: float, member: Member, record: AcceptorRecord | None) -> list[Effect]:
        later = None if record is None else record.view
        if self.view is not None and later is not None and later.number > self.view.number:
            record = _blank(self.view)
        return original(self, now, member, record)

    return take_proof


def _take_proof_of_a_later_view_only(original: Callable[..., list[Effect]]) -> Callable[..., list[Effect]]:
    """The kernel's proof comes once; here its record is used only for the view that it names."""

    def take_proof(self: Membership, now: float, member: Member, record: AcceptorRecord | None) -> list[Effect]:
        later = None if record is None else record.view
        if self.view is None or later is None or later.number <= self.view.number:
            return original(self, now, member, record)
        self.view_change.dead.pop(member, None)
        return [*self.consider_view(now, later), *self.view_change.send_reports(now, repeat=False)]

    return take_proof


def _read_without_vote(record: AcceptorRecord, view: View) -> AcceptorRecord | None:
    read = reading(record, view)
    return None if read is None else replace(read, vote=None)


def _read_without_promise(record: AcceptorRecord, view: View) -> AcceptorRecord | None:
    read = reading(record, view)
    return None if read is None else replace(read, promised=read.vote.ballot if read.vote is not None else NO_BALLOT)


def _learn_without_writing(self: Swarm, member: Member, view: View) -> None:
    self.decided[view] = None
    self._informed.add(member)


# Proposers


class _Seated:
    """A step machine that claims to have the state."""

    seated = True

    def __init__(self, steps: StepMachine) -> None:
        self._steps = steps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._steps, name)


def _reconsider_unseated(original: Callable[..., list[Effect]]) -> Callable[..., list[Effect]]:
    return lambda self, now, steps: original(self, now, _Seated(steps))


def _try_barrier_of_anybody(original: Callable[..., list[Effect]]) -> Callable[..., list[Effect]]:
    def try_barrier(self: StepMachine) -> list[Effect]:
        is_full = self.view is not None and len(self._ready) == len(self.view.members)
        if is_full and not any(ready.seated for ready in self._ready.values()):
            self._ready = {member: replace(ready, seated=True) for member, ready in self._ready.items()}
        return original(self)

    return try_barrier


AGREEMENT: dict[str, Mutant] = {
    "R12: half counts without rank 0": mutant(
        (gossip.view, "is_quorum", _half_is_enough),
        (gossip.agreement, "is_quorum", _half_is_enough),
        (gossip.reports, "is_quorum", _half_is_enough),
        breaks="S1",
        seed=25,
    ),
    "R12: one vote decides": mutant((Agreement, "_decide", _decide_by_one), breaks="S1", seed=128),
    "R12: an accepted view is ignored in phase 1": mutant(
        (Agreement, "_ask_to_accept", _ask_for_own),
        breaks="S1",
        seed=42,
        scenario="who decided a view is killed when it has told of it nobody but a joiner",
    ),
    "R12: a ballot without its proposer's rank": mutant(
        (Agreement, "install", _install_with_rank_0(Agreement.install)),
        (Agreement, "_is_from", lambda self, source, ballot: is_ballot(ballot, self._view)),
        breaks="I4",
        seed=4,
    ),
    "R12: the owner opens with its first ballot again": mutant(
        (Agreement, "_may_skip_phase_1", _skip_phase_1), breaks="I4", seed=31
    ),
    "R12: an acceptor accepts below its promise": mutant((Acceptor, "accept", _accept_anything), breaks="I4", seed=6),
    "R12: votes of another view count": mutant(
        (Core, "receive", _receive_votes_unfenced(Core.receive)),
        breaks="S1 I4 S11",
        scenario="answers of an older view arrive in the next one",
    ),
    "R12, R5: who has no seat yet proposes, and its view begins without the state": mutant(
        (ViewChange, "reconsider", _reconsider_unseated(ViewChange.reconsider)),
        (StepMachine, "_try_barrier", _try_barrier_of_anybody(StepMachine._try_barrier)),
        breaks="S4 S5 S12",
        scenario="C5: everybody with the state dies before a joiner's barrier is complete",
    ),
    "R9: an observer votes": mutant(
        (Membership, "consider_join", _count_observers(Membership.consider_join)),
        (Agreement, "_decide", _decide_with_observers),
        breaks="S1",
        scenario="two ask for a seat where a member is cut off that has proposed a view",
    ),
    "R13: silence is as good as proof": mutant(
        (ViewChange, "reconsider", _reconsider_by_silence(ViewChange.reconsider)), breaks="S1", seed=21
    ),
    "R13: proof without a record": mutant(
        (ViewChange, "declare_dead", _bury_without_record(ViewChange.declare_dead)),
        (Membership, "take_proof", _take_proof_alone(Membership.take_proof)),
        breaks="S1",
        seed=1,
    ),
    "R13: the record is written after the message": mutant(
        (Membership, "take", _take_and_write_last(Membership.take)), breaks="S11", seed=0
    ),
    "R13: a decision is told before it is on record": mutant(
        (gossip.agreement, "decided_record", lambda decided: []), breaks="S11", seed=0
    ),
    "R13: nothing is on record of who asks for a seat": mutant(
        (gossip.core, "BLANK", Explain("nothing is written")),
        breaks="L1",
        scenario="two members have their seats before they know, and all but one die",
    ),
    "R13: a later view on record is ignored": mutant(
        (Membership, "take_proof", _take_proof_of_this_view(Membership.take_proof)), breaks="S1", seed=81
    ),
    "R13: a vote on record is ignored": mutant(
        (gossip.agreement, "reading", _read_without_vote),
        breaks="S1",
        seed=350,
        scenario="C2: what the dead have accepted is decided, and the last survivor knows nothing of it",
    ),
    "R13: neither promises nor decisions are on record": mutant(
        (gossip.agreement, "reading", _read_without_promise),
        (gossip.agreement, "decided_record", lambda decided: []),
        (Swarm, "_learn", _learn_without_writing),
        (Swarm, "_check", lambda self, member, body: None),
        breaks="S1",
        scenario="C10: an ACCEPT that is above what the record of the dead says arrives when another view is decided",
    ),
    "R13: the owner's shortcut, with `live`": mutant(
        (gossip.acceptor, "has_shortcut", lambda view: True),
        (gossip.agreement, "has_shortcut", lambda view: True),
        (Agreement, "_may_skip_phase_1", _skip_phase_1_with_live),
        breaks="S1",
        scenario="C2: the last survivor owns the view in which the dead have accepted another one",
    ),
    "bug: a record that names a later view says nothing in that": mutant(
        (Membership, "take_proof", _take_proof_of_a_later_view_only(Membership.take_proof)), breaks="L1", seed=164
    ),
}
