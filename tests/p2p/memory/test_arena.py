import fcntl
import mmap
import os
import resource
import secrets
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives import Array
from p2p.host.memory_left import available_bytes
from p2p.memory.arena import (
    REGIONS_OFFSET,
    Arena,
    ArenaError,
    MappingRefused,
    Memory,
    Region,
    RemoteArena,
    Slots,
    align,
)
from p2p.memory.board import BOARD_BYTES, LINE_BYTES
from tests.p2p.memory.lender import LENGTH
from tests.p2p.memory.processes import arenas_in, introduce, read, started

SIZE = 64 << 10
ME = "00112233445566aa"
FIRST = Region(REGIONS_OFFSET, 8)
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = Arena(SIZE, ME)
    yield arena
    arena.close()


def mapping_of_me() -> RemoteArena:
    return RemoteArena.open(os.getpid(), ME)


def status_of_me() -> os.stat_result:
    """The status of the memfd of this process's arena."""
    first, *_ = arenas_in(os.getpid(), ME)
    return first.stat()


@contextmanager
def memory(name: str, size: int = SIZE, seals: int = SEALS) -> Iterator[int]:
    """A memfd of this process that is no arena."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
        yield fd
    finally:
        os.close(fd)


def address_of(array: Array) -> int:
    address: int = array.ctypes.data
    return address


def given_out(arena: Arena, length: int) -> Region:
    region = arena.allocate(length)
    assert region is not None
    return region


# Regions


def test_what_the_owner_writes_is_what_others_read(arena: Arena) -> None:
    region = given_out(arena, 400)
    written, seen = arena.array(region, np.float32), mapping_of_me().array(region, np.float32)
    written[:] = np.arange(100)
    assert np.array_equal(seen, np.arange(100))


def test_who_is_not_the_owner_cannot_write(arena: Arena) -> None:
    seen = mapping_of_me().array(given_out(arena, 400), np.float32)
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
    arena, held = Arena(SIZE, secrets.token_hex(8)), list[Region]()
    for is_new, length, choice in actions:
        if is_new:
            region = arena.allocate(length)
            assert region is None or (region.length, region.offset % LINE_BYTES) == (length, 0)
            held += [region] if region is not None else []
        elif held:
            arena.free(held.pop(choice % len(held)))
        spans = sorted((each.offset, each.offset + align(each.length)) for each in held)
        assert all(before[1] <= after[0] for before, after in pairwise(spans))
        assert all(start >= REGIONS_OFFSET and end <= SIZE for start, end in spans)
        assert arena.free_bytes == SIZE - REGIONS_OFFSET - sum(end - start for start, end in spans)
    for region in held:
        arena.free(region)
    assert arena.allocate(SIZE - REGIONS_OFFSET) == Region(REGIONS_OFFSET, SIZE - REGIONS_OFFSET)
    arena.close()


def test_a_full_arena_gives_nothing_until_something_is_freed(arena: Arena) -> None:
    region = given_out(arena, SIZE - REGIONS_OFFSET)
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
    arena = Arena(SIZE, ME)
    mapping = mapping_of_me()
    region = given_out(arena, 64)
    own, seen = arena.array(region, np.int64), mapping.array(region, np.int64)
    arena.close()
    mapping.close()
    own[0] = 7
    assert seen[0] == 7


def test_an_arena_has_whole_pages_with_room_for_regions() -> None:
    for size in (REGIONS_OFFSET, SIZE + 1, 0):
        with pytest.raises(ValueError, match=f"an arena has whole pages, {REGIONS_OFFSET} bytes and more, got {size}"):
            Arena(size, ME)


def test_memory_that_cannot_be_addressed_is_refused_at_the_start() -> None:
    fds = os.listdir("/proc/self/fd")
    with pytest.raises(ArenaError, match=r"cannot make an arena of .* bytes: .*; make it smaller"):
        Arena(1 << 62, ME)
    assert len(os.listdir("/proc/self/fd")) == len(fds)


def test_memory_that_the_kernel_refuses_is_given_back() -> None:
    fds = os.listdir("/proc/self/fd")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SIZE // 2, hard))
    try:
        with pytest.raises(ArenaError, match="File too large; make it smaller"):
            Arena(SIZE, ME)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(os.listdir("/proc/self/fd")) == len(fds)


def test_what_is_not_given_out_costs_no_memory() -> None:
    arena = Arena(1 << 40, ME)
    assert status_of_me().st_blocks * 512 == REGIONS_OFFSET
    given_out(arena, 5 * mmap.PAGESIZE)
    assert status_of_me().st_blocks * 512 == REGIONS_OFFSET + 5 * mmap.PAGESIZE
    arena.close()


def test_memory_that_this_machine_does_not_have_is_not_given_out() -> None:
    arena = Arena(1 << 44, ME)
    before = status_of_me().st_blocks
    assert arena.allocate(available_bytes() * 2) is None
    assert status_of_me().st_blocks == before
    assert arena.allocate(100) == Region(REGIONS_OFFSET, 100)
    arena.close()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_no_arena_to_write_to(arena: Arena) -> None:
    def is_mapped() -> bool:
        return f"memfd:shoal-{ME}" in Path("/proc/self/maps").read_text()

    assert is_mapped()
    child = os.fork()
    if child == 0:
        os._exit(1 if is_mapped() else 0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert is_mapped()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_what_a_forked_child_has_where_the_arena_was_is_its_own() -> None:
    """A child that garbage-collects its parent's peer, such as a data worker, unmaps none of its own memory."""
    memories: list[Memory] = [Arena(16 * SIZE, ME), mapping_of_me()]
    places = {range(start := address_of(memory.array(FIRST, np.uint8)), start + 14 * SIZE) for memory in memories}
    child = os.fork()
    if child == 0:
        own: list[mmap.mmap] = []
        while places and len(own) < 1 << 14:
            own.append(mmap.mmap(-1, SIZE))
            places -= {place for place in places if address_of(np.frombuffer(own[-1], np.uint8)) in place}
        while memories:
            memories.pop().close()
        for each in own:
            each[0] = 1
        os._exit(len(places))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    for memory in memories:
        memory.close()


def test_an_array_is_known_as_a_region_if_it_lies_in_the_arena(arena: Arena) -> None:
    region = given_out(arena, 400)
    array = arena.array(region, np.float32)
    assert arena.region_of(array) == region
    assert arena.region_of(array[10:20]) == Region(region.offset + 40, 40)
    assert arena.region_of(array.copy()) is None
    assert arena.region_of(array.view(np.uint8)[1:41].view(np.float32)) is None, "it is not aligned"
    assert arena.region_of(mapping_of_me().array(region, np.float32)) is None


def test_arrays_are_made_once_and_no_more_than_so_many_are_kept(arena: Arena) -> None:
    first = Region(BOARD_BYTES, 64)
    kept = arena.array(first, np.uint8)
    assert arena.array(first, np.uint8) is kept
    for length in range(1, 1100):
        arena.array(Region(BOARD_BYTES, length), np.uint8)
    assert arena.array(first, np.uint8) is not kept
    assert np.shares_memory(arena.array(first, np.uint8), kept)


# Finding the arena of a peer


def test_an_arena_can_neither_shrink_nor_grow(arena: Arena) -> None:
    fd = os.open(arenas_in(os.getpid(), ME)[0], os.O_RDWR)
    for size in (BOARD_BYTES, 2 * SIZE):
        with pytest.raises(PermissionError):
            os.ftruncate(fd, size)
    with pytest.raises(PermissionError):
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    os.close(fd)


def test_an_arena_is_found_by_its_whole_name(arena: Arena) -> None:
    with memory(f"shoal-{ME}b"), memory(f"shoal-{ME[:-1]}"), memory(f"other-{ME}"), memory(ME):
        assert (mapping_of_me().size, arena.size) == (SIZE, SIZE)
        for other in (ME[:-1] + "b", "", ME.upper(), f"{ME}/", f"../{ME}"):
            with pytest.raises(MappingRefused, match=f"there is no arena of peer {other} in process"):
                RemoteArena.open(os.getpid(), other)


@pytest.mark.parametrize("pid", [0, -1, 1 << 40])
def test_a_process_that_does_not_exist_is_refused(pid: int) -> None:
    with pytest.raises(MappingRefused, match=f"there is no process {pid}: it is gone, or lives in another container"):
        RemoteArena.open(pid, ME)


def test_a_process_without_an_arena_is_refused() -> None:
    with pytest.raises(MappingRefused, match=f"there is no arena of peer {ME} in process .*: it has none, or is not"):
        mapping_of_me()


def test_memory_that_could_shrink_or_is_too_short_is_refused() -> None:
    name = f"shoal-{ME}"
    for some in (0, fcntl.F_SEAL_SHRINK, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW):
        with memory(name, seals=some), pytest.raises(MappingRefused, match="could shrink while it is read"):
            mapping_of_me()
    for size in (0, BOARD_BYTES, REGIONS_OFFSET - 1):  # too small for the tables of digests
        with memory(name, size), pytest.raises(MappingRefused, match="is not sealed, or too short"):
            mapping_of_me()


def test_memory_that_is_laid_out_otherwise_is_refused() -> None:
    with memory(f"shoal-{ME}") as fd:
        for board in (b"", ME.encode(), ME.encode() + b"\3SHOAL\0\0"):
            os.pwrite(fd, board, 0)
            with pytest.raises(MappingRefused, match="is laid out by another version of shoal"):
                mapping_of_me()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give memory away")
def test_memory_of_another_user_is_refused() -> None:
    with memory(f"shoal-{ME}") as fd:
        os.fchown(fd, 12345, 12345)
        with pytest.raises(MappingRefused, match="is no memory of this user"):
            mapping_of_me()


def test_a_process_of_another_user_is_refused() -> None:
    """Process 1 is root's, if it is visible at all."""
    me = os.geteuid()
    try:
        if me == 0:
            os.seteuid(65534)
        with pytest.raises(MappingRefused, match="it may be of another user"):
            RemoteArena.open(1, ME)
    finally:
        os.seteuid(me)


def test_nothing_stays_open_when_a_mapping_is_refused_or_closed(arena: Arena) -> None:
    broken = "ffffffffffffffff"
    with memory(f"shoal-{broken}"):
        before = os.listdir("/proc/self/fd")
        for peer_id in (ME, broken, "no such peer"):
            with suppress(MappingRefused):
                RemoteArena.open(os.getpid(), peer_id).close()
        assert len(os.listdir("/proc/self/fd")) == len(before)


# Real processes


def users_of(inode: int) -> set[int]:
    """All processes that have this memory mapped."""
    found = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):  # the process has ended
            if any(line.split()[4] == str(inode) for line in maps.read_text().splitlines()):
                found.add(int(maps.parent.name))
    return found


def named_memory() -> list[os.stat_result]:
    """Shared memory that outlives processes, where other tests put semaphores and batches."""
    found = []
    for path in Path("/dev/shm").iterdir():
        with suppress(FileNotFoundError):
            found.append(path.stat())
    return found


def test_processes_read_each_other_and_nothing_is_left_when_they_are_killed() -> None:
    with started("lender", num_processes=3) as processes:
        introductions = introduce(processes)
        sums = [LENGTH // 8 * (number + 1) for number in range(3)]
        assert [read(process) for process in processes] == [sums] * 3
        mapping = introductions[0].open()
        files = [arenas_in(each.pid, each.peer_id)[0].stat() for each in introductions]
        inodes = [file.st_ino for file in files]
        pids = {each.pid for each in introductions}
        assert [users_of(inode) for inode in inodes] == [pids | {os.getpid()}, pids, pids]

        for process in processes:
            process.send_signal(signal.SIGKILL)
            process.wait()
        assert [users_of(inode) for inode in inodes] == [{os.getpid()}, set(), set()]
        assert mapping.array(Region(REGIONS_OFFSET, LENGTH), np.int64).sum() == sums[0]  # still mapped, no SIGBUS
        with pytest.raises(MappingRefused, match="it is gone"):
            introductions[0].open()
        mapping.close()
        assert users_of(inodes[0]) == set()
    assert not any(os.path.samestat(named, file) for named in named_memory() for file in files)


@pytest.mark.parametrize("doorbell", [0, 1 << 40])
def test_a_peer_that_ends_while_it_is_mapped_is_refused(doorbell: int) -> None:
    """Its memory was found, but its doorbell is gone."""
    arena = Arena(1 << 20, ME)
    arena.board.initialize(ME.encode(), doorbell)
    with pytest.raises(MappingRefused, match=f"the doorbell of peer {ME} is not in process"):
        mapping_of_me()
    arena.close()
