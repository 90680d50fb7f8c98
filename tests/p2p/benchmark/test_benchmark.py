"""The pure parts of the benchmarks: sizes, percentiles, bandwidths, and costs of kills."""

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.deaths import Cost, kills, summary_of_kills
from bench.replay import Compared, check, compare, indices_of
from bench.replay_peer import GLOBAL_BATCH
from p2p.benchmark.arrays import as_type, contribution, element_type, numbers, put_shifted, total, values_of
from p2p.benchmark.plan import ITEM_BYTES, Plan, format_size, parse_size, sizes_between, split_names
from p2p.benchmark.results.report import compare as compare_with
from p2p.benchmark.results.result import Measurement, Result, combine, percentile, ratios_to
from p2p.errors import LaunchError
from p2p.experiment.evaluation.report import evaluate
from p2p.step.receipts import Contribution, Receipt
from tests.p2p.experiment.runs import B, C, killed

PLAN = Plan(
    num_peers=2, algorithms=("ring", "auto"), baseline="gloo", sizes_bytes=(4096, 8192), num_iters=3, num_warmup=1
)


def measurement(algorithm: str, *times_s: float, size_bytes: int = 4096, wrong: int = 0) -> Measurement:
    cpu_times_s = [time_s / 2 for time_s in times_s]
    return Measurement(
        algorithm=algorithm,
        ran=algorithm,
        size_bytes=size_bytes,
        wrong=wrong,
        times_s=list(times_s),
        cpu_times_s=cpu_times_s,
    )


def result(algorithm: str, time_s: float, *, world_size: int = 2, size_bytes: int = 4096) -> Result:
    (found,) = combine([[measurement(algorithm, time_s, size_bytes=size_bytes)] for _ in range(world_size)])
    return found


# Sizes and plans


@pytest.mark.parametrize(("text", "size_bytes"), [("4", 4), ("4K", 4096), ("1M", 1 << 20), ("2g", 2 << 30)])
def test_a_size_is_a_number_with_a_unit_of_1024(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "0", "6", "K", "-4K", "4.5K", "4 K B", "1T", "4KB"])
def test_what_is_no_size_is_named(text: str) -> None:
    with pytest.raises(LaunchError, match="a size is"):
        parse_size(text)


@given(st.integers(1, 1 << 36).map(lambda count: 4 * count))
def test_a_size_can_be_written_and_read(size_bytes: int) -> None:
    assert parse_size(format_size(size_bytes)) == size_bytes


def test_sizes_grow_by_the_factor_up_to_the_last() -> None:
    assert sizes_between(4096, 20000, 2) == (4096, 8192, 16384)
    assert sizes_between(4096, 4096, 10) == (4096,)


def test_sizes_that_do_not_grow_are_refused() -> None:
    with pytest.raises(LaunchError, match="at least 2"):
        sizes_between(4096, 8192, 1)
    with pytest.raises(LaunchError, match="must not exceed"):
        sizes_between(8192, 4096, 2)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_peers": 0}, "-n is the number of peers"),
        ({"algorithms": ("ring", "star")}, "got 'star'"),
        ({"algorithms": ("ring", "ring")}, "once"),
        ({"baseline": "mpi"}, "--baseline is gloo, got 'mpi'"),
        ({"num_iters": 0}, "--iters"),
        ({"num_iters": None}, "a number of rounds is needed, or a time"),
        ({"dtype": "float8"}, "--dtype is float32, float64, float16, bfloat16, int32, int64, got 'float8'"),
        ({"dtype": "float64", "sizes_bytes": (4096, 8196)}, "a multiple of 8 bytes .float64., got 8196"),
        ({"net": "delay=1ms", "algorithms": ("ring", "auto@tcp")}, "auto@tcp cannot be"),
        ({"num_warmup": -1}, "--warmup"),
    ],
)
def test_a_plan_that_cannot_be_carried_out_is_refused(change: dict[str, object], said: str) -> None:
    with pytest.raises(LaunchError, match=said):
        replace(PLAN, **change)  # type: ignore[arg-type]


def test_a_plan_reaches_the_workers_as_it_is() -> None:
    assert Plan.from_json(PLAN.to_json()) == PLAN
    assert PLAN.contenders == ("ring", "auto", "gloo")
    assert split_names("ring, auto") == PLAN.algorithms
    with pytest.raises(TypeError, match=r"whole numbers, got 1\.5"):
        Plan.from_json(json.dumps(json.loads(PLAN.to_json()) | {"num_warmup": 1.5}))


# Results


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0, 100))
def test_a_percentile_is_numpys(values: list[float], percent: float) -> None:
    assert percentile(values, percent) == pytest.approx(np.percentile(values, percent), rel=1e-9, abs=1e-9)


def test_bandwidths_are_those_of_nccl_tests() -> None:
    four = result("ring", 0.001, world_size=4, size_bytes=1_000_000)
    assert four.algbw_gb_per_s == pytest.approx(1.0)
    assert four.busbw_gb_per_s == pytest.approx(1.5)
    assert result("ring", 0.001, world_size=1).busbw_gb_per_s == 0.0


def test_an_iteration_takes_as_long_as_its_slowest_rank() -> None:
    ranks = [
        [measurement("ring", 1.0, 4.0, 2.0, wrong=1), measurement("gloo", 1.0)],
        [measurement("ring", 3.0, 1.0, 2.5, wrong=2), measurement("gloo", 2.0)],
    ]
    ring, gloo = combine(ranks)
    assert (ring.times_s, ring.wrong, ring.world_size) == ((3.0, 4.0, 2.5), 3, 2)
    assert (ring.time_p50_s, gloo.times_s) == (3.0, (2.0,))
    assert (ring.cpu_time_p50_s, gloo.cpu_time_p50_s) == (1.125, 0.75)


def test_a_result_is_written_in_microseconds_with_each_sample_of_each_rank() -> None:
    written = result("auto", 0.002).to_json()
    assert (written["time_p50_us"], written["cpu_time_p50_us"]) == (2000.0, 1000.0)
    assert (written["times_us"], written["cpu_times_us"]) == ([[2000.0], [2000.0]], [[1000.0], [1000.0]])
    assert (written["algbw_gb_per_s"], written["iters"], written["time_cv"]) == (0.002048, 1, 0.0)


def test_who_was_last_and_whose_bits_differ_is_known() -> None:
    ranks = [[replace(measurement("ring", 1.0, 4.0, 2.0), digest="a")], [measurement("ring", 3.0, 1.0, 2.5)]]
    (ring,) = combine(ranks)
    assert (ring.last_peers, ring.hash_equal) == ({1: 2, 0: 1}, False)
    assert combine([ranks[0], ranks[0]])[0].hash_equal is True
    assert combine([ranks[1], ranks[1]])[0].hash_equal is None
    assert ring.cv == pytest.approx(0.1969, abs=1e-4)
    assert ring.predicted_to_measured is None
    assert replace(ring, predicted_s=1.5).predicted_to_measured == 0.5


def test_the_best_of_ours_is_compared_with_the_baseline() -> None:
    results = [
        *(result(name, time_s) for name, time_s in (("ring", 3.0), ("tree", 1.0), ("gloo", 2.0))),
        *(result(name, time_s, size_bytes=8192) for name, time_s in (("ring", 6.0), ("tree", 5.0), ("gloo", 4.0))),
    ]
    assert ratios_to("gloo", results)["ring", 4096] == 1.5
    assert compare_with(results, "gloo").endswith("slower at 1 of 2 sizes; worst ratio 1.25, at 8K")


@given(st.integers(1, 64), st.integers(1, 2000), st.sampled_from(sorted(ITEM_BYTES)))
def test_sums_of_what_the_workers_add_are_exact_in_each_type(num_peers: int, count: int, dtype: str) -> None:
    shift = values_of(dtype).shifts - 1
    parts = [contribution(index, count, dtype) for index in range(num_peers)]
    for part in parts:
        put_shifted(part, shift, part)
    exact = np.sum([numbers(part) for part in parts], axis=0).astype(np.int64)
    assert parts[0].dtype == element_type(dtype)
    assert np.array_equal(numbers(as_type(exact, dtype)), exact)
    expected = total(num_peers, count, dtype)
    put_shifted(expected, num_peers * shift, expected)
    assert np.array_equal(numbers(expected), exact)
    assert all((a != b).all() for a, b in pairwise(parts))


# Costs of kills


def receipt(step: int, *peer_ids: str, digest: str = "d", share: int = 1) -> Receipt:
    contributions = tuple(
        Contribution(peer_id, 1, ((i * share, share),), share, share) for i, peer_id in enumerate(peer_ids)
    )
    return Receipt(
        lineage="l",
        view_number=1,
        step=step,
        contributions=contributions,
        algorithms=("ring",),
        digest=digest,
        state_digest="s",
    )


def test_a_kill_is_counted_from_what_an_experiment_has_found_less_a_median_step() -> None:
    (found,) = kills(evaluate(killed()))
    assert found == Cost(
        peers=3,
        rank=0,
        detect_ms=5.0,
        agree_ms=15.0,
        resume_ms=-25.0,  # 25 after the kill, and a step takes 50
        step_ms=50.0,
        steps_lost=0,
        digests_equal=True,
    )


def test_what_a_kill_has_lost_is_said_of_that_kill() -> None:
    run = killed()
    tracks = dict(run.tracks)
    tracks[B] = replace(tracks[B], receipts=[each for each in tracks[B].receipts if each.step != 3])
    other = [replace(each, digest="other") if each.step == 3 else each for each in tracks[C].receipts]
    (holed,) = kills(evaluate(replace(run, tracks=tracks)))
    (unequal,) = kills(evaluate(replace(run, tracks={**run.tracks, C: replace(tracks[C], receipts=other)})))
    assert (holed.steps_lost, holed.digests_equal) == (1, True)
    assert (unequal.steps_lost, unequal.digests_equal) == (0, False)
    assert not summary_of_kills([holed])["is_good"] and not summary_of_kills([unequal])["is_good"]


# Replay


def test_losses_are_weighted_by_samples_and_who_does_not_count_is_left_out() -> None:
    agreed = replace(
        receipt(3),
        contributions=(
            Contribution("a", 1, ((0, 3),), 3, 3),
            Contribution("b", 1, ((3, 1),), 1, 1),
            Contribution("c", 1, (), 0, 0),
        ),
    )
    losses = {(3, "a"): (1.0, 3), (3, "b"): (5.0, 1), (3, "c"): (99.0, 0)}
    assert compare(agreed, losses, replayed_loss=2.0) == Compared(3, 3, 2.0, 2.0)


def test_each_sample_is_replayed_once_and_a_difference_is_a_problem() -> None:
    share = GLOBAL_BATCH // 2
    receipts = [
        replace(
            receipt(step),
            contributions=(
                Contribution("a", 1, ((first, share),), share, share),
                Contribution("b", 1, ((first + share, share),), share, share),
            ),
        )
        for step, first in enumerate(range(0, 5 * GLOBAL_BATCH, GLOBAL_BATCH))
    ]
    counted = indices_of(receipts, num_steps=5)
    assert sorted(index for indices in counted for index in indices) == list(range(5 * GLOBAL_BATCH))
    good, bad = Compared(1, 2, 1.0005, 1.0), Compared(1, 2, 1.002, 1.0)
    assert check([good], counted, num_steps=5, num_left=2) == []
    assert len(check([bad], counted, num_steps=5, num_left=2)) == 1
    assert len(check([good], counted[1:], num_steps=5, num_left=2)) == 1
    assert len(check([good], counted, num_steps=5, num_left=3)) == 1
    assert len(check([Compared(1, 2, float("nan"), 1.0)], counted, num_steps=5, num_left=2)) == 1
