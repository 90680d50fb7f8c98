"""The pure parts of the benchmarks: sizes, percentiles, bandwidths, and what a kill cost."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.replay import Compared, check, compare, indices_of
from bench.replay_peer import GLOBAL_BATCH
from bench.trace import Cost, Kill, Trace, costs, summary
from p2p.benchmark.arrays import contribution, total, values_of
from p2p.benchmark.plan import ITEM_BYTES, Plan, format_size, parse_size, sizes_between, split_names
from p2p.benchmark.report import compare as compare_with
from p2p.benchmark.result import Measurement, Result, combine, percentile, ratios_to
from p2p.errors import LaunchError
from p2p.step.receipts import Contribution, Moment, Receipt

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


# Sizes and plans.


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
        ({"dtype": "bfloat16"}, "--dtype is float32, float64, float16, int32, int64, got 'bfloat16'"),
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


# Results.


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
    parts = [contribution(index, count, dtype) + np.dtype(dtype).type(shift) for index in range(num_peers)]
    exact = sum(part.astype(np.int64) for part in parts)
    assert parts[0].dtype == dtype
    assert np.array_equal(sum(parts), exact)
    assert np.array_equal(total(num_peers, count, dtype) + np.dtype(dtype).type(num_peers * shift), exact)
    assert all((a != b).all() for a, b in pairwise(parts))


# What a kill cost.


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


def trace(steps: range, *moments: tuple[float, str, str | int]) -> Trace:
    return Trace([receipt(step, "a", "b", "c") for step in steps], [Moment(*moment) for moment in moments])


KILL = Kill(time_s=1.0, victim="c", rank=2, survivors=("a", "b"))
TRACES = {
    "a": trace(
        range(6),
        *((0.1 * step, "committed", step) for step in range(1, 4)),
        (1.005, "committed", 4),  # by the old view, although the kill was before
        (1.010, "gone", "c"),
        (1.020, "installed", 7),
        (1.030, "committed", 5),
    ),
    "b": trace(
        range(6),
        *((0.1 * step, "committed", step) for step in range(1, 4)),
        (1.012, "gone", "c"),
        (1.025, "installed", 7),
        (1.026, "committed", 4),  # at the barrier
        (1.040, "committed", 5),
    ),
    "c": trace(range(4)),
}


def test_a_kill_is_over_when_all_have_committed_the_same_step_by_the_view_after_it() -> None:
    (found,) = costs([KILL], TRACES)
    assert found == Cost(
        peers=3,
        rank=2,
        detect_ms=10.0,
        agree_ms=25.0,
        resume_ms=-60.0,  # 40 after the kill, and a step takes 100
        step_ms=100.0,
        steps_lost=0,
        digests_equal=True,
    )


def test_a_hole_in_the_receipts_is_a_lost_step() -> None:
    holed = replace(TRACES["b"], receipts=[r for r in TRACES["b"].receipts if r.step != 2])
    assert costs([KILL], TRACES | {"b": holed})[0].steps_lost == 1


def test_a_step_that_only_the_victim_has_is_lost() -> None:
    assert costs([KILL], TRACES | {"c": trace(range(7))})[0].steps_lost == 1


def test_other_bits_are_noticed() -> None:
    other = [*TRACES["c"].receipts[:-1], receipt(3, "a", "b", "c", digest="other")]
    (found,) = costs([KILL], TRACES | {"c": replace(TRACES["c"], receipts=other)})
    assert not found.digests_equal
    assert summary([found])["digests_equal"] is False


# A replay.


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
