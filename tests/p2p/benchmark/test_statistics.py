"""Statistics of generated samples with known crossings, costs and regrets."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2p.benchmark.results.bootstrap import Floats, Interval, Medians, block_length, draw_rounds, interval, resample
from p2p.benchmark.results.crossings import Crossing, Pair, compare_pair, fit
from p2p.benchmark.results.regret import Cost
from p2p.benchmark.results.sentence import say, say_bytes, say_pair, say_regret

KIB = 1 << 10
SIZES = tuple(4 * KIB * 4**power for power in range(7))
NOISE = 0.05


def made(alpha_s: float, rate: float, *, seed: int, rounds: int = 40, noise: float = NOISE) -> list[Floats]:
    """Times of one contender: alpha + size / rate, with noise that is never below 0."""
    generator = np.random.default_rng(seed)
    return [(alpha_s + size / rate) * np.exp(noise * generator.standard_normal(rounds)) for size in SIZES]


def medians_of(**times_s: list[Floats]) -> Medians:
    return resample(SIZES, times_s, num=500)


# Resamples


def test_blocks_hold_neighbouring_rounds_and_the_last_is_followed_by_the_first() -> None:
    drawn = draw_rounds(25, np.random.default_rng(0), 200)
    assert drawn.shape == (200, 25)
    assert {*drawn.ravel()} == set(range(25))
    steps = (np.diff(drawn.reshape(200, 5, 5), axis=2) % 25).ravel()
    assert (steps == 1).all()


@given(st.integers(1, 2000))
def test_there_are_five_blocks_or_single_rounds(num_rounds: int) -> None:
    length = block_length(num_rounds)
    assert 1 <= length**2 <= max(1, num_rounds)
    assert length == 1 or num_rounds // length >= 5


def test_the_same_samples_give_the_same_intervals() -> None:
    first, second = (medians_of(a=made(0.1, 1e7, seed=1)) for _ in range(2))
    assert all(first.interval("a", place) == second.interval("a", place) for place in range(len(SIZES)))


def test_an_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    held = 0
    for seed in range(100):
        times = np.random.default_rng(seed).exponential(1.0, 60)
        found = resample([4], {"a": [times]}, seed=seed, num=300).interval("a", 0)
        held += found.low <= np.log(2) <= found.high
    assert 85 <= held <= 100


def test_what_meets_both_contenders_of_a_round_does_not_blur_their_ratio() -> None:
    busy = np.random.default_rng(3).uniform(1, 4, 40)
    found = resample([4], {"a": [1.1 * busy], "b": [busy]}, num=200).ratio("a", "b", 0)
    assert [found.low, found.high] == pytest.approx([1.1, 1.1])


def test_many_rounds_are_drawn_in_parts_alike() -> None:
    times = np.random.default_rng(0).uniform(1, 2, 5000)
    found = resample([4], {"a": [times]}, num=900)
    assert found.resampled["a"].shape == (900, 1)
    assert 1.4 < found.interval("a", 0).low < found.interval("a", 0).high < 1.6


def test_contenders_without_common_rounds_are_refused() -> None:
    with pytest.raises(ValueError, match="need the same rounds of 4 bytes"):
        resample([4], {"a": [np.ones(3)], "b": [np.ones(2)]})
    with pytest.raises(ValueError, match="one at least"):
        resample([4], {"a": [np.ones(0)]})


def test_an_interval_lies_between_percentiles() -> None:
    found = interval(7.0, np.arange(101.0), 0.9)
    assert [found.value, found.low, found.high] == pytest.approx([7.0, 5.0, 95.0])


# Crossings. The tree costs 60 ms and 20 MB/s, the ring 160 ms and 45 MB/s: they meet at 3.6 MB.

TREE, RING, SLOWER = (0.060, 20e6), (0.160, 45e6), (0.200, 15e6)
TRUTH = (RING[0] - TREE[0]) / (1 / TREE[1] - 1 / RING[1])


@pytest.mark.parametrize("seed", range(5))
def test_a_crossing_that_is_known_is_found(seed: int) -> None:
    pair = compare_pair(medians_of(ring=made(*RING, seed=seed), tree=made(*TREE, seed=seed + 100)), "ring", "tree")
    (crossing,) = pair.crossings
    assert (crossing.below, crossing.above) == ("tree", "ring")
    assert crossing.at_bytes.low < crossing.at_bytes.value < crossing.at_bytes.high < 2 * crossing.at_bytes.low
    assert crossing.at_bytes.value == pytest.approx(TRUTH, rel=0.2)
    assert pair.share > 0.95
    assert pair.shares[1] == pair.share


def test_the_order_of_the_two_does_not_matter() -> None:
    medians = medians_of(ring=made(*RING, seed=0), tree=made(*TREE, seed=1))
    (one,), (other,) = (compare_pair(medians, *names).crossings for names in (("ring", "tree"), ("tree", "ring")))
    assert (one.below, one.above) == (other.below, other.above)
    assert one.at_bytes.value == pytest.approx(other.at_bytes.value)


def test_who_is_slower_everywhere_crosses_nowhere() -> None:
    pair = compare_pair(medians_of(ring=made(*RING, seed=0), slow=made(*SLOWER, seed=1)), "ring", "slow")
    assert (pair.crossings, pair.shares) == ((), {0: 1.0})
    assert say_pair(pair, SIZES) == "ring is faster than slow at every size"


def test_two_that_cross_three_times_do_so_in_turns() -> None:
    flat = [np.full(20, 1.0) for _ in SIZES]
    wavy = [np.full(20, value) for value in (0.5, 0.5, 2.0, 2.0, 0.5, 0.5, 2.0)]
    pair = compare_pair(medians_of(flat=flat, wavy=wavy), "flat", "wavy")
    assert [(each.below, each.above) for each in pair.crossings] == [
        ("wavy", "flat"),
        ("flat", "wavy"),
        ("wavy", "flat"),
    ]
    assert [each.at_bytes.value for each in pair.crossings] == pytest.approx([32 * KIB, 512 * KIB, 8 << 20])
    assert pair.shares == {3: 1.0}
    assert say_pair(pair, SIZES) == (
        "wavy is faster than flat below 32 KiB (95 %: 32 to 32 KiB), flat above, wavy again above 512 KiB "
        "(95 %: 512 to 512 KiB), flat again above 8 MiB (95 %: 8 to 8 MiB)"
    )


def test_what_only_some_resamples_see_is_said_to_be_so() -> None:
    """Two equal contenders: chance decides how often they cross."""
    pair = compare_pair(medians_of(a=made(*RING, seed=5), b=made(*RING, seed=6)), "a", "b")
    assert sum(pair.shares.values()) == pytest.approx(1)
    assert pair.share < 0.5
    assert say_pair(pair, SIZES) == "where a and b change places cannot be told: measure for longer"
    likely = replace(crossing(643, 610, 842), share=0.8)
    assert "ring above (so in 80 % of the resamples only: measure for longer)" in say_pair(likely, SIZES)


def test_a_crossing_that_no_resample_sees_may_be_anywhere_among_the_sizes_and_is_a_number() -> None:
    medians = resample([4, 64], {"a": [np.array([1.0]), np.array([3.0])], "b": [np.array([2.0]), np.array([2.0])]})
    other = {"a": medians.resampled["b"], "b": medians.resampled["a"]}
    (crossing_,) = compare_pair(replace(medians, resampled=other), "a", "b").crossings
    assert 4 < crossing_.at_bytes.value < 64
    assert (crossing_.at_bytes.low, crossing_.at_bytes.high) == (4, 64)


def test_a_single_size_has_no_crossing() -> None:
    medians = resample([4], {"a": [np.array([1.0, 2.0])], "b": [np.array([1.5, 1.5])]}, num=50)
    pair = compare_pair(medians, "a", "b")
    assert pair.crossings == ()
    assert say_pair(pair, [4]) == "a and b cannot be told apart at any size"
    assert fit(medians, "a") is None


# Costs


@pytest.mark.parametrize(("alpha_s", "rate"), [RING, TREE, (1e-4, 1e9), (1e-9, 1e6)])
def test_alpha_and_beta_are_found(alpha_s: float, rate: float) -> None:
    found = fit(medians_of(a=made(alpha_s, rate, seed=2, noise=0.01)), "a")
    assert found is not None
    assert found.rate_bytes_per_s.value == pytest.approx(rate, rel=0.05)
    assert found.alpha_s.value == pytest.approx(alpha_s, rel=0.05, abs=1e-5)
    assert found.rate_bytes_per_s.low <= found.rate_bytes_per_s.value <= found.rate_bytes_per_s.high
    assert found.worst_error < 0.05
    assert found.to_json()["algorithm"] == "a"


# Sentences


@pytest.mark.parametrize(
    ("size_bytes", "said"),
    [(4, "4 B"), (643 * KIB, "643 KiB"), (1023 * KIB, "1023 KiB"), (1536 * KIB, "1.5 MiB"), (5 << 30, "5 GiB")],
)
def test_sizes_are_said_in_three_digits_or_so(size_bytes: float, said: str) -> None:
    assert say_bytes(size_bytes) == said


def crossing(value: float, low: float, high: float) -> Pair:
    at_bytes = Interval(value * KIB, low * KIB, high * KIB)
    one = Interval(1.0, 0.9, 1.1)
    found = Crossing(at_bytes, "tree", "ring")
    return Pair("ring", "tree", (found,), 0.97, {1: 0.97, 2: 0.03}, (one,) * len(SIZES))


def cost(choice: Interval, overhead: Interval | None, *unnamed: str) -> Cost:
    return Cost({"tree": 9}, unnamed, choice, overhead)


def test_the_sentence_is_that_of_the_issue() -> None:
    none = Pair("ring", "direct", (), 1.0, {0: 1.0}, (*[Interval(2.0, 1.5, 2.5)] * 6, Interval(1.1, 0.9, 1.3)))
    chance, little = Interval(0.002, -0.02, 0.03), Interval(-0.01, -0.02, 0.0)
    regrets = {"auto": [cost(little, chance), cost(Interval(0.034, 0.0, 0.1), chance)]}
    assert say([crossing(643, 610, 842), none], regrets, SIZES) == (
        "tree is faster than ring below 643 KiB (95 %: 610 to 842 KiB), ring above; direct is faster than ring at "
        "every size, but not for certain (95 %) at 16 MiB; auto cost -1 to 3 % more than the best, by what it took "
        "(95 % where it is most: 0 to 10 %), and as much as the same by name, as far as can be told (95 % where it is "
        "most: -2 to 3 %)."
    )
    assert say([], {}, SIZES) == ""
    assert "900 KiB to 1.5 MiB" in say_pair(crossing(1000, 900, 1536), SIZES)


def test_what_auto_took_and_what_asking_it_cost_are_said_apart() -> None:
    right, late = Interval(0.0, 0.0, 0.0), Interval(0.05, 0.04, 0.06)
    assert say_regret("auto", [cost(right, Interval(0.01, 0.005, 0.02)), cost(right, late)]) == (
        "auto cost 0 % more than the best, by what it took (95 % where it is most: 0 to 0 %), and 1 to 5 % more than "
        "the same by name (95 % where it is most: 4 to 6 %)"
    )
    assert say_regret("auto", [cost(right, None, "one-shot"), cost(right, None, "one-shot"), cost(right, late)]) == (
        "auto cost 0 % more than the best, by what it took (95 % where it is most: 0 to 0 %), and 5 % more than the "
        "same by name (95 % where it is most: 4 to 6 %); it took one-shot at 2 of 3 sizes, not measured by name"
    )
