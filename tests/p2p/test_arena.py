import fcntl
import os
import resource
import secrets
import signal
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2p.arena import Arena, ArenaError, Mapping, MappingRefused, Region, Slots, align
from p2p.board import BOARD_BYTES, LINE_BYTES
from tests.p2p.lender import LENGTH
from tests.p2p.processes import introduce, read, started

SIZE = 64 << 10


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = Arena(SIZE)
    yield arena
    arena.close()


def mapping_of(arena: Arena) -> Mapping:
    return Mapping.open(os.getpid(), arena.fd, arena.size, arena.nonce)


def given_out(arena: Arena, length: int) -> Region:
    region = arena.allocate(length)
    assert region is not None
    return region


# Regions.


def test_what_the_owner_writes_is_what_others_read(arena: Arena) -> None:
    region = given_out(arena, 400)
    written, seen = arena.array(region, np.float32), mapping_of(arena).array(region, np.float32)
    written[:] = np.arange(100)
    assert np.array_equal(seen, np.arange(100))


def test_who_is_not_the_owner_cannot_write(arena: Arena) -> None:
    seen = mapping_of(arena).array(given_out(arena, 400), np.float32)
    with pytest.raises(ValueError, match="read-only"):
        seen[0] = 1


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64, np.uint8, np.bool_, np.complex128])
def test_a_region_holds_elements_of_any_type(arena: Arena, dtype: type) -> None:
    array = arena.array(given_out(arena, 320), dtype)
    assert array.nbytes == 320 and array.dtype == dtype and array.flags.aligned


@pytest.mark.parametrize(
    "region",
    [
        Region(0, 64),
        Region(SIZE, 64),
        Region(SIZE - 64, 128),
        Region(BOARD_BYTES, -4),
        Region(-64, 64),
        Region(4098, 4),
    ],
)
def test_what_is_no_region_is_refused(arena: Arena, region: Region) -> None:
    with pytest.raises(ValueError, match=f"an arena of {SIZE} bytes has no region"):
        arena.array(region, np.float32)
    with pytest.raises(ValueError, match="no whole number"):
        arena.array(Region(BOARD_BYTES, 6), np.float32)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9000), st.integers(0, 99)), max_size=60))
def test_regions_never_overlap_and_nothing_is_lost(actions: list[tuple[bool, int, int]]) -> None:
    arena, held = Arena(SIZE), list[Region]()
    for is_new, length, choice in actions:
        if is_new:
            region = arena.allocate(length)
            assert region is None or (region.length, region.offset % LINE_BYTES) == (length, 0)
            held += [region] if region is not None else []
        elif held:
            arena.free(held.pop(choice % len(held)))
        spans = sorted((each.offset, each.offset + align(each.length)) for each in held)
        assert all(before[1] <= after[0] for before, after in pairwise(spans))
        assert all(start >= BOARD_BYTES and end <= SIZE for start, end in spans)
        assert arena.free_bytes == SIZE - BOARD_BYTES - sum(end - start for start, end in spans)
    for region in held:
        arena.free(region)
    assert arena.allocate(SIZE - BOARD_BYTES) == Region(BOARD_BYTES, SIZE - BOARD_BYTES)
    arena.close()


def test_a_full_arena_gives_nothing_until_something_is_freed(arena: Arena) -> None:
    region = given_out(arena, SIZE - BOARD_BYTES)
    assert arena.allocate(1) is None
    arena.free(region)
    assert arena.allocate(1) is not None


def test_what_is_freed_twice_is_a_fault_of_ours(arena: Arena) -> None:
    region, _ = given_out(arena, 100), given_out(arena, 100)
    arena.free(region)
    with pytest.raises(AssertionError, match="is free"):
        arena.free(region)


def test_two_slots_are_taken_in_turns(arena: Arena) -> None:
    slots = Slots.of(arena, 1000)
    assert slots is not None
    first, second, third = slots.take(8), slots.take(1000), slots.take(12)
    assert first.offset == third.offset != second.offset
    assert (first.length, second.length, third.length) == (8, 1000, 12)


def test_slots_for_which_there_is_no_room_take_none(arena: Arena) -> None:
    before = arena.free_bytes
    assert Slots.of(arena, SIZE // 2 + 1) is None
    assert Slots.of(arena, SIZE) is None
    assert arena.free_bytes == before


def test_an_array_keeps_its_memory_when_the_arena_is_closed() -> None:
    arena = Arena(SIZE)
    mapping = mapping_of(arena)
    region = given_out(arena, 64)
    own, seen = arena.array(region, np.int64), mapping.array(region, np.int64)
    arena.close()
    mapping.close()
    own[0] = 7
    assert seen[0] == 7


def test_an_arena_has_a_board_and_whole_pages() -> None:
    for size in (BOARD_BYTES, SIZE + 1, 0):
        with pytest.raises(ValueError, match="whole pages, two at least"):
            Arena(size)


def test_memory_that_does_not_exist_is_refused_at_the_start() -> None:
    fds = os.listdir("/proc/self/fd")
    with pytest.raises(ArenaError, match=r"no arena of .* bytes can be had: .* available; make it smaller"):
        Arena(1 << 62)
    assert len(os.listdir("/proc/self/fd")) == len(fds)


def test_memory_that_the_kernel_refuses_is_given_back() -> None:
    fds = os.listdir("/proc/self/fd")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SIZE // 2, hard))
    try:
        with pytest.raises(ArenaError, match="File too large; make it smaller"):
            Arena(SIZE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(os.listdir("/proc/self/fd")) == len(fds)


def test_arrays_are_made_once_and_no_more_than_so_many_are_kept(arena: Arena) -> None:
    first = Region(BOARD_BYTES, 64)
    kept = arena.array(first, np.uint8)
    assert arena.array(first, np.uint8) is kept
    for length in range(1, 1100):
        arena.array(Region(BOARD_BYTES, length), np.uint8)
    assert arena.array(first, np.uint8) is not kept
    assert np.shares_memory(arena.array(first, np.uint8), kept)


# Mapping what a peer says it has.


def test_an_arena_can_neither_shrink_nor_grow(arena: Arena) -> None:
    for size in (BOARD_BYTES, 2 * SIZE):
        with pytest.raises(PermissionError):
            os.ftruncate(arena.fd, size)
    with pytest.raises(PermissionError):
        fcntl.fcntl(arena.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


def test_another_arena_in_the_same_place_is_refused(arena: Arena) -> None:
    with pytest.raises(MappingRefused, match="is the arena of another peer"):
        Mapping.open(os.getpid(), arena.fd, SIZE, secrets.token_bytes(16))


def test_an_arena_of_another_size_is_refused(arena: Arena) -> None:
    with pytest.raises(MappingRefused, match=f"has {SIZE} bytes, its owner said {2 * SIZE}"):
        Mapping.open(os.getpid(), arena.fd, 2 * SIZE, arena.nonce)


@pytest.mark.parametrize(
    ("pid", "fd", "size"), [(0, 3, SIZE), (-1, 3, SIZE), (1 << 40, 3, SIZE), (1, -3, SIZE), (1, 3, 8)]
)
def test_what_can_be_no_arena_is_refused(pid: int, fd: int, size: int) -> None:
    with pytest.raises(MappingRefused, match="no arena is descriptor"):
        Mapping.open(pid, fd, size, bytes(16))


def test_a_descriptor_that_does_not_exist_is_refused() -> None:
    with pytest.raises(MappingRefused, match="it is gone, or lives on another host or in a container"):
        Mapping.open(os.getpid(), 1 << 20, SIZE, bytes(16))


def test_memory_that_could_shrink_is_refused() -> None:
    unsealed = os.memfd_create("unsealed", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(unsealed, SIZE)
    with tempfile.TemporaryFile() as file:
        file.truncate(SIZE)
        for fd in (unsealed, file.fileno()):
            with pytest.raises(MappingRefused, match="is not sealed: it could shrink while it is read"):
                Mapping.open(os.getpid(), fd, SIZE, bytes(16))
    os.close(unsealed)


def test_what_is_no_memory_is_refused_and_not_waited_for() -> None:
    reading, writing = os.pipe()
    null = os.open("/dev/null", os.O_RDONLY)
    for fd in (reading, writing, null):
        with pytest.raises(MappingRefused, match="is no memory of this user"):
            Mapping.open(os.getpid(), fd, SIZE, bytes(16))
        os.close(fd)


def test_a_descriptor_that_may_not_be_read_is_refused() -> None:
    fd = os.memfd_create("unreadable", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.fchmod(fd, 0)
    if os.geteuid() == 0:
        os.fchown(fd, 12345, 12345)
    with pytest.raises(MappingRefused, match=r"is no memory of this user|it may be of another user"):
        Mapping.open(os.getpid(), fd, SIZE, bytes(16))
    os.close(fd)


def test_nothing_stays_open_when_a_mapping_is_refused_or_closed(arena: Arena) -> None:
    before = os.listdir("/proc/self/fd")
    for nonce in (arena.nonce, bytes(16)):
        with suppress(MappingRefused):
            Mapping.open(os.getpid(), arena.fd, SIZE, nonce).close()
    assert len(os.listdir("/proc/self/fd")) == len(before)


# Real processes.


def users_of(inode: int) -> set[int]:
    """All processes that have this memory mapped."""
    found = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):  # it has ended
            if any(line.split()[4] == str(inode) for line in maps.read_text().splitlines()):
                found.add(int(maps.parent.name))
    return found


def test_processes_read_each_other_and_nothing_is_left_when_they_are_killed() -> None:
    shared = os.listdir("/dev/shm")
    with started("lender", num_processes=3) as processes:
        introductions = introduce(processes)
        sums = [LENGTH // 8 * (number + 1) for number in range(3)]
        assert [read(process) for process in processes] == [sums] * 3
        mapping = introductions[0].open()
        inodes = [os.stat(f"/proc/{each.pid}/fd/{each.fd}").st_ino for each in introductions]
        pids = {each.pid for each in introductions}
        assert [users_of(inode) for inode in inodes] == [pids | {os.getpid()}, pids, pids]

        for process in processes:
            process.send_signal(signal.SIGKILL)
            process.wait()
        assert [users_of(inode) for inode in inodes] == [{os.getpid()}, set(), set()]
        assert mapping.array(Region(BOARD_BYTES, LENGTH), np.int64).sum() == sums[0]  # no SIGBUS, still there
        with pytest.raises(MappingRefused, match="it is gone"):
            introductions[0].open()
        mapping.close()
        assert users_of(inodes[0]) == set()
    assert os.listdir("/dev/shm") == shared
