"""The cost of `auto`, for generated samples: that of its choice, and its overhead."""

from collections.abc import Sequence

import numpy as np
import pytest

from p2p.benchmark.results.bootstrap import Floats
from p2p.benchmark.results.regret import Cost, cost_of

ROUNDS = 60
NOISE = 0.05
SIZE = 65536


def made(exact_s: float, *, seed: int, rounds: int = ROUNDS, noise: float = NOISE) -> Floats:
    return exact_s * np.exp(noise * np.random.default_rng(seed).standard_normal(rounds))


def judged(times_s: Floats, rans: str | Sequence[str], **named: Floats) -> Cost:
    taken = [rans] * len(times_s) if isinstance(rans, str) else rans
    return cost_of(SIZE, times_s, taken, named, num=400)


@pytest.mark.parametrize("seed", range(5))
def test_who_took_one_of_two_that_are_alike_gave_nothing_away(seed: int) -> None:
    ring, direct, auto = (made(1.0, seed=3 * seed + each) for each in range(3))
    found = judged(auto, "ring", ring=ring, direct=direct)
    assert found.choice.low == 0 <= found.choice.value < 0.03, "the other may look better by chance"
    assert found.overhead is not None and found.overhead.low < 0 < found.overhead.high
    assert found.took == {"ring": ROUNDS} and found.unnamed == ()


@pytest.mark.parametrize("seed", range(5))
def test_who_took_a_bad_one_is_found_out_and_asking_it_cost_nothing(seed: int) -> None:
    ring, direct, auto = made(1.3, seed=seed), made(1.0, seed=seed + 10), made(1.3, seed=seed + 20)
    found = judged(auto, "ring", ring=ring, direct=direct)
    assert 0.2 < found.choice.low < found.choice.value < found.choice.high < 0.4
    assert found.overhead is not None and found.overhead.low < 0 < found.overhead.high


def test_the_best_is_no_worse_than_itself_however_its_two_samples_fell() -> None:
    """The slowest rounds were those of `auto` by chance: that says nothing about its choice."""
    ring, unlucky = np.array([1.0, 1.1, 0.9] * 5), np.array([1.2, 1.3, 1.1] * 5)
    found = judged(unlucky, "ring", ring=ring, direct=np.full(15, 2.0))
    assert (found.choice.value, found.choice.low, found.choice.high) == (0.0, 0.0, 0.0)
    assert found.overhead is not None and found.overhead.value == pytest.approx(0.2, abs=0.03)


def test_several_that_were_taken_count_by_how_often_they_were() -> None:
    ring, direct = made(1.4, seed=0), made(1.0, seed=1)
    rans = ["direct", "direct", "direct", "ring"] * (ROUNDS // 4)
    auto = np.where(np.array(rans) == "ring", made(1.4, seed=2), made(1.0, seed=3))
    found = judged(auto, rans, ring=ring, direct=direct)
    assert found.took == {"direct": 45, "ring": 15}
    assert found.choice.value == pytest.approx(0.1, abs=0.02)
    assert 0.04 < found.choice.low < found.choice.value < found.choice.high < 0.17
    assert found.overhead is not None and found.overhead.low < 0 < found.overhead.high, "it ran what was right there"


def test_what_asking_costs_is_seen_through_what_meets_both_of_a_round() -> None:
    busy = np.random.default_rng(4).uniform(1, 4, ROUNDS)
    rans = ["ring", "direct"] * (ROUNDS // 2)
    auto = 1.05 * np.where(np.array(rans) == "ring", busy, 2 * busy)
    found = judged(auto, rans, ring=busy, direct=2 * busy)
    assert found.overhead is not None
    assert [found.overhead.low, found.overhead.value, found.overhead.high] == pytest.approx([0.05] * 3)
    assert 0.4 < found.choice.value < 0.6, "in every other round it took twice as long"


def test_what_nobody_was_asked_for_by_name_is_judged_by_the_rounds_of_auto_alone() -> None:
    found = judged(made(0.8, seed=0), "one-shot", ring=made(1.0, seed=1), direct=made(1.2, seed=2))
    assert found.overhead is None and found.unnamed == ("one-shot",)
    assert found.choice.high < 0 and found.choice.value == pytest.approx(-0.2, abs=0.03), "faster than all"


def test_what_was_taken_once_is_missing_from_some_resamples_and_spoils_none() -> None:
    rans = ["ring"] * 29 + ["one-shot"]
    auto = np.where(np.array(rans) == "ring", 1.0, 4.0)
    found = judged(auto, rans, ring=np.ones(30))
    assert found.choice.value == pytest.approx(0.1)
    assert found.choice.low == 0 and np.isfinite(found.choice.high)
    assert found.overhead is not None and found.overhead.high == 0
    lone = judged(auto, ["one-shot"] * 29 + ["ring"], ring=np.ones(30))
    assert lone.overhead is not None and lone.overhead.low == lone.overhead.high == 3, "of those that have that round"


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    """For a choice that is 10 % worse than the best, and an overhead of 2 %."""
    held = np.zeros(2)
    for seed in range(100):
        ring, direct, auto = (made(each, seed=seed + 1000 * place) for place, each in enumerate((1.1, 1.0, 1.122)))
        found = cost_of(SIZE, auto, ["ring"] * ROUNDS, {"ring": ring, "direct": direct}, seed=seed, num=200)
        assert found.overhead is not None
        held += found.choice.low <= 0.111 <= found.choice.high, found.overhead.low <= 0.02 <= found.overhead.high
    assert min(held) >= 85 and max(held) <= 100


def test_the_same_samples_give_the_same_intervals() -> None:
    first, second = (judged(made(1.0, seed=1), "ring", ring=made(1.1, seed=2)) for _ in range(2))
    assert first == second


def test_many_rounds_are_drawn_in_parts_alike() -> None:
    auto, ring = made(1.0, seed=0, rounds=3000), made(1.0, seed=1, rounds=3000)
    found = cost_of(SIZE, auto, ["ring"] * 3000, {"ring": ring, "direct": 1.2 * ring}, num=900)
    assert found.choice.value == 0 and found.overhead is not None and found.overhead.high - found.overhead.low < 0.02


def test_other_rounds_or_none_are_refused() -> None:
    with pytest.raises(ValueError, match="need the same rounds, and one at least"):
        judged(np.ones(3), "ring", ring=np.ones(2))
    with pytest.raises(ValueError, match="one at least"):
        judged(np.ones(0), "ring", ring=np.ones(0))
    with pytest.raises(ValueError, match="same rounds"):
        judged(np.ones(3), "ring")
