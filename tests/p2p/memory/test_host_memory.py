import logging
import mmap
import os
import resource
import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
import pytest

from collectives import Reduction
from gossip import Member, View
from p2p.host.memory_left import available_bytes
from p2p.memory.arena import MappingRefused, RemoteArena
from p2p.memory.board import tag_of
from p2p.memory.host_memory import HostMemory, least_bytes
from p2p.memory.shared_run import SharedRun
from p2p.memory.shared_runner import RunState
from tests.gossip.members import view_of
from tests.p2p.memory.machine import SAME, SMALL_PIECES, all_reduce_of, finish
from tests.p2p.memory.processes import arenas_in

SIZE = 64 * SMALL_PIECES.first_bytes
LEAST_BYTES = least_bytes(SMALL_PIECES)
ME = os.getpid()


def members(number: int) -> list[Member]:
    """New members, since arenas are found by the names of peers."""
    return [Member(secrets.token_hex(8), 1) for _ in range(number)]


class Peers:
    """The host_memory of several members, all in this process."""

    def __init__(self, *sizes: int) -> None:
        self.members = members(len(sizes))
        self.all = [
            HostMemory(member.peer_id, size, SMALL_PIECES) for member, size in zip(self.members, sizes, strict=True)
        ]

    def map_all(self) -> list[list[bool]]:
        """Map all memories; returns which of the others each can read."""
        return [
            [host_memory.map(other, ME) for other in self.members if other != own]
            for own, host_memory in zip(self.members, self.all, strict=True)
        ]

    def close(self) -> None:
        for host_memory in self.all:
            host_memory.close()


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def peers_of(stack: ExitStack, *sizes: int) -> Peers:
    peers = Peers(*sizes)
    stack.callback(peers.close)
    return peers


def tag_in(mapping: RemoteArena) -> int:
    return mapping.board.tag[0]


# Without an arena


def test_who_wants_no_arena_has_none_and_reads_no_other(opened: ExitStack, caplog: pytest.LogCaptureFixture) -> None:
    peers = peers_of(opened, 0, SIZE)
    assert peers.map_all() == [[False], [False]]
    assert arenas_in(ME, peers.members[0].peer_id) == []
    peers.all[0].install(view_of(2, *peers.members))
    peers.all[0].forget(peers.members[1])
    assert [record.levelname for record in caplog.records] == []


@pytest.mark.parametrize("size", [2 * SIZE, 1 << 40])
def test_who_is_refused_an_arena_says_so_and_goes_on_without(
    opened: ExitStack, caplog: pytest.LogCaptureFixture, size: int
) -> None:
    fds = len(os.listdir("/proc/self/fd"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SIZE, hard))
    try:
        peers = peers_of(opened, size)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert f"cannot make an arena of {size} bytes: File too large; make it smaller" in record.getMessage()
    assert not peers.all[0].map(members(1)[0], ME)
    assert len(os.listdir("/proc/self/fd")) == fds


def test_who_has_no_room_for_the_slots_says_so_and_goes_on_without(
    opened: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    peers = peers_of(opened, LEAST_BYTES - mmap.PAGESIZE, SIZE)
    (record,) = caplog.records
    assert f"arena_bytes must be {LEAST_BYTES} at least, or 0" in record.getMessage()
    assert arenas_in(ME, peers.members[0].peer_id) == []
    assert peers.map_all() == [[False], [False]]


def test_an_arena_costs_no_more_than_its_slots(opened: ExitStack) -> None:
    peers = peers_of(opened, 1 << 40)
    (path, *_) = arenas_in(ME, peers.members[0].peer_id)
    assert LEAST_BYTES <= path.stat().st_blocks * 512 < LEAST_BYTES + 16 * mmap.PAGESIZE < available_bytes()


# Others


def test_peers_read_each_other_if_they_can(opened: ExitStack, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    peers = peers_of(opened, SIZE, SIZE, 0)
    assert peers.map_all() == [[True, False], [True, False], [False, False]]
    assert [record.levelname for record in caplog.records] == ["INFO"] * 2
    assert f"peer {peers.members[2]} is reached through sockets only: there is no arena" in caplog.text


def test_who_is_no_such_process_is_not_read(opened: ExitStack) -> None:
    peers = peers_of(opened, SIZE, SIZE)
    assert not peers.all[0].map(peers.members[1], 1 << 30)
    assert peers.all[0].map(peers.members[1], ME)


def test_who_is_forgotten_is_held_no_longer_than_the_view_in_which_it_is(opened: ExitStack) -> None:
    peers = peers_of(opened, SIZE, SIZE)
    peers.map_all()
    (one, other), view = peers.all, view_of(2, *peers.members)
    one.install(view)
    one.forget(peers.members[1])
    one.forget(peers.members[1])
    other.close()
    peers.all.remove(other)
    assert arenas_in(ME, peers.members[1].peer_id) != []
    assert one.runner(view, peers.members[0]) is not None
    one.install(view_of(3, peers.members[0]))
    assert arenas_in(ME, peers.members[1].peer_id) == []


def test_who_is_not_in_the_installed_view_is_let_go_at_once(opened: ExitStack) -> None:
    """Found by churn: memory of members that had died in the previous view was held until the view after the next."""
    peers = peers_of(opened, SIZE, SIZE)
    peers.map_all()
    (one, other), (me, dead) = peers.all, peers.members
    one.install(view_of(2, me, dead))
    other.close()
    peers.all.remove(other)
    one.install(view_of(3, me))
    one.forget(dead)
    assert arenas_in(ME, dead.peer_id) == []


def test_others_see_which_view_is_installed(opened: ExitStack) -> None:
    peers, seen = peers_of(opened, SIZE), []
    mapping = RemoteArena.open(ME, peers.members[0].peer_id)
    views = [view_of(2, *peers.members), view_of(3, *peers.members)]
    for view in (views[0], None, views[1]):
        peers.all[0].install(view)
        seen.append(tag_in(mapping))
    assert seen == [tag_of(views[0].hash), 0, tag_of(views[1].hash)]
    assert len(set(seen)) == 3
    peers.all[0].close()
    peers.all.clear()
    assert tag_in(mapping) == 0


def test_nothing_is_found_when_it_is_closed() -> None:
    peers = Peers(SIZE, SIZE)
    peers.map_all()
    peers.close()
    for member in peers.members:
        assert arenas_in(ME, member.peer_id) == []
        with pytest.raises(MappingRefused, match="there is no arena"):
            RemoteArena.open(ME, member.peer_id)


def add_up(peers: Peers, view: View) -> list[float]:
    """The sums of the ranks + 1 that the members of `view` compute."""
    own = {member: host_memory for member, host_memory in zip(peers.members, peers.all, strict=True)}
    for member in view.members:
        own[member].install(view)
    group = [own[member].runner(view, member) for member in view.members]
    results = [np.zeros(1000) for _ in group]
    runs = []
    for rank, sharing in enumerate(group):
        values = np.full(1000, rank + 1.0)
        program_of = all_reduce_of(sharing, "direct", values)
        runs.append(SharedRun(program_of, SAME, values, results[rank], Reduction()))
        sharing.enqueue(runs[-1])

    def is_done(rank: int) -> bool:
        group[rank].advance()
        return runs[rank].done

    finish(Random(0), *(partial(is_done, rank) for rank in range(len(group))))
    return [float(value) for result in results for value in set(result.tolist())]


def test_members_of_one_view_after_the_other_share_in_rank_order(opened: ExitStack) -> None:
    peers = peers_of(opened, SIZE, SIZE, SIZE)
    peers.map_all()
    a, b, c = peers.members
    assert add_up(peers, view_of(2, a, b, c)) == [6.0] * 3
    assert add_up(peers, view_of(3, c, a)) == [3.0] * 2
    assert add_up(peers, view_of(4, b, c, a)) == [6.0] * 3


# After the end


def test_who_has_closed_takes_memory_from_the_heap_and_no_file_grows(opened: ExitStack, tmp_path: Path) -> None:
    """The descriptor of the arena may have been reused for a file by then."""
    peers = peers_of(opened, SIZE)
    peers.close()
    files = [opened.enter_context((tmp_path / str(number)).open("wb")) for number in range(20)]
    array = peers.all[0].empty(1000, np.dtype(np.float32))
    assert array.size == 1000 and all(os.fstat(file.fileno()).st_size == 0 for file in files)


def test_in_a_view_of_a_lower_number_what_stood_there_is_not_taken_for_published(opened: ExitStack) -> None:
    """A peer that returns in another lineage keeps its arena."""
    peers = peers_of(opened, SIZE, SIZE)
    own, other = peers.all
    peers.map_all()
    other.install(view_of(50, *peers.members))
    for host_memory in (own, other):
        host_memory.install(view_of(3, *peers.members))
    sharings = [
        host_memory.runner(view_of(3, *peers.members), member)
        for member, host_memory in zip(peers.members, peers.all, strict=True)
    ]
    values = np.ones(4, np.float32)
    program_of = all_reduce_of(sharings[0], "one-shot", values)
    run = SharedRun(program_of, SAME, values, np.empty_like(values), Reduction("sum", 2))
    sharings[0].enqueue(run)
    assert sharings[0].advance() is RunState.WAITING
