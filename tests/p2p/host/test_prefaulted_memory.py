"""Memory whose pages a thread touches before they are needed."""

import mmap
import resource
import threading
import weakref

import numpy as np
import psutil  # type: ignore[import-untyped]
import pytest

from p2p.host.prefaulted_memory import ALIGNED_TO, PIECE_BYTES, PrefaultedMemory, room_of, touched

MB = 1 << 20


def num_faults() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt


def resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)


def test_pages_of_what_is_taken_are_there() -> None:
    sizes = [40 * MB + 1, 3, 0, 9 * MB]
    memory = PrefaultedMemory(room_of(sizes))
    memory.wait()
    assert memory.is_ready
    taken = [memory.take(size) for size in sizes]
    before = num_faults()
    for piece in taken:
        piece[...] = 7
    assert num_faults() - before < 49 * MB / mmap.PAGESIZE / 100
    assert [piece.size for piece in taken] == sizes
    assert [piece[0] for piece in taken if piece.size] == [7, 7, 7]


def test_pieces_are_aligned_and_nobody_else_s() -> None:
    sizes = [5, 100, 64, 1]
    memory = PrefaultedMemory(room_of(sizes))
    memory.wait()
    taken = [memory.take(size) for size in sizes]
    starts = [piece.ctypes.data - taken[0].ctypes.data for piece in taken]
    assert starts == [0, ALIGNED_TO, 3 * ALIGNED_TO, 4 * ALIGNED_TO]


def test_what_there_is_no_room_for_is_memory_of_its_own() -> None:
    memory = PrefaultedMemory(1000)
    memory.wait()
    first, second = memory.take(600), memory.take(600)
    assert not np.shares_memory(first, second) and second.size == 600


def test_what_is_reserved_is_reached_in_order() -> None:
    sizes = [3 * PIECE_BYTES, PIECE_BYTES, 5]
    memory = PrefaultedMemory(room_of(sizes))
    pieces = [memory.reserve(size) for size in sizes]
    assert len({piece.ctypes.data - pieces[0].ctypes.data for piece in pieces}) == 3
    assert memory.reaches(memory.reserve(1000)), "none of the block"
    memory.wait()
    assert all(memory.reaches(piece) for piece in pieces)
    for piece in pieces:
        piece[...] = 3
    assert [int(piece.min()) for piece in pieces] == [3, 3, 3]


def test_what_is_not_touched_yet_is_not_reached() -> None:
    memory = PrefaultedMemory(1000)
    memory.wait()
    memory._is_ready.clear()
    memory._num_touched = 700
    first, second = memory.reserve(600), memory.reserve(200)
    assert memory.reaches(first) and memory.reaches(first[:10]) and not memory.reaches(second)
    assert memory.reaches(second[:60]), "up to 640 + 60"
    memory.drop()
    assert not memory.reaches(second), "the thread may be about to write there"
    memory._is_ready.set()
    assert memory.reaches(second)


def test_nobody_is_given_what_is_still_touched() -> None:
    memory = PrefaultedMemory(1000)
    memory.wait()
    memory._is_ready.clear()
    assert not np.shares_memory(memory.take(600), memory._block)
    memory._is_ready.set()
    assert np.shares_memory(memory.take(600), memory._block)


def test_what_is_dropped_is_given_back_but_for_what_was_taken() -> None:
    memory = PrefaultedMemory(4 * PIECE_BYTES)
    memory.wait()
    block, piece = weakref.ref(memory._block), memory.take(10)
    piece[:] = 9
    memory.drop()
    assert memory.take(10).size == 10
    assert bytes(piece) == 10 * b"\x09"
    assert block() is not None, "as long as a piece is in use"
    del piece
    assert block() is None


def test_nothing_more_is_touched_once_it_is_dropped() -> None:
    before = resident_bytes()
    memory = PrefaultedMemory(1 << 33)
    memory.drop()
    memory.wait()
    assert resident_bytes() - before < 4 * PIECE_BYTES
    assert memory.take(10).size == 10


def test_without_memory_for_it_nothing_is_ready() -> None:
    memory = PrefaultedMemory(1 << 60)
    memory.wait()
    assert memory.take(10).size == 10


def test_touched_memory_has_its_pages() -> None:
    memory = touched(16 * MB)
    before = num_faults()
    memory[...] = 1
    assert num_faults() - before < 16 * MB / mmap.PAGESIZE / 100


def refuse(thread: threading.Thread) -> None:
    """Fail as the kernel does at its limit of processes."""
    raise RuntimeError("can't start new thread")


def test_where_there_can_be_no_more_threads_memory_is_touched_as_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", refuse)
    memory = PrefaultedMemory(room_of([2 * MB]))
    assert memory.is_ready
    memory.wait()
    piece = memory.take(2 * MB)
    assert piece.size == 2 * MB and memory.reaches(piece)
