"""Reports, and the members that they cut from the next view: rules G1 and G2 of PROTOCOL.md."""

import math
from dataclasses import replace
from itertools import combinations, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossip import Member, View, is_quorum
from gossip.messages import AcceptorRecord, Ballot, Report, ReportKind
from gossip.reports import Cut, Reports, ReportsConfig

from .members import A2, A, B, C, D, E, view_of

FIVE = view_of(7, A, B, C, D, E)
STEP = 3
ROUND = ReportKind.PROVEN, ReportKind.REFUSED, ReportKind.SILENT
RESTART = ReportKind.STALLED, ReportKind.WITHDRAWN, ReportKind.ABORTED, ReportKind.READABLE
RECORD = AcceptorRecord(FIVE, Ballot(1, 1), None)
NOBODY = Cut()

Said = tuple[Member, Report]


def reports(view: View = FIVE, **config: Any) -> Reports:
    new = Reports(ReportsConfig(**config))
    new.install(view)
    return new


def said(new: Reports, now: float, *pairs: tuple[Member, Member], kind: ReportKind = ReportKind.SILENT) -> Reports:
    """Reports of the first member of each pair about the second."""
    for source, subject in pairs:
        new.receive(now, source, Report(kind, subject))
    return new


def of_each_other(one: str, other: str) -> list[tuple[Member, Member]]:
    """All pairs of a member of `one` and a member of `other`, both ways."""
    by_name = {member.peer_id: member for member in FIVE.members}
    pairs = [(by_name[a], by_name[b]) for a, b in product(one, other)]
    return pairs + [(b, a) for a, b in pairs]


def repeated(new: Reports, until: float, *pairs: tuple[Member, Member]) -> Cut:
    """The cut when each pair has been reported twice a second from 0 on."""
    cut = NOBODY
    for tick in range(int(2 * until) + 1):
        cut = said(new, tick / 2, *pairs).cut(tick / 2, STEP)
    return cut


# Leases, and what a report may be about.


def test_without_reports_nobody_is_cut() -> None:
    assert reports().cut(0.0, STEP) == NOBODY
    assert reports().is_empty()


def test_a_report_that_is_not_repeated_is_forgotten() -> None:
    new = said(reports(lease_s=1.5), 0.0, (A, B), kind=ReportKind.REFUSED)
    assert not new.is_empty()
    assert new.cut(1.4, STEP).gone == (B,)
    assert new.cut(1.5, STEP) == NOBODY
    assert new.is_empty()


def test_a_report_that_is_repeated_stands() -> None:
    new = said(said(reports(lease_s=1.5), 0.0, (A, B), kind=ReportKind.REFUSED), 1.0, (A, B), kind=ReportKind.REFUSED)
    assert new.cut(2.4, STEP).gone == (B,)


def test_proof_stands_without_being_repeated() -> None:
    new = said(reports(), 0.0, (A, B), kind=ReportKind.PROVEN)
    assert new.cut(1e9, STEP) == Cut((B,))
    assert not new.is_empty()


def test_an_installed_view_begins_without_reports_but_the_dead_in_it_stay_dead() -> None:
    new = said(reports(), 0.0, (A, B), kind=ReportKind.REFUSED)
    new.receive(0.0, A, Report(ReportKind.PROVEN, C, record=RECORD))
    new.receive(0.0, A, Report(ReportKind.PROVEN, D, record=RECORD))
    new.install(view_of(8, A, B, C))
    assert new.cut(0.0, STEP).gone == (C,)
    assert (new.proven, new.records) == ({C: None}, {C: RECORD})


@pytest.mark.parametrize("subject", [Member("x", 1), A2], ids=["unknown", "another incarnation"])
@pytest.mark.parametrize("kind", ReportKind)
def test_a_report_about_who_has_no_seat_means_nothing(kind: ReportKind, subject: Member) -> None:
    new = reports()
    new.receive(0.0, B, Report(kind, subject, STEP, RECORD))
    assert new.is_empty()
    assert new.records == {}


@pytest.mark.parametrize("kind", RESTART)
def test_nobody_starts_a_step_over_in_the_name_of_another(kind: ReportKind) -> None:
    new = reports()
    new.receive(0.0, A, Report(kind, B, STEP))
    assert new.is_empty()


@pytest.mark.parametrize("kind", [ReportKind.REFUSED, ReportKind.SILENT])
def test_nobody_is_silent_to_itself(kind: ReportKind) -> None:
    assert said(reports(), 0.0, (B, B), kind=kind).is_empty()


def test_the_first_record_of_a_dead_member_stands_and_may_come_after_its_proof() -> None:
    new = said(reports(), 0.0, (A, B), kind=ReportKind.PROVEN)
    assert new.records == {}
    new.receive(0.0, A, Report(ReportKind.PROVEN, B, record=RECORD))
    new.receive(0.0, C, Report(ReportKind.PROVEN, B, record=replace(RECORD, promised=Ballot(2, 2))))
    assert new.records == {B: RECORD}


# Flapping members (G12)


def flapping(until: float, *pairs: tuple[Member, Member], view: View = FIVE) -> Cut:
    """The cut when each pair has been reported to flap twice a second from 0 on."""
    new, cut = reports(view), NOBODY
    for tick in range(int(2 * until) + 1):
        cut = said(new, tick / 2, *pairs, kind=ReportKind.FLAPPING).cut(tick / 2, STEP)
    return cut


def test_who_flaps_to_most_goes_like_who_is_silent() -> None:
    pairs = of_each_other("e", "abcd")
    cut = flapping(1.0, *pairs)
    assert said(reports(), 0.0, (A, E), kind=ReportKind.FLAPPING).flaps(E)
    assert not said(reports(), 0.0, (A, E)).flaps(E)
    assert (cut.gone, cut.is_urgent) == ((E,), False)
    assert cut.settles_at == 0.3


def test_whose_links_flap_to_few_stays_unless_it_lasts() -> None:
    pairs = of_each_other("d", "b")
    assert flapping(2.0, *pairs) == NOBODY
    assert flapping(2.5, *pairs).gone == (D,)


def test_two_members_that_flap_to_each_other_part_by_seniority() -> None:
    two = view_of(7, A, B)
    assert flapping(1.0, (A, B), (B, A), view=two).gone == (B,)
    assert flapping(2.5, (A, B), (B, A), view=two).gone == (B,)


def test_the_second_of_two_cannot_take_the_first_out_and_goes_itself() -> None:
    two = view_of(7, A, B)
    assert flapping(2.0, (B, A), view=two) == NOBODY
    assert flapping(2.5, (B, A), view=two).gone == (B,)


def test_nobody_goes_if_all_flap() -> None:
    everybody = [(one, other) for one in FIVE.members for other in FIVE.members]
    assert flapping(1.0, *everybody) == NOBODY
    assert flapping(9.0, *everybody) == NOBODY


def test_who_is_silent_goes_though_all_others_flap() -> None:
    new, cut = reports(), NOBODY
    others = (A, B, C, D)
    for tick in range(12):
        said(new, tick / 2, *((one, other) for one in others for other in others), kind=ReportKind.FLAPPING)
        cut = said(new, tick / 2, *((other, E) for other in others)).cut(tick / 2, STEP)
    assert cut.gone == (E,)


# Certain: proof and refused links.


def test_one_proof_is_enough_and_urgent() -> None:
    assert said(reports(), 0.0, (E, A), kind=ReportKind.PROVEN).cut(0.0, STEP) == Cut((A,))


def test_one_refused_link_is_enough_and_urgent() -> None:
    assert said(reports(), 0.0, (A, C), kind=ReportKind.REFUSED).cut(0.0, STEP) == Cut((C,))


def test_who_goes_is_named_in_rank_order() -> None:
    new = said(reports(), 0.0, (A, E), (A, B), kind=ReportKind.PROVEN)
    assert said(new, 0.0, (A, C), kind=ReportKind.REFUSED).cut(0.0, STEP).gone == (B, C, E)


def test_mutual_refusal_cuts_only_the_greater_rank() -> None:
    assert said(reports(), 0.0, (B, D), (D, B), kind=ReportKind.REFUSED).cut(0.0, STEP).gone == (D,)


def test_whom_most_refuse_goes_and_its_own_word_goes_with_it() -> None:
    pairs = (C, B), (D, B), (B, C), (B, D)
    assert said(reports(), 0.0, *pairs, kind=ReportKind.REFUSED).cut(0.0, STEP).gone == (B,)


def test_an_accuser_counts_once_however_it_accuses() -> None:
    new = reports()
    for kind, step in product((ReportKind.REFUSED, ReportKind.SILENT), (STEP, STEP + 1)):
        for now in (0.0, 1.0, 2.0):
            new.receive(now, A, Report(kind, B, step))
    assert said(new, 2.0, (C, D), (B, A), (D, C), kind=ReportKind.REFUSED).cut(2.5, STEP).gone == (B, D)


def test_the_dead_accuse_nobody() -> None:
    new = said(reports(), 0.0, (A, B), (A, C), kind=ReportKind.REFUSED)
    assert said(new, 0.0, (D, A), kind=ReportKind.PROVEN).cut(0.0, STEP).gone == (A,)


def test_who_saw_a_link_refused_is_not_cut_off_once_the_other_is_proven_dead() -> None:
    """The last member on one of two hosts: its link is refused first; the word of the other launcher arrives later."""
    new = said(reports(view_of(1, A, B)), 0.0, (B, A), kind=ReportKind.REFUSED)
    assert new.cut(0.0, STEP).gone == (B,)
    assert said(new, 0.1, (B, A), kind=ReportKind.PROVEN).cut(0.1, STEP) == Cut((A,))


def test_who_is_refused_by_all_is_cut_alone() -> None:
    assert said(reports(), 0.0, *((B, m) for m in (A, C, D, E)), kind=ReportKind.REFUSED).cut(0.0, STEP).gone == (B,)


def test_two_that_die_with_their_host_are_cut_by_the_first_who_notices() -> None:
    assert said(reports(), 0.0, (A, D), (A, E), kind=ReportKind.REFUSED).cut(0.0, STEP).gone == (D, E)


# Silence.


def test_silence_needs_a_majority_of_those_who_could_hear() -> None:
    assert said(reports(), 0.0, (A, E), (B, E)).cut(0.0, STEP) == NOBODY
    assert said(reports(), 0.0, (A, E), (B, E), (C, E)).cut(0.0, STEP) == Cut((E,), (E,), 0.3, 2.25)


def test_a_report_that_is_said_twice_is_one_vote() -> None:
    new = said(reports(), 0.0, (A, E), (A, E), (B, E))
    new.receive(0.0, A, Report(ReportKind.SILENT, E, STEP))
    assert new.cut(0.0, STEP) == NOBODY


def test_of_two_members_one_word_is_the_majority() -> None:
    assert said(reports(view_of(7, A, B)), 0.0, (B, A)).cut(0.0, STEP).gone == (A,)


def test_dead_observers_are_no_votes_and_not_needed() -> None:
    new = said(reports(), 0.0, (A, E), (B, E), (C, E))
    assert said(new, 0.0, (B, A), kind=ReportKind.PROVEN).cut(0.0, STEP).gone == (A, E)
    new = said(reports(), 0.0, (A, E), (C, E), (B, A))
    assert said(new, 0.0, (B, A), kind=ReportKind.PROVEN).cut(0.0, STEP) == Cut((A,))
    new = said(reports(), 0.0, (A, E), (C, E))
    assert said(new, 0.0, (B, D), kind=ReportKind.PROVEN).cut(0.0, STEP).gone == (D, E)


def test_who_is_dead_for_certain_is_not_merely_silent() -> None:
    new = said(reports(), 0.0, (A, E), (B, E), (C, E))
    assert said(new, 0.0, (A, E), kind=ReportKind.PROVEN).cut(0.0, STEP) == Cut((E,))


def test_members_that_went_together_are_cut_together() -> None:
    new = said(reports(), 0.0, *product((A, B, C), (D, E)))
    assert new.cut(0.0, STEP) == Cut((D, E), (D, E), 0.3, 2.25)


def test_the_minority_of_a_partition_cuts_nobody() -> None:
    assert said(reports(), 0.0, *product((D, E), (A, B, C))).cut(0.0, STEP) == NOBODY


def test_where_both_sides_of_a_partition_are_heard_the_greater_stays() -> None:
    assert said(reports(), 0.0, *of_each_other("abc", "de")).cut(0.0, STEP).gone == (D, E)


def test_of_two_equal_sides_the_one_with_rank_0_stays() -> None:
    assert said(reports(view_of(7, A, B, C, D)), 0.0, *of_each_other("ab", "cd")).cut(0.0, STEP).gone == (C, D)


def test_of_two_that_call_each_other_silent_one_stays() -> None:
    assert said(reports(view_of(7, A, B)), 0.0, (A, B), (B, A)).cut(0.0, STEP).gone == (B,)


def test_who_is_left_with_one_other_does_not_cut_it_by_its_word_alone() -> None:
    assert said(reports(view_of(7, A, B, C)), 0.0, (A, C), (B, C), (A, B)).cut(0.0, STEP).gone == (C,)


# Stability.


def test_silence_settles_when_it_has_not_changed_for_a_while() -> None:
    new = said(reports(stable_s=0.3), 0.0, *product((A, B, C), (D,)))
    assert new.cut(0.0, STEP).settles_at == 0.3
    assert new.cut(0.2, STEP).settles_at == 0.3
    assert said(new, 0.25, *product((A, B, C), (E,))).cut(0.25, STEP) == Cut((D, E), (D, E), 0.55, 2.25)


def test_who_is_reported_by_too_few_is_not_waited_for() -> None:
    six = view_of(7, *FIVE.members, Member("f", 1))
    new = said(reports(six, stable_s=0.3), 0.0, *product((A, B, C), (D,)), (A, E), (B, E))
    assert new.cut(0.0, STEP) == Cut((D,), (D,), 0.3, 2.25)


def test_it_settles_when_a_bridge_is_old_at_the_latest_however_often_it_changes() -> None:
    new = reports(stable_s=0.3, force_cut_s=1.0, lease_s=9.0)
    new.install(FIVE)
    said(new, 0.0, *product((A, B, C), (D,)))
    assert new.cut(0.0, STEP).settles_at == 0.3
    said(new, 0.9, *product((A, B, C), (E,)))
    assert new.cut(0.9, STEP).settles_at == 1.0


def test_silence_that_ended_is_waited_for_anew() -> None:
    new = said(reports(stable_s=0.3), 0.0, *product((A, B, C), (D,)))
    new.cut(0.0, STEP)
    assert new.cut(2.0, STEP) == NOBODY
    assert said(new, 9.0, *product((A, B, C), (D,))).cut(9.0, STEP).settles_at == 9.3


# Two members that cannot hear each other for long


def test_one_word_alone_cuts_nobody_before_bridge_s_and_one_then() -> None:
    assert repeated(reports(force_cut_s=5.0), 4.5, (A, B)) == NOBODY
    assert repeated(reports(force_cut_s=5.0), 5.0, (A, B)) == Cut((B,))


def test_a_pair_that_cannot_hear_each_other_loses_exactly_one() -> None:
    assert repeated(reports(force_cut_s=5.0), 5.0, (B, C), (C, B)) == Cut((C,))


def test_of_two_broken_links_the_member_at_both_goes() -> None:
    assert repeated(reports(force_cut_s=5.0), 5.0, (A, C), (B, C), (C, A), (C, B)).gone == (C,)


def test_who_hears_nobody_is_cut_alone() -> None:
    assert repeated(reports(force_cut_s=5.0), 5.0, *((B, m) for m in (A, C, D, E))).gone == (B,)


def test_the_minority_of_a_partition_takes_itself_for_cut_off() -> None:
    assert repeated(reports(force_cut_s=5.0), 5.0, *product((D, E), (A, B, C))).gone == (D, E)
    assert repeated(reports(view_of(7, A, B)), 5.0, (B, A), (A, B)).gone == (B,)


def test_silence_that_was_interrupted_begins_anew() -> None:
    new = said(reports(force_cut_s=5.0, lease_s=1.5), 0.0, (A, B))
    assert said(new, 5.5, (A, B)).cut(5.5, STEP) == NOBODY  # not looked at in between
    assert repeated(reports(force_cut_s=5.0), 4.0, (A, B)) == NOBODY


# Restarts


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (ReportKind.STALLED, "step 3 is stalled: frames were lost"),
        (ReportKind.WITHDRAWN, "step 3 is withdrawn by b"),
        (ReportKind.ABORTED, "step 3 is aborted by b"),
        (ReportKind.READABLE, "step 3 is restarted over shared memory by b"),
    ],
)
def test_the_open_step_starts_over_with_the_same_members(kind: ReportKind, reason: str) -> None:
    new = reports()
    new.receive(0.0, B, Report(kind, B, STEP))
    assert new.cut(0.0, STEP) == Cut(redo_reason=reason)
    assert new.cut(0.0, STEP + 1) == NOBODY
    assert new.cut(0.0, STEP - 1) == NOBODY
    assert new.cut(1.5, STEP) == NOBODY


def test_lost_frames_are_those_of_the_open_step_as_long_as_they_are_reported() -> None:
    new = reports()
    new.receive(0.0, B, Report(ReportKind.WITHDRAWN, B, STEP))
    assert not new.has_stalled(0.0, STEP)
    new.receive(0.0, C, Report(ReportKind.STALLED, C, STEP))
    assert new.has_stalled(1.4, STEP) and not new.has_stalled(1.4, STEP + 1) and not new.has_stalled(1.5, STEP)


def test_a_link_that_was_refused_in_the_open_step_is_no_reason_to_start_over() -> None:
    new = reports()
    new.receive(0.0, B, Report(ReportKind.REFUSED, C, STEP))
    assert new.cut(0.0, STEP) == Cut((C,))


# Laws.

some_views = st.sampled_from([view_of(7, *FIVE.members[:size]) for size in range(1, 6)])
anybody = st.sampled_from((*FIVE.members, A2, Member("x", 1)))
any_report = st.builds(
    Report, st.sampled_from(ReportKind), anybody, st.integers(-1, 5), st.sampled_from([None, RECORD])
)


@st.composite
def histories(draw: st.DrawFn) -> tuple[View, list[tuple[float, Said]]]:
    """A view, and the reports of its members, with times."""
    view = draw(some_views)
    entries = st.tuples(st.floats(0.0, 20.0), st.tuples(st.sampled_from(view.members), any_report))
    return view, sorted(draw(st.lists(entries, max_size=30)), key=lambda entry: entry[0])


@given(histories(), st.floats(0.0, 5.0), st.booleans())
def test_whatever_members_report_the_cut_is_sane(
    history: tuple[View, list[tuple[float, Said]]], wait: float, looks: bool
) -> None:
    view, told = history
    new, dead, now = reports(view), set(), 0.0
    for now, (source, report) in told:
        new.receive(now, source, report)
        dead |= {report.subject} if report.kind is ReportKind.PROVEN and report.subject in view.members else set()
        if looks:
            new.cut(now, STEP)
    now += wait
    cut = new.cut(now, STEP)
    assert cut == new.cut(now, STEP)
    assert cut.gone == tuple(member for member in view.members if member in cut.gone)
    assert dead <= {*cut.gone}
    assert dead == {*new.proven}
    assert {*new.records} <= dead
    accusing = *ROUND, ReportKind.FLAPPING
    accused = {report.subject for at, (_, report) in told if report.kind in accusing and at + 1.5 > now}
    accusers = {
        source for at, (source, report) in told if report.kind is ReportKind.REFUSED or report.kind is ReportKind.SILENT
    }
    assert {*cut.gone} <= dead | accused | accusers
    assert cut.is_urgent == (cut.settles_at == -math.inf)
    assert cut.is_urgent or cut.settles_at <= now + new.config.stable_s
    assert bool(cut.redo_reason) <= any(report.kind in RESTART and report.step == STEP for _, (_, report) in told)
    assert cut.gone or cut.settles_at == -math.inf


@given(histories(), st.permutations(range(30)))
def test_all_who_see_the_same_reports_cut_the_same(
    history: tuple[View, list[tuple[float, Said]]], order: list[int]
) -> None:
    view, told = history
    one, other = reports(view), reports(view)
    for _, (source, report) in told:
        one.receive(0.0, source, report)
    for index in order:
        if index < len(told):
            source, report = told[index][1]
            other.receive(0.0, source, report)
    assert replace(one.cut(0.0, STEP), redo_reason="") == replace(other.cut(0.0, STEP), redo_reason="")


@given(some_views, st.data())
def test_silence_is_the_word_of_those_who_stay_or_of_a_majority_of_all(view: View, data: st.DataObject) -> None:
    pairs = data.draw(st.sets(st.tuples(st.sampled_from(view.members), st.sampled_from(view.members))))
    cut = said(reports(view), 0.0, *sorted(pairs)).cut(0.0, STEP)
    stay = [member for member in view.members if member not in cut.gone]
    assert stay
    for member in cut.gone:
        accusers = {other for other, subject in pairs if subject == member != other}
        assert accusers & {*stay} or 2 * len(accusers) > len(view.members) - 1
    if len(view.members) > 2:  # a single report cuts no member
        assert {*cut.gone} <= {m for m in view.members if sum(s == m and o != m for o, s in pairs) > 1}


@given(some_views, st.data())
def test_of_every_pair_that_cannot_talk_one_stays_or_neither_and_never_both(view: View, data: st.DataObject) -> None:
    pairs = data.draw(st.sets(st.tuples(st.sampled_from(view.members), st.sampled_from(view.members))))
    gone = said(reports(view), 0.0, *sorted(pairs), kind=ReportKind.REFUSED).cut(0.0, STEP).gone
    for one, other in pairs:
        assert one == other or one in gone or other in gone
    for member in gone:  # no member is cut without a report
        assert any(member in pair and pair[0] != pair[1] for pair in pairs)


@given(some_views, st.data())
def test_one_member_that_cannot_talk_to_any_goes_alone(view: View, data: st.DataObject) -> None:
    deaf = data.draw(st.sampled_from(view.members))
    pairs = [(deaf, other) for other in view.members if other != deaf]
    both_ways = [*pairs, *((other, deaf) for _, other in pairs)]
    heard = data.draw(st.sampled_from([pairs, both_ways]))
    gone = said(reports(view), 0.0, *heard, kind=ReportKind.REFUSED).cut(0.0, STEP).gone
    if len(view.members) > 2:
        assert gone == (deaf,)
    else:
        assert len(gone) == len(view.members) - 1
        assert all(is_quorum([member for member in view.members if member not in gone], view) for _ in gone)


def test_mutual_accusation_of_any_pair_cuts_the_greater_rank_at_all() -> None:
    for one, other in combinations(FIVE.members, 2):
        for pairs in (((one, other), (other, one)), ((other, one), (one, other))):
            assert said(reports(), 0.0, *pairs, kind=ReportKind.REFUSED).cut(0.0, STEP).gone == (other,)


@pytest.mark.parametrize("name", ["silent_s", "lease_s", "stable_s", "force_cut_s"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_times_are_positive_and_finite(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"need .*{name}.* positive and finite, .* got \(.*{value}.*\)"):
        reports(FIVE, **{name: value})


def test_silence_settles_before_a_bridge() -> None:
    with pytest.raises(ValueError, match=r"stable_s <= force_cut_s, got \(1.5, 1.5, 3.5, 2.25\)"):
        reports(FIVE, stable_s=3.5)


def test_who_hears_hardly_anybody_goes_though_some_of_its_reports_are_younger() -> None:
    new = reports(force_cut_s=2.5, lease_s=9.0)
    said(new, 0.0, (B, E))
    said(new, 0.4, (B, A), (B, C), (B, D))
    assert said(new, 2.4, (B, E)).cut(2.4, STEP) == NOBODY
    assert said(new, 2.5, (B, E)).cut(2.5, STEP).gone == (B,)
