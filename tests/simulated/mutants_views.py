"""Mutants of views: one rule about the members of the next view, or its announcement, is removed."""

import math
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import gossip.admission
import gossip.view
import tests.simulation
from gossip import Core, Member, View
from gossip.admission import Admission
from gossip.beliefs import Beliefs
from gossip.effects import Effect, Left, Removed
from gossip.joining import Joining
from gossip.known_views import KnownViews
from gossip.membership import Membership
from gossip.messages import AcceptorRecord, Head, Join, Report, ReportKind
from gossip.other_swarms import OtherSwarms
from gossip.progress import NOTHING_DONE
from gossip.reports import Cut, Reports
from gossip.signs import Signs
from gossip.swim import Swim
from gossip.unopened_links import UnopenedLinks
from gossip.view import Change
from gossip.view_change import ViewChange
from tests.simulation import Simulation

from .mutant import Mutant, mutant
from .peer import Peer

# Members of the next view


def _counts_also_without_a_view(original: Callable[[Admission, Join], bool]) -> Callable[[Admission, Join], bool]:
    return lambda self, join: join.view_number == 0 or original(self, join)


def _name_whatever_is_heard(original: Callable[..., bool]) -> Callable[..., bool]:
    def hear(self: KnownViews, now: float, source: Member, lineage: bytes, head: Head) -> bool:
        return original(self, now, source, lineage, replace(head, absent_since=1))

    return hear


class _Uncapped(list[Member]):
    """A list of which every slice is the whole list."""

    def __getitem__(self, key: Any) -> Any:
        return self if isinstance(key, slice) else super().__getitem__(key)


def _all_admissible(original: Callable[[View, Change], list[Member]]) -> Callable[[View, Change], list[Member]]:
    return lambda view, change: _Uncapped(original(view, change))


# Reports


def _unheard_by_one(self: Reports, certain: Collection[Member], leases: Any) -> set[Member]:
    assert self._view is not None
    accused = {subject for kind, _, subject, _ in leases if kind is ReportKind.SILENT and subject not in certain}
    return accused if len(accused) < len(self._view.members) else set()


def _cut_with_old_leases(original: Callable[..., Cut]) -> Callable[..., Cut]:
    """A report counts as repeated until its lease ends."""

    def cut(self: Reports, now: float, step: int) -> Cut:
        for lease in self._leases.values():
            lease.is_old = lease.is_old or now - lease.since >= self.config.force_cut_s
        self._last = None
        return original(self, now, step)

    return cut


def _is_cut_off_for_long(original: Callable[..., bool]) -> Callable[..., bool]:
    """Only lasting failures count against a member that cannot hear a quorum."""

    def is_cut_off(self: Reports, reporter: Member, pairs: dict[tuple[Member, Member], bool]) -> bool:
        return original(self, reporter, {pair for pair, is_for_long in pairs.items() if is_for_long})

    return is_cut_off


def _receive_for_ever(original: Callable[..., None]) -> Callable[..., None]:
    def receive(self: Reports, now: float, source: Member, report: Report) -> None:
        original(self, now, source, report)
        for lease in self._leases.values():
            lease.until = math.inf

    return receive


def _answers_for_nothing(self: Signs, now: float, name: str) -> bool:
    self._heard[name] = now
    return True


# Joins and leaves


def _removed_however(original: Callable[..., None]) -> Callable[..., None]:
    return lambda self, now, member, flaps: original(self, now, member)


# Announcement


def _install_and_meet_nobody(original: Callable[..., list[Effect]]) -> Callable[..., list[Effect]]:
    def install(self: Membership, now: float, view: View) -> list[Effect]:
        swim: Any = self._swim
        with_claims, swim.apply_claim = swim.apply_claim, lambda now, claim: []
        try:
            return original(self, now, view)
        finally:
            swim.apply_claim = with_claims

    return install


def _know_strangers(original: Callable[..., list[Effect]]) -> Callable[..., list[Effect]]:
    def name(self: OtherSwarms, mine: View, other: View) -> list[Effect]:
        original(self, mine, other)
        return []

    return name


def _take_proof_and_stop(original: Callable[..., list[Effect]]) -> Callable[..., list[Effect]]:
    def take_proof(self: Membership, now: float, member: Member, record: AcceptorRecord | None) -> list[Effect]:
        later = None if record is None else record.view
        is_later = self.view is not None and later is not None and later.number > self.view.number
        effects = original(self, now, member, record)
        if is_later and not any(isinstance(effect, Removed | Left) for effect in effects):
            self.view_change.reports.records.pop(member, None)
            self.view_change.agreement._records.pop(member, None)
        return effects

    return take_proof


VIEWS: dict[str, Mutant] = {
    "R8: a JOIN of an older view counts": mutant(
        (Admission, "_counts", lambda self, join: True),
        breaks="I2",
        seed=87,
        scenario="C4: a member is excluded, and its JOIN of before arrives again while it hears nothing",
    ),
    "R8: a JOIN that names no view counts": mutant(
        (Admission, "_counts", _counts_also_without_a_view(Admission._counts)), breaks="I2", seed=60_000_002
    ),
    "R8: a joiner names whatever view it hears of": mutant(
        (KnownViews, "hear", _name_whatever_is_heard(KnownViews.hear)), breaks="I2", seed=71
    ),
    "R8: members vouch for views that they have not seen": mutant(
        (Admission, "absent_since", lambda self, member, number: number + 1),
        breaks="I2",
        seed=141,
        scenario="a joiner has a seat and loses it, and hears of neither",
    ),
    "R8: who was seated and asks again is told nothing": mutant(
        (KnownViews, "in_doubt_s", lambda self, now, member: 0.0),
        breaks="L1",
        seed=424,
    ),
    "R18: who was told of a committed step founds": mutant(
        (Core, "knows_steps", False),
        breaks="S15",
        scenario="R18: an observer that has only heard how far the members are survives them all",
    ),
    "R18: who goes on without members keeps their lineage": mutant(
        (Simulation, "lineage_after", lambda self, peer: next(iter(self.invariants.lineages))),
        breaks="S1",
        scenario="ALL DEAD: of two that observed, who holds the newer state goes on, and the other joins it",
    ),
    "R18: who waits first goes on, whatever it holds": mutant(
        (tests.simulation, "heir", lambda waiting: min(waiting, key=lambda entry: entry.incarnation)),
        breaks="S26",
        scenario="ALL DEAD: of three that observed, one does not see the others, and goes on alone",
    ),
    "R18: nobody founds after a founder": mutant(
        (Core, "knows_steps", True),
        breaks="L1",
        scenario="a joiner survives a founder that died before the first step",
    ),
    "R9: a joiner is counted before it is current": mutant(
        (gossip.admission, "_is_current", lambda join, done, **_: True),
        breaks="S10 L1",
        scenario="the state does not get through to an observer",
    ),
    "R9: who lacks the state is counted while the first steps are recent": mutant(
        (gossip.admission, "FIRST", NOTHING_DONE),
        breaks="S10",
        scenario="the state does not get through to an observer that comes right after the first step",
    ),
    "R12: more are admitted than stay": mutant(
        (gossip.view, "_admissible", _all_admissible(gossip.view._admissible)),
        breaks="L1",
        scenario="two join one member at once, and die at once",
    ),
    "R14: who was stopped takes the others for silent": mutant(
        (Swim, "resume", lambda self, now: None),
        breaks="I14",
        scenario="the first of two members is stopped for five seconds",
    ),
    "R14: nobody notices its own pause": mutant(
        (Core, "_notice_pause", lambda self, now: []),
        breaks="I14",
        scenario="the first of two members is stopped for five seconds",
    ),
    "R14: a link opens while its peer is stopped": mutant(
        (UnopenedLinks, "resume", lambda self, now: None),
        breaks="I14",
        scenario="R14: the first of two is stopped while its link to the other one is being opened",
    ),
    "one who hears nothing of a member is enough": mutant(
        (Reports, "_unheard", _unheard_by_one),
        breaks="I14",
        scenario="one of five does not hear another one for three seconds",
    ),
    "G1: who is silent is cut at once": mutant(
        (Reports, "_settles_at", lambda self: -math.inf),
        breaks="I14",
        scenario="G1: two of six die within a quarter of a second, and nothing proves it",
    ),
    "reports count for ever": mutant(
        (Reports, "receive", _receive_for_ever(Reports.receive)),
        breaks="L1",
        seed=4,
    ),
    "a report lasts as long as its lease": mutant(
        (Reports, "cut", _cut_with_old_leases(Reports.cut)),
        breaks="I14",
        scenario="one of five does not hear another one for three seconds",
    ),
    "who is deaf is so to those only whom it has not heard for long": mutant(
        (Reports, "_is_cut_off", _is_cut_off_for_long(Reports._is_cut_off)),
        breaks="I14 L1",
        scenario="one of four hears nobody, and everybody hears it",
    ),
    "G2: who hears a member removes it by the reports of others": mutant(
        (ViewChange, "_hears", lambda self, now, member: False),
        breaks="I14",
        scenario="G2: one of four is stopped, and heard again just before the others would remove it",
    ),
    "who stays behind is waited for": mutant(
        (ViewChange, "mark_behind", lambda self, now, member: None),
        breaks="L1",
        scenario="one of four becomes deaf to one after the other, and everybody hears it",
    ),
    "strangers are not named": mutant(
        (OtherSwarms, "name", _know_strangers(OtherSwarms.name)),
        breaks="strangers",
        seed=17,
        scenario="two swarms of one name meet",
    ),
    "a member that sits elsewhere is waited for": mutant(
        (Membership, "meet_strangers", lambda self, now, source, lineage: []), breaks="L1 strangers", seed=17
    ),
    "a view does not introduce its members": mutant(
        (Membership, "_install", _install_and_meet_nobody(Membership._install)),
        (Peer, "_look_up", lambda peer, member: None),
        breaks="L1",
        scenario="who alone had met a member dies, and so does that member",
    ),
    "who is behind is not told of the later view": mutant(
        (Membership, "hear_out_of_view", lambda self, now, envelope: []), breaks="L1", seed=21
    ),
    "nobody asks whether there is a later view": mutant(
        (Membership, "ask_for_view", lambda self, now: []),
        breaks="L1",
        scenario="a member wakes among strangers, which have replaced all that it knew",
    ),
    "bug: a joiner that others take for dead waits for ever": mutant(
        (Joining, "hear_of_itself", lambda self: []), breaks="L1", seed=52
    ),
    "bug: one deaf member takes everybody down": mutant(
        (Reports, "_is_cut_off", lambda self, reporter, pairs: False),
        breaks="L1 I14",
        scenario="one of five hears nobody, and everybody hears it",
    ),
    "G10: who is removed again and again has a seat at once": mutant(
        (Admission, "removed", lambda self, now, member, flaps: None),
        breaks="S10",
        scenario="G10: a member loses each seat that it has within 3 s, since one other cannot reach it",
    ),
    "G10: who flaps to others only has a seat at once": mutant(
        (Admission, "removed", _removed_however(Admission.removed)),
        breaks="S10",
        scenario="G10: the links between two of three come and go, and the third one sees nothing of it",
    ),
    "G10: who had its seat for long is held back, too": mutant(
        (Admission, "view_changed", lambda self, now, before, view: None),
        breaks="L1",
        scenario="G10: one of four is cut off for a moment now and then, and has its seat for longer than 5 s between",
    ),
    "G11: a link that does not open is nobody's evidence": mutant(
        (UnopenedLinks, "update", lambda self, now, unopened: {}),
        breaks="L1",
        scenario="G11: a member cannot be reached by one other, whose link it answers",
    ),
    "G11: an answering link is life for ever": mutant(
        (Beliefs, "link_answered", lambda self, now, member: self.frame_received(now, member) or True),
        breaks="L1",
        scenario="G11: the second of two members cannot reach the first, whose link it answers",
    ),
    "G16: that data do not get through is nobody's evidence": mutant(
        (ViewChange, "undelivered", lambda self, now, member: None),
        breaks="L1",
        scenario="G16: data do not get through from the second of two to the first, and everything else does",
    ),
    "G16: that data do not get through is evidence as strong as a refused link": mutant(
        (ViewChange, "undelivered", ViewChange.link_refused),
        breaks="L1 I14",
        scenario="G16: data get through neither to nor from one of three, which answers",
    ),
    "G12: coming and going is nobody's evidence": mutant(
        (Swim, "flaps", lambda self, now, member: False),
        breaks="L1",
        scenario="G12: the links of one of three come and go, and in the end they stay",
    ),
    "G12: who flaps has a seat again while it does": mutant(
        (Swim, "is_steady", lambda self, now, member: True),
        breaks="S10",
        scenario="G12: the links of one of three come and go, and in the end they stay",
    ),
    "G12: if all flap, nobody is left": mutant(
        (Reports, "_missing", lambda self: self._missing_by(self._leases)),
        breaks="L1",
        scenario="G12: the links of all come and go, and one of them dies",
    ),
    "G12: a busy interpreter flaps": mutant(
        (Signs, "_is_busy", lambda self, name: False),
        (Signs, "link_answered", _answers_for_nothing),
        breaks="I14",
        scenario="G12: a member is too busy for frames, again and again, and its link answers",
    ),
    "bug: a record that names a later view is dropped when that is installed": mutant(
        (Membership, "take_proof", _take_proof_and_stop(Membership.take_proof)),
        breaks="L1",
        seed=164,
        scenario="who decided a view dies with it, and so does whoever it was decided against",
    ),
}
