"""Sums on a device: which sums it computes, from which memory, and what waits for them."""

import mmap
import os
import secrets
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from collectives import Array, Reduction
from p2p.device import Mark
from p2p.memory.adding import Adding
from p2p.memory.arena import REGIONS_OFFSET, Arena, RemoteArena
from p2p.memory.extents import Extents
from tests.p2p.staging.standin import StandIn
from tests.p2p.staging.sums import DeviceGroup
from tests.p2p.step.group import all_reduce, enter

EXTENT = 4 * mmap.PAGESIZE
FLOAT32 = np.dtype(np.float32)
SUM = Reduction("sum", 2)


class Pair:
    """Two arenas of this process, and the sums of the first one's device."""

    def __init__(self) -> None:
        names = [secrets.token_hex(8) for _ in range(2)]
        self.own, self.other = (Arena(REGIONS_OFFSET + 4 * EXTENT, name) for name in names)
        self.mapping = RemoteArena.open(os.getpid(), names[1])
        self.device, self.extents = StandIn(0), Extents(self.own, EXTENT)
        self.adding = Adding(self.own, self.extents, EXTENT)
        self.memories = [self.own, self.mapping]

    def arrays(self, size: int) -> tuple[Array, Array, Array]:
        """An input in each arena, and a result."""
        regions = [arena.allocate(4 * size) for arena in (self.own, self.other, self.own)]
        own, _, result = [
            arena.array(region, FLOAT32)
            for arena, region in zip((self.own, self.other, self.own), regions, strict=True)
            if region is not None
        ]
        own[:] = 1
        assert regions[1] is not None
        self.other.array(regions[1], FLOAT32)[:] = 2
        return own, self.mapping.array(regions[1], FLOAT32), result

    def begin(self, given: Sequence[Array]) -> Mark | None:
        found = self.adding.sum_of(self.memories, SUM, FLOAT32)
        return None if found is None else found.begin([(0, given[0]), (1, given[1])], given[2], completes=True)

    def settle(self) -> None:
        """Finish the work of the helper thread."""
        self.adding._aside.end()

    def fill(self, arena: Arena) -> None:
        """Make all pages of an arena resident."""
        rest = arena.free_bytes - 64
        region = arena.allocate(rest)
        assert region is not None
        arena.array(region, np.uint8)[:] = 0

    def close(self) -> None:
        self.adding.end()
        self.extents.unpin()
        assert not self.device.pinned
        self.mapping.close()
        self.own.close()
        self.other.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.close()


def test_the_host_adds_until_all_that_is_read_and_written_is_registered(pair: Pair) -> None:
    given = pair.arrays(100)
    pair.fill(pair.other)
    assert pair.begin(given) is None  # no device
    pair.adding.use(pair.device)
    assert pair.begin(given) is None  # registration of the other one's memory is requested
    pair.settle()
    assert pair.begin(given) is None and len(pair.device.pinned) == 1
    pair.extents.pin(pair.device, [0])
    mark = pair.begin(given)
    assert mark is not None and np.isnan(given[2]).all()
    mark.wait()
    assert (given[2] == 3).all() and pair.device.adder.num_sums == 1


def test_a_part_whose_owner_has_not_all_pages_of_is_not_registered_until_it_has(pair: Pair) -> None:
    given = pair.arrays(100)
    pair.extents.pin(pair.device, [0])
    pair.adding.use(pair.device)
    before = os.fstat(pair.other._fd).st_blocks
    for _ in range(10):
        assert pair.begin(given) is None
        pair.settle()
    assert len(pair.device.pinned) == 1 and os.fstat(pair.other._fd).st_blocks == before
    pair.fill(pair.other)
    for _ in range(40):
        if (mark := pair.begin(given)) is not None:
            break
        pair.settle()
    assert mark is not None
    mark.wait()
    assert (given[2] == 3).all()


def test_memory_of_who_is_gone_is_read_no_more_and_released(pair: Pair) -> None:
    given = pair.arrays(100)
    pair.fill(pair.other)
    pair.adding.use(pair.device)
    pair.extents.pin(pair.device, [0])
    assert pair.begin(given) is None
    pair.settle()
    assert len(pair.device.pinned) == 2
    pair.adding.keep([pair.mapping])
    pair.settle()
    assert len(pair.device.pinned) == 2
    pair.adding.keep([])
    pair.settle()
    assert len(pair.device.pinned) == 1


def test_a_refused_registration_leaves_the_sum_to_the_host(pair: Pair) -> None:
    given = pair.arrays(100)
    pair.fill(pair.other)
    pair.extents.pin(pair.device, [0])
    pair.adding.use(pair.device)
    pair.device.refuses_every = 1
    for _ in range(5):
        assert pair.begin(given) is None
        pair.settle()
    assert len(pair.device.pinned) == 1 and pair.device.num_pins == 2  # a refused registration is not retried


def test_short_chunks_other_reductions_and_what_lies_elsewhere_are_left_to_the_host(pair: Pair) -> None:
    given, short = pair.arrays(100), pair.arrays(15)
    pair.fill(pair.other)
    pair.extents.pin(pair.device, [0])
    pair.adding.use(pair.device)
    pair.begin(given)
    pair.settle()
    assert pair.begin(short) is None and pair.begin((*given[:2], np.empty(100, np.float32))) is None
    assert pair.adding.sum_of(pair.memories, Reduction("max"), FLOAT32) is None
    assert pair.adding.sum_of(pair.memories, SUM, np.dtype(np.int64)) is None
    mark = pair.begin(given)
    assert mark is not None
    mark.wait()


def test_what_has_ended_adds_nothing_and_has_nothing_under_way(pair: Pair) -> None:
    given = pair.arrays(100)
    pair.fill(pair.other)
    pair.extents.pin(pair.device, [0])
    pair.adding.use(pair.device)
    pair.begin(given)
    pair.settle()
    assert pair.begin(given) is not None
    pair.adding.end()
    assert (given[2] == 3).all() and pair.begin(given) is None and len(pair.device.pinned) == 1
    pair.adding.use(pair.device)
    assert pair.begin(given) is None


@pytest.mark.parametrize("algorithm", ["direct", "one-shot"])
def test_a_device_adds_where_one_rank_adds_for_all_and_nowhere_else(algorithm: str) -> None:
    """On a device, a sum of two NaNs may result in the other one."""
    group = DeviceGroup()
    enter(group, 0, 1, 2)
    group.register()
    for me in group.members:
        values = group.memories[me].empty(4000, FLOAT32)
        values[:] = me
        operation = all_reduce(values, algorithm)
        operation.result = group.memories[me].empty(4000, FLOAT32)
        group.all[me].submit(operation)
        group.all[me].close()
    group.deliver()
    group.finished()
    num_sums = [device.adder.num_sums for device in group.devices]
    assert all(num_sums) if algorithm == "direct" else not any(num_sums)
    group.close()
