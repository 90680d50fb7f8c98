from hypothesis import given
from hypothesis import strategies as st

from p2p.data.ranges import Ranges, count, cut, difference, union


def positions(ranges: Ranges) -> list[int]:
    return [p for first, number in ranges for p in range(first, first + number)]


def of(chosen: set[int]) -> Ranges:
    return union((p, 1) for p in chosen)


sets = st.sets(st.integers(0, 30))


@given(sets)
def test_ranges_are_sorted_and_neither_overlap_nor_touch(chosen: set[int]) -> None:
    ranges = of(chosen)
    assert positions(ranges) == sorted(chosen) and count(ranges) == len(chosen)
    ends = [first + number for first, number in ranges]
    assert all(number > 0 for _, number in ranges)
    assert all(end < first for end, (first, _) in zip(ends, ranges[1:], strict=False))


@given(sets, sets)
def test_a_difference_is_that_of_the_sets(ours: set[int], theirs: set[int]) -> None:
    assert difference(of(ours), of(theirs)) == of(ours - theirs)


@given(sets, st.integers(0, 40), st.integers(0, 40))
def test_a_cut_is_a_slice_of_the_positions_in_order(chosen: set[int], start: int, number: int) -> None:
    assert positions(cut(of(chosen), start, number)) == sorted(chosen)[start : start + number]
