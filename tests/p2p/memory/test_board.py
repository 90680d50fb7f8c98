import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2p.memory.board import (
    BOARD_BYTES,
    DIGESTS_BYTES,
    LINE_BYTES,
    Board,
    Finished,
    Reference,
    fence,
    tag_of,
)

words = st.integers(0, 2**64 - 1)


def new_board() -> tuple[Board, Board]:
    """A board as mapped by its owner, and as mapped by others."""
    page = bytearray(BOARD_BYTES)
    return Board(memoryview(page)), Board(memoryview(page).toreadonly())


def digests(number: int) -> bytes:
    return bytes([number]) * DIGESTS_BYTES


@given(words, words, words, words)
def test_every_word_has_a_place_of_its_own(progress: int, sleeping: int, awaited: int, tag: int) -> None:
    owner, reader = new_board()
    owner.initialize(bytes(range(16)), 77)
    owner.install(tag)
    owner.finish(Finished(6, tag, digests(6)))
    owner.finish(Finished(7, tag, digests(7)))
    lent = [Reference(bytes([turn + 1] * 16), turn, 3, 2**64 - 1, 5) for turn in range(2)]
    owner.progress[0], owner.sleeping[0], owner.awaited[0] = progress, sleeping, awaited
    for turn in range(2):
        owner.lend(turn, lent[turn])
    assert (reader.progress[0], reader.sleeping[0], reader.awaited[0]) == (progress, sleeping, awaited)
    assert [reader.lent(turn) for turn in range(2)] == lent
    assert reader.is_board_of(bytes(range(16))) and reader.doorbell == 77 and reader.tag[0] == tag
    assert [reader.finished(step, tag) for step in (6, 7)] == [digests(6), digests(7)]


def test_progress_and_sleeping_are_on_cache_lines_of_their_own() -> None:
    page = bytearray(BOARD_BYTES)
    board = Board(memoryview(page))
    places = []
    for cell in (board.tag, board.progress, board.sleeping):
        cell[0] = 2**64 - 1
        (place,) = {i // LINE_BYTES for i, byte in enumerate(page) if byte}
        places.append(place)
        cell[0] = 0
    assert len(set(places)) == 3


def test_who_is_not_the_owner_cannot_write() -> None:
    _, reader = new_board()
    with pytest.raises(TypeError, match="read-only"):
        reader.tag[0] = 1
    with pytest.raises(TypeError, match="read-only"):
        reader.progress[0] = 1


def test_a_finished_step_is_seen_in_the_view_in_which_it_was_finished() -> None:
    owner, reader = new_board()
    owner.install(5)
    assert reader.finished(0, 5) is None
    assert owner.finish(Finished(0, 5, digests(1)))
    assert reader.finished(0, 5) == digests(1)
    assert reader.finished(0, 6) is None
    assert reader.finished(2, 5) is None


def test_nothing_that_was_finished_counts_once_its_owner_has_left_the_view() -> None:
    owner, reader = new_board()
    owner.install(5)
    owner.finish(Finished(3, 5, digests(1)))
    owner.install(6)
    assert reader.finished(3, 5) is None
    assert reader.finished(3, 6) is None  # it is redone in the new view, and reported again then
    owner.install(0)
    assert reader.tag[0] == 0


def test_no_step_is_finished_in_a_view_that_is_not_installed_any_more() -> None:
    owner, reader = new_board()
    owner.install(5)
    owner.finish(Finished(3, 5, digests(1)))
    owner.install(6)
    assert not owner.finish(Finished(4, 5, digests(2)))
    assert reader.finished(4, 5) is None


def test_a_tag_is_the_first_eight_bytes_of_the_hash() -> None:
    assert tag_of(bytes([1, 0, 0, 0, 0, 0, 0, 0]) + bytes(24)) == 1


def test_a_fence_waits_for_nobody() -> None:
    fence()
    fence()
