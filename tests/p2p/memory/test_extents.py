"""Extents: parts of an arena that a device has registered."""

import logging
import mmap
import secrets
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from collectives import Array
from p2p.memory.arena import REGIONS_OFFSET, Arena
from p2p.memory.extents import Extents
from p2p.memory.host_memory import HostMemory, least_bytes
from p2p.memory.shared_run import PIECES
from tests.p2p.staging.standin import StandIn, Unordered

EXTENT = 4 * mmap.PAGESIZE
NUM = 6


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = Arena(REGIONS_OFFSET + NUM * EXTENT - mmap.PAGESIZE, secrets.token_hex(8))
    yield arena
    arena.close()


def lent(arena: Arena, num_bytes: int) -> Array:
    region = arena.allocate(num_bytes)
    assert region is not None
    return arena.array(region, np.uint8)


def test_what_a_device_wants_is_pinned_by_whole_extents_once(arena: Arena) -> None:
    extents, device = Extents(arena, EXTENT), StandIn(0)
    first, second = lent(arena, 100), lent(arena, EXTENT)
    assert extents.unknown([first]) == [0] and extents.unknown([second, np.ones(3)]) == [0, 1]
    extents.pin(device, [0, 1])
    extents.pin(device, extents.unknown([first, second, lent(arena, 64)]))
    begin = first.ctypes.data
    assert device.pinned == {begin: begin + EXTENT, begin + EXTENT: begin + 2 * EXTENT} and device.num_pins == 2
    extents.unpin()
    assert device.pinned == {}
    extents.pin(device, [2])
    assert device.num_pins == 2


def test_the_last_extent_ends_with_the_arena(arena: Arena) -> None:
    extents, device = Extents(arena, EXTENT), StandIn(0)
    everything = lent(arena, arena.size - REGIONS_OFFSET)
    extents.pin(device, extents.unknown([everything]))
    assert sum(end - begin for begin, end in device.pinned.items()) == arena.size - REGIONS_OFFSET
    assert len(device.pinned) == NUM
    extents.unpin()


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
def test_an_array_is_cut_where_extents_end_and_nowhere_else(arena: Arena, dtype: type) -> None:
    extents = Extents(arena, EXTENT)
    lent(arena, 192)
    array: Array = lent(arena, 2 * EXTENT).view(dtype)
    pieces = extents.cut(array)
    assert [(piece.stop - piece.start) * array.itemsize for piece in pieces] == [EXTENT - 192, EXTENT, 192]
    assert extents.cut(np.ones(9)) == (slice(0, 9),) and extents.cut(array[:0]) == [slice(0, 0)]
    assert extents.cut(array[: (EXTENT - 192) // array.itemsize]) == [slice(0, (EXTENT - 192) // array.itemsize)]


@pytest.mark.parametrize("every", [1, 2, 3])
def test_what_cannot_be_pinned_costs_one_warning_and_nothing_else(
    arena: Arena, caplog: pytest.LogCaptureFixture, every: int
) -> None:
    extents, device = Extents(arena, EXTENT), StandIn(0)
    device.refuses_every = every
    array = lent(arena, arena.size - REGIONS_OFFSET)
    with caplog.at_level(logging.WARNING, logger="p2p"):
        extents.pin(device, extents.unknown([array])[:4])
        extents.pin(device, extents.unknown([array]))
        extents.pin(device, range(NUM))
    (warning,) = caplog.messages
    asked, got = 4 * EXTENT >> 10, (4 - 4 // every) * EXTENT >> 10
    assert (
        f"of {asked} KiB" in warning and f"{got} KiB could be pinned (the stand-in refuses each {every}th)" in warning
    )
    assert device.num_pins == NUM and len(device.pinned) == NUM - NUM // every
    source = torch.arange(len(array), dtype=torch.int64).to(torch.uint8)
    for piece in extents.cut(array):
        device.fetch(source[piece], array[piece], [device.mark()]).wait()
    assert np.array_equal(array, source.numpy())
    extents.unpin()


def test_the_stand_in_refuses_what_a_device_would(arena: Arena) -> None:
    extents, device = Extents(arena, EXTENT), StandIn(0)
    array = lent(arena, 2 * EXTENT)
    extents.pin(device, [0])
    with pytest.raises(Unordered, match="crosses the end of what is pinned"):
        device.fetch(torch.ones(2 * EXTENT, dtype=torch.uint8), array, [device.mark()])
    with pytest.raises(Unordered, match="pinned already"):
        device.pin(array)
    device.fetch(torch.ones(8, dtype=torch.uint8), array[:8], [device.mark()])
    with pytest.raises(Unordered, match="unpinned while it is copied"):
        device.unpin(array[:EXTENT])
    extents.unpin()  # which waits for it
    assert array[:8].all()


def test_a_thread_pins_what_is_wanted_later_and_nothing_is_pinned_when_memory_is_closed() -> None:
    device = StandIn(0)
    memory = HostMemory(secrets.token_hex(8), least_bytes(PIECES) + 4 * EXTENT, extent_bytes=EXTENT)
    arrays = [memory.empty(EXTENT, np.dtype(np.uint8)) for _ in range(3)]
    memory.pin(device, arrays[:1], is_aside=False)
    num_now = device.num_pins
    assert num_now > 0 and memory.cut(arrays[0]) != (slice(0, EXTENT),)
    memory.pin(device, arrays, is_aside=True)
    for thread in memory._pinning:
        thread.join()
    assert len(device.pinned) == device.num_pins > num_now
    memory.unpin()
    memory.pin(device, arrays, is_aside=False)
    assert device.pinned == {}
    memory.close()


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_what_a_lost_device_cannot_register_is_asked_for_once_and_is_released_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    device = StandIn(0)
    memory = HostMemory(secrets.token_hex(8), least_bytes(PIECES) + 4 * EXTENT, extent_bytes=EXTENT)
    arrays = [memory.empty(EXTENT, np.dtype(np.uint8)) for _ in range(3)]
    memory.pin(device, arrays[:1], is_aside=False)
    assert memory._extents is not None and memory._extents.unknown(arrays) and device.pinned
    device.lose()
    with caplog.at_level(logging.WARNING, logger="p2p"):
        memory.pin(device, arrays, is_aside=True)
        memory.end_pinning()
    assert memory._extents.unknown(arrays) == [] and len(caplog.messages) == 1
    assert "could be pinned (CUDA error: an illegal memory access" in caplog.text
    memory.close()
    assert memory._arena is None and device.pinned == {}


def test_what_has_no_room_in_the_arena_is_named_with_its_size_once(caplog: pytest.LogCaptureFixture) -> None:
    device, size = StandIn(0), least_bytes(PIECES) + 4 * EXTENT
    memory = HostMemory(secrets.token_hex(8), size, extent_bytes=EXTENT)
    arrays = [memory.empty(length, np.dtype(np.uint8)) for length in (EXTENT, 1 << 20, 64)]
    with caplog.at_level(logging.WARNING, logger="p2p"):
        memory.pin(device, arrays, is_aside=False)
        memory.pin(device, arrays, is_aside=True)
    (warning,) = caplog.messages
    got = len(device.pinned) * EXTENT >> 10
    assert (
        f"of {got + 1024} KiB" in warning and f"{got} KiB could be pinned" in warning and "see arena_bytes" in warning
    )
    memory.close()
    assert device.pinned == {}
