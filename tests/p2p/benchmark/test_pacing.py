"""Pacing: the next size, and the end of a run."""

from dataclasses import replace

import numpy as np
import pytest

from p2p.benchmark.measuring.pacing import FEW_ROUNDS, Batch, Pacer
from p2p.benchmark.measuring.worker import turns
from p2p.benchmark.plan import DEFAULT_ITERS, UNTIL_DURATION_S, Plan, rounds_wanted
from p2p.errors import LabError, LaunchError

SIZES = tuple(4096 * 4**power for power in range(6))
PLAN = Plan(num_peers=2, algorithms=("ring", "tree"), baseline=None, sizes_bytes=SIZES, num_iters=7, num_warmup=2)
TIMED = replace(PLAN, num_iters=None, duration_s=20.0)
RING, TREE = (0.16, 45e6), (0.06, 3e6)


def run(plan: Plan, *, noise: float = 0.05) -> tuple[list[Batch], float]:
    """All batches of a simulated run whose sums take the times of `RING` and `TREE`, and its duration."""
    generator, pacer, found, elapsed_s = np.random.default_rng(1), Pacer(plan), list[Batch](), 0.0
    while (batch := pacer.next(elapsed_s)) is not None:
        found.append(batch)
        size = plan.sizes_bytes[batch.size_index]
        exact = np.array([[alpha_s + size / rate] for alpha_s, rate in (RING, TREE)])
        times_s = exact * np.exp(noise * generator.standard_normal((2, batch.num_rounds)))
        elapsed_s += float(times_s.sum())
        pacer.take(batch.size_index, times_s)
    return found, elapsed_s


def num_rounds(batches: list[Batch]) -> list[int]:
    return [sum(each.num_rounds for each in batches if each.size_index == place) for place in range(len(SIZES))]


def test_without_a_time_each_size_has_its_rounds_spread_over_the_run() -> None:
    found, _ = run(PLAN)
    places = range(len(SIZES))
    assert found == [*(Batch(place, 2, FEW_ROUNDS) for place in places), *(Batch(place, 0, 2) for place in places)]
    assert run(replace(PLAN, num_iters=3))[0] == [Batch(place, 2, 3) for place in places]


def test_with_a_time_each_size_has_some_and_then_as_much_time_as_the_others() -> None:
    found, elapsed_s = run(TIMED)
    assert [(each.size_index, each.num_rounds) for each in found[: len(SIZES)]] == [
        (n, FEW_ROUNDS) for n in range(len(SIZES))
    ]
    assert all(each.num_warmup == 0 for each in found[len(SIZES) :])
    counts = num_rounds(found)
    assert counts[0] > counts[-1] >= FEW_ROUNDS
    assert 19 < elapsed_s < 21


def test_a_time_that_is_too_short_leaves_the_first_rounds() -> None:
    found, _ = run(replace(TIMED, duration_s=0.5))
    assert num_rounds(found) == [FEW_ROUNDS] * len(SIZES)


def test_rounds_that_were_asked_for_are_the_most_there_are() -> None:
    found, elapsed_s = run(replace(TIMED, num_iters=8, duration_s=1000.0))
    assert num_rounds(found) == [8] * len(SIZES)
    assert elapsed_s < 200


def test_until_the_crossing_is_known_only_sizes_around_it_go_on() -> None:
    found, elapsed_s = run(replace(TIMED, until=0.10, duration_s=1000.0))
    counts = num_rounds(found)
    crossing = (RING[0] - TREE[0]) / (1 / TREE[1] - 1 / RING[1])
    around = [place for place, size in enumerate(SIZES) if size / 4 < crossing < size * 4]
    assert {place for place, count in enumerate(counts) if count > 2 * FEW_ROUNDS} == set(around)
    assert elapsed_s < 900


def test_until_is_over_with_the_time() -> None:
    _, elapsed_s = run(replace(TIMED, until=0.001))
    assert 15 < elapsed_s <= 20.5


def test_two_that_do_not_cross_are_measured_no_longer() -> None:
    found, _ = run(replace(TIMED, until=0.05, sizes_bytes=SIZES[:3]))
    assert num_rounds(found)[:3] == [FEW_ROUNDS] * 3


@pytest.mark.parametrize("num_warmup", [0, 1, 2])
def test_who_leads_takes_turns_over_all_rounds_of_a_size_and_over_batches(num_warmup: int) -> None:
    batches = [Batch(0, num_warmup if not number else 0, FEW_ROUNDS) for number in range(4)]
    taken = [[*turns(batch, 2, FEW_ROUNDS * number)] for number, batch in enumerate(batches)]
    leaders = [[place for is_timed, place in each if is_timed][::2] for each in taken]
    assert [place for each in leaders for place in each] == [0, 1] * (2 * FEW_ROUNDS)
    assert [each[0] for each in leaders] == [0, 1, 0, 1]
    assert [len(each) for each in taken] == [2 * (num_warmup + FEW_ROUNDS), *[2 * FEW_ROUNDS] * 3]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ((None, None, None), (DEFAULT_ITERS, None, None)),
        ((9, None, None), (9, None, None)),
        ((None, 5.0, None), (None, 5.0, None)),
        ((9, 5.0, None), (9, 5.0, None)),
        ((None, None, "5%"), (None, UNTIL_DURATION_S, 0.05)),
        ((9, 60.0, "0.2"), (9, 60.0, 0.2)),
    ],
)
def test_options_say_rounds_or_time(
    given: tuple[int | None, float | None, str | None], wanted: tuple[int | None, float | None, float | None]
) -> None:
    assert rounds_wanted(*given) == wanted


def test_what_cannot_be_waited_for_is_refused() -> None:
    with pytest.raises(LabError, match="--until=narrow is not a share"):
        rounds_wanted(None, None, "narrow")
    for change in ({"until": 0.0}, {"until": 0.1, "algorithms": ("ring",)}, {"until": 0.1, "sizes_bytes": (4096,)}):
        with pytest.raises(LaunchError, match="two algorithms, and two sizes"):
            replace(TIMED, **change)
    with pytest.raises(LaunchError, match="--duration is a number of seconds above 0, got 0"):
        replace(TIMED, duration_s=0.0)
