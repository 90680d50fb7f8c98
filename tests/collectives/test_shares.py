"""What each rank owns of a bucket in `direct`, where lines are not alike."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives import all_reduce_schedule, verify
from collectives.algorithms import with_shares
from collectives.direct import PARTS, direct_shares
from collectives.program_verification import verify_programs
from collectives.programs import all_reduce_program

RATES = st.lists(st.integers(1, 1000), min_size=3, max_size=9)


def carried(rates: list[int], shares: Sequence[float]) -> float:
    """Until the last line has carried what its rank sends, of a bucket of 1."""
    n, total = len(rates), sum(shares)
    return max((1 + share / total * (n - 2)) / rate for rate, share in zip(rates, shares, strict=True))


@given(RATES, st.randoms(use_true_random=False))
def test_no_other_shares_end_sooner_than_those_that_follow_from_rates(rates: list[int], numbers: random.Random) -> None:
    shares = direct_shares(rates)
    assert sum(shares) == PARTS and min(shares) >= 0
    slack = 1 + (len(rates) - 2) * len(rates) / PARTS  # shares are rounded to parts
    assert carried(rates, shares) <= slack * carried(rates, [1] * len(rates))
    assert carried(rates, shares) <= slack * carried(rates, [numbers.random() + 1e-9 for _ in rates])
    turned = direct_shares(rates[::-1])
    assert carried(rates[::-1], turned) <= slack * carried(rates, shares), "whoever is which rank"


def test_lines_that_are_alike_have_even_shares_and_a_slow_one_owns_nothing() -> None:
    assert direct_shares([7] * 4) == (64,) * 4
    assert direct_shares([50, 100, 100, 200]) == (0, 51, 51, 154)
    assert direct_shares([10, 1]) == direct_shares([1, 1]) == (1, 1), "each carries the whole, whoever owns it"


def test_a_name_may_say_the_shares() -> None:
    name = with_shares((0, 1, 3))
    verify(lambda rank, n: all_reduce_schedule(name, rank, n), 3)
    assert all_reduce_schedule(name, 1, 3).chunks == (0, 1, 3)
    programs = [all_reduce_program(name, rank, 3, 1000, 4) for rank in range(3)]
    verify_programs(programs, [all_reduce_schedule(name, rank, 3) for rank in range(3)])
    for wrong in (with_shares((1, 1)), with_shares((0, 0, 0)), "direct:1,x,2", "direct:"):
        with pytest.raises(ValueError, match="does not say what each of 3 ranks owns"):
            all_reduce_schedule(wrong, 0, 3)
