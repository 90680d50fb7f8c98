import pytest

from collectives import ALGORITHMS
from collectives.program_verification import verify_gather_programs, verify_programs
from collectives.programs import (
    BLOCK_BYTES,
    MOST_CHUNKS,
    all_gather_program,
    all_reduce_program,
    direct_program,
    num_blocks_for,
    one_shot_program,
)


@pytest.mark.parametrize("world_size", range(1, 9))
def test_every_rank_ends_with_each_input_once_and_reads_only_what_is_published(world_size: int) -> None:
    ranks = range(world_size)
    verify_programs([one_shot_program(rank, world_size) for rank in ranks])
    for num_blocks in (1, 3, 11):
        verify_programs([direct_program(rank, world_size, num_blocks) for rank in ranks])
    verify_gather_programs([all_gather_program(rank, world_size) for rank in ranks])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("size_bytes", [0, 4096, 4 << 20])
def test_every_algorithm_has_a_program_for_every_size(algorithm: str, size_bytes: int) -> None:
    for world_size in (1, 2, 5):
        length = size_bytes // 4
        verify_programs([all_reduce_program(algorithm, rank, world_size, length, 4) for rank in range(world_size)])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_program_is_built_once(algorithm: str) -> None:
    assert all_reduce_program(algorithm, 1, 3, 4096, 4) is all_reduce_program(algorithm, 1, 3, 4096, 4)


def test_an_unknown_algorithm_has_no_program() -> None:
    with pytest.raises(
        ValueError,
        match="'butterfly', choose from binary-tree, direct, halving-doubling, hierarchical, one-shot, ring, tree",
    ):
        all_reduce_program("butterfly", 0, 2, 4096, 4)


@pytest.mark.parametrize("num_chunks", [1, 2, 3, 8])
def test_parts_are_reduced_in_blocks_from_1_mb_on(num_chunks: int) -> None:
    assert num_blocks_for((1 << 20) - 4, num_chunks) == 1
    num_blocks = num_blocks_for(64 << 20, num_chunks)
    assert num_blocks * num_chunks * BLOCK_BYTES >= 64 << 20 > (num_blocks - 1) * num_chunks * BLOCK_BYTES


@pytest.mark.parametrize("size_bytes", [0, 1 << 20, 4 << 20, 64 << 20, 1 << 40])
def test_there_are_never_more_chunks_than_there_is_room_for_digests(size_bytes: int) -> None:
    for num_chunks in range(1, MOST_CHUNKS + 1):
        assert 1 <= num_blocks_for(size_bytes, num_chunks) <= MOST_CHUNKS // num_chunks
    assert all_reduce_program("ring", 0, 33, size_bytes // 4, 4).num_chunks <= MOST_CHUNKS


def test_a_program_says_whether_results_are_read() -> None:
    assert direct_program(0, 2).lends_results
    assert not one_shot_program(0, 2).lends_results
    assert not direct_program(0, 1).lends_results
