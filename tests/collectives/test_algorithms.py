import math
from collections import Counter

import pytest

from collectives import (
    ALGORITHMS,
    Kind,
    Medium,
    Transfer,
    all_reduce_schedule,
    choose_algorithm,
    one_shot_all_gather,
    one_shot_all_reduce,
    ring_all_reduce,
    tree_all_reduce,
)

WORLD_SIZES = range(1, 34)


def share_sent(algorithm: str, rank: int, world_size: int) -> float:
    """What a rank sends, in buckets."""
    schedule = all_reduce_schedule(algorithm, rank, world_size)
    weights = [schedule.chunks[each.chunk] for each in schedule.transfers if each.kind is Kind.SEND]
    return sum(weights) / sum(schedule.chunks)


def children(rank: int, world_size: int, tree: int) -> list[int]:
    transfers = tree_all_reduce(rank, world_size).transfers
    return [each.peer for each in transfers if each.kind is Kind.REDUCE and each.chunk == tree]


def test_a_ring_of_two_in_full() -> None:
    assert ring_all_reduce(0, 2).transfers == (
        Transfer(Kind.SEND, peer=1, chunk=0),
        Transfer(Kind.REDUCE, peer=1, chunk=1),
        Transfer(Kind.SEND, peer=1, chunk=1, after=(1,)),
        Transfer(Kind.RECV, peer=1, chunk=0),
    )


def test_one_shot_starts_with_the_next_rank_and_adds_from_rank_0() -> None:
    assert one_shot_all_reduce(1, 3).transfers == (
        Transfer(Kind.SEND, peer=2, chunk=0),
        Transfer(Kind.SEND, peer=0, chunk=0),
        Transfer(Kind.REDUCE, peer=0, chunk=0),
        Transfer(Kind.REDUCE, peer=1, chunk=0),
        Transfer(Kind.REDUCE, peer=2, chunk=0),
    )


@pytest.mark.parametrize("algorithm", ["ring", "direct"])
def test_ring_and_direct_send_the_fewest_bytes_possible(algorithm: str) -> None:
    for n in WORLD_SIZES:
        assert all(share_sent(algorithm, rank, n) == pytest.approx(2 * (n - 1) / n) for rank in range(n))


def test_no_rank_of_the_trees_sends_more_than_two_buckets() -> None:
    for n in WORLD_SIZES:
        assert all(share_sent("tree", rank, n) <= 2 for rank in range(n))


def test_each_rank_is_an_inner_node_of_one_tree_at_most() -> None:
    for n in WORLD_SIZES:
        assert not any(children(rank, n, tree=0) and children(rank, n, tree=1) for rank in range(n))


def test_the_trees_are_binary_and_of_logarithmic_depth() -> None:
    for n in WORLD_SIZES:
        for tree in (0, 1):
            below = {rank: children(rank, n, tree) for rank in range(n)}
            assert max(map(len, below.values())) <= 2
            (root,) = set(range(n)) - {child for some in below.values() for child in some}
            level, depth = [root], 0
            while level := [child for rank in level for child in below[rank]]:
                depth += 1
            assert depth <= math.log2(n) + 1


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_alone_there_is_nobody_to_talk_to(algorithm: str) -> None:
    assert all(transfer.peer == 0 for transfer in all_reduce_schedule(algorithm, 0, 1).transfers)
    assert share_sent(algorithm, 0, 1) == 0


def test_a_gather_sends_the_own_chunk_to_all() -> None:
    sent = Counter(each.chunk for each in one_shot_all_gather(2, 5).transfers if each.kind is Kind.SEND)
    assert sent == {2: 4}


def test_a_schedule_is_built_once() -> None:
    assert all_reduce_schedule("ring", 1, 3) is all_reduce_schedule("ring", 1, 3)


def test_an_unknown_algorithm_is_answered_with_the_known_ones() -> None:
    with pytest.raises(
        ValueError,
        match="'butterfly', choose from binary-tree, direct, halving-doubling, hierarchical, one-shot, ring, tree",
    ):
        all_reduce_schedule("butterfly", 0, 2)


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_rank_outside_the_world_is_refused(rank: int) -> None:
    with pytest.raises(ValueError, match=r"not in range\(2\)"):
        all_reduce_schedule("ring", rank, 2)


@pytest.mark.parametrize(
    ("size_bytes", "world_size", "algorithm"),
    [
        (0, 1, "one-shot"),
        (256 << 10, 4, "one-shot"),
        ((256 << 10) + 1, 4, "direct"),
        (256 << 10, 5, "direct"),
        (8 << 10, 64, "one-shot"),
    ],
)
def test_small_buckets_go_in_one_shot(size_bytes: int, world_size: int, algorithm: str) -> None:
    assert choose_algorithm(size_bytes, world_size) == algorithm


@pytest.mark.parametrize(
    ("size_bytes", "medium", "algorithm"),
    [
        (1 << 20, Medium.LAN, "one-shot"),
        (1 << 20, Medium.WAN, "one-shot"),
        ((1 << 20) + 1, Medium.LAN, "direct"),
        (1 << 20, Medium.MEMORY, "one-shot"),
        ((1 << 20) + 1, Medium.MEMORY, "direct"),
    ],
)
def test_two_ranks_take_one_shot_for_longer(size_bytes: int, medium: Medium, algorithm: str) -> None:
    assert choose_algorithm(size_bytes, 2, medium) == algorithm


@pytest.mark.parametrize(
    ("size_bytes", "algorithm"),
    [(256 << 10, "one-shot"), (1 << 20, "direct"), ((8 << 20) - 1, "direct"), (8 << 20, "ring")],
)
def test_large_buckets_go_around_a_ring_where_links_are_slow(size_bytes: int, algorithm: str) -> None:
    assert choose_algorithm(size_bytes, 4, Medium.WAN) == algorithm


@pytest.mark.parametrize("kind", [Kind.RECV, Kind.REDUCE])
def test_only_a_send_can_be_told_to_wait(kind: Kind) -> None:
    with pytest.raises(ValueError, match="only a SEND waits"):
        Transfer(kind, peer=1, chunk=0, after=(0,))


@pytest.mark.parametrize("kind", [Kind.RECV, Kind.REDUCE])
def test_only_what_a_send_sends_is_copied(kind: Kind) -> None:
    with pytest.raises(ValueError, match="only what a SEND sends is copied"):
        Transfer(kind, peer=1, chunk=0, is_copied=True)
