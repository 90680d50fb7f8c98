"""Roles of ranks in each collective, compared with its definition in plain numpy."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2p.benchmark.arrays import Array, contribution
from p2p.benchmark.command import COMMANDS, ROOTED
from p2p.benchmark.measuring.prediction import links_of, predicted_s, wire_bytes
from p2p.benchmark.plan import Plan, sizes_of_buckets, split_names, ways_of, whole_sizes
from p2p.benchmark.roles import BUSBW_FACTORS, CUT, OPERATIONS, Role, algorithms_of, has_root, what_of
from p2p.errors import LaunchError

PLAN = Plan(num_peers=3, algorithms=("auto",), baseline=None, sizes_bytes=(4092,), num_iters=1, num_warmup=0)


def roles(operation: str, num_peers: int, count: int, root: int = 0) -> list[Role]:
    return [Role(operation, rank, num_peers, root, count, "float32") for rank in range(num_peers)]


def results_of(operation: str, inputs: list[Array], root: int) -> list[Array]:
    """The result of each rank, by definition."""
    num, nothing = len(inputs), inputs[0][:0]
    total = np.sum(inputs, axis=0)
    match operation:
        case "all-reduce":
            return [total] * num
        case "reduce-scatter":
            return np.split(total, num)
        case "all-gather":
            return [np.concatenate(inputs)] * num
        case "broadcast":
            return [inputs[root]] * num
        case "reduce":
            return [total if rank == root else nothing for rank in range(num)]
        case "gather":
            return [np.concatenate(inputs) if rank == root else nothing for rank in range(num)]
        case "scatter":
            return np.split(inputs[root], num)
        case "all-to-all":
            return [np.concatenate([np.split(each, num)[rank] for each in inputs]) for rank in range(num)]
    return [nothing] * num


@pytest.mark.parametrize("operation", OPERATIONS)
@given(num_peers=st.integers(1, 6), part=st.integers(1, 60), shift=st.integers(0, 60), data=st.data())
@settings(deadline=None, max_examples=30)
def test_each_rank_is_right_with_what_the_words_say_and_wrong_with_anything_else(
    operation: str, num_peers: int, part: int, shift: int, data: st.DataObject
) -> None:
    root = data.draw(st.integers(0, num_peers - 1)) if has_root(operation) else 0
    every = roles(operation, num_peers, part * num_peers, root)
    results = results_of(operation, [role.input + np.float32(shift) for role in every], root)
    assert [role.num_wrong(result, shift) for role, result in zip(every, results, strict=True)] == [0] * num_peers
    for role, result in zip(every, results, strict=True):
        if result.size:
            wrong = result.copy()
            wrong[data.draw(st.integers(0, result.size - 1))] += 1
            assert role.num_wrong(wrong, shift) == 1
            assert role.num_wrong(result[1:], shift) == result.size
        assert role.num_wrong(np.append(result, np.float32(0)), shift) == result.size + 1


def test_what_a_rank_has_begins_anywhere() -> None:
    assert (contribution(2, 600, "float32", 37) == contribution(2, 637, "float32")[37:]).all()


def test_bandwidths_have_the_factors_of_nccl_tests() -> None:
    factors = {name: factor(4) for name, factor in BUSBW_FACTORS.items()}
    of_parts = dict.fromkeys(("reduce-scatter", "all-gather", "gather", "scatter", "all-to-all"), 0.75)
    assert factors == {"all-reduce": 1.5, **of_parts, "broadcast": 1.0, "reduce": 1.0, "barrier": 0.0}
    assert {*of_parts} == {*CUT}


def test_there_is_a_command_for_each_and_what_it_measures_by_default_exists() -> None:
    assert {*COMMANDS} == {*OPERATIONS}
    assert {*ROOTED} == {name for name in OPERATIONS if has_root(name)}
    for name, (_, algorithms) in COMMANDS.items():
        assert {*split_names(algorithms)} <= {*algorithms_of(name)}
        if name != "all-reduce":
            assert split_names(algorithms) == algorithms_of(name)
    assert [what_of(name, 2) for name in ("gather", "barrier")] == ["gather, root 2", "barrier"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"operation": "all-reduec"}, "there is no operation 'all-reduec'; did you mean all-reduce?"),
        ({"operation": "broadcast", "algorithms": ("rign",)}, "got 'rign'; did you mean ring?"),
        ({"operation": "all-gather", "algorithms": ("tree",)}, "--algos of all-gather names .* one-shot, ring, auto,"),
        ({"operation": "all-gather", "algorithms": ("ring@arena",)}, "got 'ring@arena'"),
        ({"operation": "gather", "algorithms": ("auto@early",)}, "got 'auto@early'"),
        ({"operation": "barrier", "algorithms": ("ring",)}, "--algos of barrier names algorithms of one-shot, auto"),
        ({"operation": "broadcast", "root": 3}, "--root is a rank, 0 to 2, got 3"),
        ({"operation": "scatter", "sizes_bytes": (4096,)}, r"a multiple of 12 bytes \(3 parts of float32\), got 4096"),
        ({"operation": "all-to-all", "num_peers": 17, "sizes_bytes": (68,)}, "for 16 peers at most: take --net"),
    ],
)
def test_what_an_operation_is_not_is_refused(change: dict[str, object], said: str) -> None:
    with pytest.raises(LaunchError, match=said):
        replace(PLAN, **change)  # type: ignore[arg-type]


def test_sizes_are_rounded_down_to_parts_of_whole_elements_where_there_are_parts() -> None:
    assert whole_sizes("all-gather", (4096, 4098, 8192), 3) == (4092, 8184)
    assert whole_sizes("all-gather", (4096,), 3, "float64") == (4080,)
    assert whole_sizes("broadcast", (4096,), 3) == (4096,)
    assert whole_sizes("barrier", (4096, 8192), 3) == (8,)
    with pytest.raises(LaunchError, match="gather cuts a size into 3 parts: at least 12 bytes, got 8"):
        whole_sizes("gather", (8, 4096), 3)
    assert sizes_of_buckets([4098, 12, 4097, 3]) == (4, 12, 4096)


def test_ways_are_those_that_an_operation_can_go() -> None:
    ways = ("", "arena", "early", "sockets", "tcp", "curve")
    assert ways_of("broadcast") == ways and ways_of("all-reduce") == (*ways, "adds")
    assert ways_of("all-gather") == tuple(way for way in ways if way != "arena")
    assert ways_of("reduce") == ways_of("barrier") == ("", "sockets", "tcp", "curve")


@pytest.mark.parametrize(
    ("operation", "algorithm", "sent", "num_hops"),
    [
        ("reduce-scatter", "ring", 2 * 1364, 2),
        ("all-gather", "one-shot", 2 * 1364, 1),
        ("broadcast", "one-shot", 2 * 4092, 1),
        ("broadcast", "ring", 4092, 2),
        ("reduce", "binary-tree", 4092, 1),
        ("gather", "direct", 1364, 1),
        ("scatter", "direct", 2 * 1364, 1),
        ("all-to-all", "direct", 2 * 1364, 1),
        ("barrier", "one-shot", 2 * 4092, 1),
    ],
)
def test_the_model_knows_each_of_them(operation: str, algorithm: str, sent: int, num_hops: int) -> None:
    plan = replace(PLAN, operation=operation, algorithms=(algorithm,), root=1 if has_root(operation) else 0)
    links = links_of("delay=10ms", 3, 0)
    assert wire_bytes(plan, algorithm, 4092) == sent
    price_s = predicted_s(plan, algorithm, algorithm, 4092, links)
    assert price_s is not None and num_hops + 1 <= price_s / 0.01 < num_hops + 1.2
