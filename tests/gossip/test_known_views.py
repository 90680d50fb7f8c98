"""The view that a JOIN names: R8 of PROTOCOL.md, that an incarnation has one seat at most."""

from hypothesis import example, given
from hypothesis import strategies as st

from gossip import View
from gossip.admission import Admission, AdmissionConfig
from gossip.known_views import MOST_LINEAGES, KnownViews
from gossip.messages import Head, Join
from gossip.progress import NOTHING_DONE

from .cores import SAME
from .members import LINEAGE, A, B, C, D, view_of


def head(number: int, absent_since: int = 0) -> Head:
    """HEAD of a member of view `number` that knows this view only, unless it names older ones."""
    return Head(NOTHING_DONE, b"", number, absent_since or number)


def joiner(number: int) -> KnownViews:
    """A joiner that knows this view from A."""
    known = KnownViews()
    assert known.hear(0.0, A, LINEAGE, head(number))
    return known


# What a JOIN names.


def test_who_has_heard_of_no_view_names_none() -> None:
    assert KnownViews().number_for(A) == 0


def test_the_first_view_that_is_heard_of_is_named() -> None:
    assert joiner(7).number_for(A) == 7


def test_a_view_is_named_to_the_members_of_its_lineage_that_have_answered() -> None:
    known = joiner(7)
    assert known.number_for(B) == 0
    assert not known.hear(0.0, B, LINEAGE, head(6))
    assert known.hear(0.0, C, b"another", head(2))
    assert [known.number_for(member) for member in (A, B, C, D)] == [7, 7, 2, 0]


def test_a_view_that_is_not_later_changes_nothing() -> None:
    known = joiner(7)
    assert not known.hear(0.0, A, LINEAGE, head(7))
    assert not known.hear(0.0, A, LINEAGE, head(3))
    assert known.number_for(A) == 7


def test_the_next_view_is_named_and_any_later_one_for_which_somebody_vouches() -> None:
    known = joiner(7)
    assert known.hear(0.0, A, LINEAGE, head(8))
    assert known.hear(0.0, A, LINEAGE, head(20, absent_since=9))
    assert known.number_for(A) == 20


def test_who_is_not_kept_is_asked_as_if_it_had_not_answered() -> None:
    known = joiner(7)
    known.keep([B])
    assert known.number_for(A) == 0
    assert not known.hear(0.0, A, LINEAGE, head(7))
    known.keep([A])
    assert known.number_for(A) == 7


def test_no_more_than_64_lineages_are_remembered() -> None:
    known = joiner(7)
    heard = [known.hear(0.0, B, b"%d" % i, head(3)) for i in range(MOST_LINEAGES)]
    assert heard == [True] * (MOST_LINEAGES - 1) + [False]
    assert (known.number_for(A), known.number_for(B)) == (7, 3)
    assert known.hear(0.0, A, LINEAGE, head(8))


# Doubt.


def test_who_has_not_answered_raises_no_doubt() -> None:
    assert KnownViews().in_doubt_s(9.0, A) == 0.0
    assert joiner(7).in_doubt_s(9.0, A) == 0.0


def test_two_views_later_there_may_have_been_a_seat_as_long_as_nobody_vouches_for_them() -> None:
    known = joiner(7)
    assert not known.hear(1.0, A, LINEAGE, head(9))
    assert not known.hear(2.0, B, LINEAGE, head(12, absent_since=10))
    assert [known.in_doubt_s(3.0, member) for member in (A, B, C)] == [2.0, 2.0, 0.0]
    assert known.number_for(B) == 7
    assert known.hear(3.0, C, LINEAGE, head(12, absent_since=8))
    assert known.in_doubt_s(4.0, A) == 0.0
    assert known.number_for(A) == 12


def test_doubt_concerns_one_lineage() -> None:
    known = joiner(7)
    known.hear(1.0, B, b"another", head(9))
    known.hear(1.0, A, LINEAGE, head(9))
    assert (known.in_doubt_s(3.0, A), known.in_doubt_s(3.0, B)) == (2.0, 0.0)


# Purpose

NUM_MEMBERS = 3
events = st.tuples(st.sampled_from(["decide", "install", "tell", "say", "hear"]), st.integers(0, 9))
HEARS_OF_VIEW_1 = [("tell", 0)]
UNHEARD_SEAT = [("decide", 0), ("decide", 0)]  # by view 2, until view 3


@given(st.lists(events, max_size=60))
@example([*HEARS_OF_VIEW_1, *UNHEARD_SEAT, ("install", 1), ("tell", 1), ("decide", 0)])
@example([*HEARS_OF_VIEW_1, ("decide", 0), ("install", 0), ("decide", 0), ("install", 0), ("tell", 0), ("decide", 0)])
@example([*HEARS_OF_VIEW_1, ("decide", 1), ("install", 0), *UNHEARD_SEAT, ("install", 0), ("tell", 0), ("decide", 0)])
@example([*HEARS_OF_VIEW_1, *UNHEARD_SEAT, ("install", 0), ("say", 0), ("hear", 9), ("decide", 0)])
@example([*HEARS_OF_VIEW_1, *UNHEARD_SEAT, ("decide", 0)])
@example([*UNHEARD_SEAT, ("install", 0), ("tell", 0), ("decide", 0)])
def test_r8_whatever_is_late_or_lost_a_joiner_has_one_seat_at_most(history: list[tuple[str, int]]) -> None:
    """D may get a seat whenever a JOIN that it ever sent counts; it loses the seat in the next view, unheard."""
    chain, known = [view_of(1, A)], KnownViews()
    members = [Admission(AdmissionConfig()) for _ in range(NUM_MEMBERS)]
    views: list[View | None] = [chain[0], None, None]
    members[0].install(chain[0])
    joins, heads = [0], [head(1)]
    for what, number in history:
        member = number % NUM_MEMBERS
        view = views[member]
        if what == "decide":
            had_seat = chain[-1].since(D) is not None
            is_seated = not had_seat and number % 2 == 0 and any(_counts(chain[-1], named) for named in joins)
            assert not is_seated or all(before.since(D) is None for before in chain)
            chain.append(view_of(len(chain) + 1, *([A, D] if is_seated else [A])))
        elif what == "install" and view != chain[-1]:
            views[member] = chain[-1]
            members[member].install(chain[-1])
        elif what in ("say", "tell") and view is not None and view.since(D) is None:  # late, or as it should
            named = joins[-1 if what == "tell" else number % len(joins)]
            heads.append(head(view.number, members[member].absent_since(D, named)))
        if what in ("hear", "tell"):
            known.hear(0.0, A, LINEAGE, heads[-1 if what == "tell" else number % len(heads)])
            joins.append(known.number_for(A))


def _counts(view: View, number: int) -> bool:
    new = Admission(AdmissionConfig())
    new.install(view)
    new.receive_join(0.0, D, Join(SAME, view_number=number))
    return bool(new.candidates(0.0, NOTHING_DONE))
