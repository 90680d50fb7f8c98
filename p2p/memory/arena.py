"""The arena: one piece of memory per peer, which all peers of this host can read.

A memfd: nothing is left behind whoever is killed. Its first page is the board (board.py), the second a table of digests
(operands.py); the rest is given out in regions. Its size is a limit: the kernel is asked for the pages of a region
before it is given out, so nobody who writes or reads it is ever hit by SIGBUS, and what is not given out costs nothing,
neither at the start nor when the kernel takes it back from the dead. It is sealed against shrinking and growing.

Another peer finds it among the descriptors of its process by the name, maps it read-only, and is sure by the nonce that
it is the right one: neither a process id nor a host's name is taken for granted (containers share neither, and both are
used again).

What a device has registered of it is in extents.py. Left out: huge pages.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import stat
import weakref
from bisect import bisect
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import cache
from typing import Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from collectives import Array

from ..errors import ShoalError
from ..host.memory_left import memory_bytes
from .board import BOARD_BYTES, LINE_BYTES, Board
from .doorbell import Doorbell, RemoteDoorbell, link_of

TABLE_BYTES: Final = 4096
"""Digests of the chunks of one result."""
DIGESTS_OFFSET: Final = BOARD_BYTES
REGIONS_OFFSET: Final = DIGESTS_OFFSET + TABLE_BYTES
"""The first region begins here."""

_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_MAX_KEPT_ARRAYS: Final = 1024  # making one anew costs a microsecond; the same regions are lent again and again
_NAME: Final = "shoal-{}"
_DENIED: Final = errno.EPERM, errno.EACCES, errno.ENOSYS
_TOO_LARGE: Final = errno.EFBIG, errno.ENOMEM, errno.ENOSPC, errno.EINVAL, errno.EOVERFLOW
_mapped: Final[weakref.WeakSet[mmap.mmap]] = weakref.WeakSet()
"""Mappings that are removed in a forked child."""


class ArenaError(ShoalError):
    """This peer cannot have an arena. Sockets still work."""


class MappingRefused(ShoalError):
    """Another peer's memory cannot be read here. Sockets can still reach it."""


class Region(NamedTuple):
    """A part of an arena, in bytes."""

    offset: int
    length: int


class Memory:
    """An arena as it is mapped here: its board, and arrays over its regions. An array keeps the memory alive."""

    def __init__(self, mapped: mmap.mmap) -> None:
        self._mapped = mapped
        self._arrays: dict[tuple[Region, npt.DTypeLike], Array] = {}
        self.size = len(mapped)
        self._start = np.frombuffer(mapped, np.uint8).ctypes.data
        self.board = Board(memoryview(mapped)[:BOARD_BYTES])

    def array(self, region: Region, dtype: npt.DTypeLike) -> Array:
        """The elements that fill `region`, in place.

        Raises:
            ValueError: there is no such region, or it holds no whole number of elements, or not aligned ones.
        """
        if (known := self._arrays.get((region, dtype))) is not None:
            return known
        key, dtype = (region, dtype), np.dtype(dtype)
        offset, length = region
        if not (BOARD_BYTES <= offset <= offset + length <= self.size) or offset % dtype.itemsize:
            raise ValueError(f"an arena of {self.size} bytes has no region {offset}+{length} of {dtype}")
        count, rest = divmod(length, dtype.itemsize)
        if rest:
            raise ValueError(f"{length} bytes are no whole number of {dtype}")
        if len(self._arrays) >= _MAX_KEPT_ARRAYS:
            self._arrays.clear()
        self._arrays[key] = array = np.frombuffer(self._mapped, dtype, count, offset)
        return array

    def region_of(self, array: Array) -> Region | None:
        """The region of a contiguous `array`, if it lies in this arena, aligned to its elements."""
        offset = array.__array_interface__["data"][0] - self._start
        is_here = REGIONS_OFFSET <= offset < self.size and not offset % array.itemsize
        return Region(offset, array.nbytes) if is_here else None

    def close(self) -> None:
        """Use it no more; the memory itself goes with the last array."""
        self._arrays.clear()
        del self._mapped, self.board


class Arena(Memory):
    """The memory of this peer. Regions are given out and taken back by one thread.

    Attributes:
        doorbell: others ring it when there is something new in their memory.
    """

    def __init__(self, size: int, peer_id: str) -> None:
        """Take the board.

        Args:
            size: limit in bytes, a multiple of the page size, with room for board, table and something else.
            peer_id: 16 hex digits, drawn at random by this process: under this name others find the arena.

        Raises:
            ArenaError: there is no such memory.
        """
        if size <= REGIONS_OFFSET or size % mmap.PAGESIZE:
            raise ValueError(f"an arena has whole pages, {REGIONS_OFFSET} bytes and more, got {size}")
        with ExitStack() as undo:
            try:
                self._fd = _memory_file(_NAME.format(peer_id))
                undo.callback(os.close, self._fd)
                self.doorbell = Doorbell()
                undo.callback(self.doorbell.close)
                os.ftruncate(self._fd, size)
                os.posix_fallocate(self._fd, 0, REGIONS_OFFSET)
                mapped = mmap.mmap(self._fd, size)
                leave_out_of_forks(mapped)
                super().__init__(mapped)
                self.board.initialize(peer_id.encode(), self.doorbell.number)
                fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, _SEALS)
            except OSError as error:
                raise _no_memory(size, error) from error
            undo.pop_all()
        self._free = [Region(REGIONS_OFFSET, size - REGIONS_OFFSET)]

    @property
    def free_bytes(self) -> int:
        return sum(region.length for region in self._free)

    def allocate(self, length: int) -> Region | None:
        """The first place where `length` bytes fit, on a cache line of its own.

        None: there is no such place, or this machine, or a cgroup, leaves no memory to fill it.
        """
        rounded = align(length)
        if rounded > memory_bytes():  # asking the kernel instead would have it kill somebody to make room
            return None
        for index, (offset, free) in enumerate(self._free):
            if rounded <= free:
                try:
                    os.posix_fallocate(self._fd, offset, rounded)
                except OSError:
                    return None
                rest = Region(offset + rounded, free - rounded)
                self._free[index : index + 1] = [rest] if rest.length else []
                return Region(offset, length)
        return None

    def fill(self, region: Region) -> bool:
        """Take all pages of a region that is whole pages, whoever has parts of it; whether they are to be had."""
        if region.length > memory_bytes():
            return False
        try:
            os.posix_fallocate(self._fd, *region)
        except OSError:
            return False
        return True

    def free(self, region: Region) -> None:
        """Take back what `allocate` gave. Nobody may read it any more."""
        offset, end = region.offset, region.offset + align(region.length)
        index = bisect(self._free, region)
        assert index == 0 or _end(self._free[index - 1]) <= offset, f"{region} is free"
        assert index == len(self._free) or end <= self._free[index].offset, f"{region} is free"
        if index < len(self._free) and self._free[index].offset == end:
            end = _end(self._free.pop(index))
        if index and _end(self._free[index - 1]) == offset:
            index -= 1
            offset = self._free.pop(index).offset
        self._free.insert(index, Region(offset, end - offset))

    def lend(self, region: Region, dtype: npt.DTypeLike, ended: Callable[[Region], None]) -> Array:
        """As `array`; `ended` is called, by any thread, when neither it nor a view of it is left."""
        span = _Span(self.array(region, dtype))
        weakref.finalize(span, ended, region).atexit = False
        return np.asarray(span)

    def close(self) -> None:
        """Give up the own mapping and the descriptor; peers keep what they have mapped."""
        fd, self._fd, self._free = self._fd, -1, []
        os.close(fd)
        self.doorbell.close()
        super().close()


class _Span:
    """The base object that all views of one array share."""

    def __init__(self, array: Array) -> None:
        self._array = array
        self.__array_interface__ = array.__array_interface__


class Slots:
    """Two regions for small inputs, taken in turns: the last but one has been read by all."""

    def __init__(self, regions: tuple[Region, Region]) -> None:
        self._regions = regions
        self._turn = 0

    @classmethod
    def of(cls, arena: Arena, slot_bytes: int) -> Self | None:
        """None: there is no room for both."""
        first = arena.allocate(slot_bytes)
        second = None if first is None else arena.allocate(slot_bytes)
        if first is None or second is None:
            if first is not None:
                arena.free(first)
            return None
        return cls((first, second))

    def take(self, length: int) -> Region:
        """A place for the next small input."""
        self._turn ^= 1
        slot = self._regions[self._turn]
        assert length <= slot.length, f"{length} bytes into {slot}"
        return Region(slot.offset, length)


class RemoteArena(Memory):
    """The memory of another peer of this host, read-only.

    Attributes:
        remote_doorbell: of its owner.
        owner: process and peer_id, under which it was found.
        inode: its number among files in memory.
    """

    remote_doorbell: RemoteDoorbell
    owner: tuple[int, str]
    inode: int

    @classmethod
    def open(cls, pid: int, peer_id: str) -> Self:
        """Map the arena of a peer that says it is process `pid`. Nothing of that is trusted.

        Raises:
            MappingRefused: there is none, or it is not ours to read. The reason is a sentence.
        """
        name = f"the arena of peer {peer_id} in process {pid}"
        try:
            opened = find_arena(pid, peer_id)
        except FileNotFoundError:
            raise MappingRefused(f"there is no process {pid}: it is gone, or lives in another container") from None
        except OSError as error:
            raise MappingRefused(f"{name} cannot be opened: {error.strerror}; it may be of another user") from error
        if opened is None:
            raise MappingRefused(f"there is no {name.removeprefix('the ')}: it has none, or is not that process")
        try:
            mapped = mmap.mmap(opened, _checked_size(opened, name), access=mmap.ACCESS_READ)
            leave_out_of_forks(mapped)
            inode = os.fstat(opened).st_ino
        except OSError as error:
            raise MappingRefused(f"{name} cannot be mapped: {error.strerror}") from error
        finally:
            os.close(opened)
        mapping = cls(mapped)
        mapping.owner, mapping.inode = (pid, peer_id), inode
        if not mapping.board.is_board_of(peer_id.encode()):
            raise MappingRefused(f"{name} is laid out by another version of shoal")
        try:  # it may end just now; and with both ends open, nobody who rings for the dead has SIGPIPE
            remote_doorbell = _find(f"/proc/{pid:d}/fd", link_of(mapping.board.doorbell), os.O_RDWR)
        except OSError as error:
            raise MappingRefused(f"the doorbell of peer {peer_id} cannot be opened: {error.strerror}") from error
        if remote_doorbell is None:
            raise MappingRefused(f"the doorbell of peer {peer_id} is not in process {pid}: that process is ending")
        mapping.remote_doorbell = RemoteDoorbell(remote_doorbell)
        return mapping


def find_arena(pid: int, peer_id: str, mode: int = os.O_RDONLY) -> int | None:
    """Open the arena of a peer, which says that it is process `pid`: a descriptor. None: that has no such arena.

    Raises:
        OSError: nobody may look into that process, or there is none.
    """
    return _find(f"/proc/{pid:d}/fd", f"/memfd:{_NAME.format(peer_id)} (deleted)", mode)


def align(length: int) -> int:
    """`length`, rounded up to whole cache lines; never 0, so that regions differ."""
    return max(-(-length // LINE_BYTES), 1) * LINE_BYTES


def _end(region: Region) -> int:
    return region.offset + region.length


def leave_out_of_forks(mapped: mmap.mmap) -> None:
    """Or a forked child would keep the memory."""
    mapped.madvise(mmap.MADV_DONTFORK)
    _mapped.add(mapped)
    _watch_forks()


@cache
def _watch_forks() -> None:
    os.register_at_fork(after_in_child=_unmap_never)


def _unmap_never() -> None:
    """In a forked child something else may lie there, and would be unmapped with the last reference to these."""
    for mapped in list(_mapped):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(mapped))


def _memory_file(name: str) -> int:
    try:
        return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        who = "; a filter of system calls (seccomp) may deny it" if error.errno in _DENIED else ""
        raise ArenaError(f"cannot make an arena: memfd_create fails ({error.strerror}){who}") from error


def _no_memory(size: int, error: OSError) -> ArenaError:
    advice = "; make it smaller" if error.errno in _TOO_LARGE else ""
    return ArenaError(f"cannot make an arena of {size} bytes: {error.strerror}{advice}")


def _find(folder: str, link: str, mode: int) -> int | None:
    """Open the descriptor in `folder` that is a link to `link`; the last one, if there are several."""
    for name in sorted(os.listdir(folder), key=int, reverse=True):
        with suppress(FileNotFoundError):
            if os.readlink(f"{folder}/{name}") == link:
                return os.open(f"{folder}/{name}", mode | os.O_CLOEXEC | os.O_NONBLOCK)
    return None


def _checked_size(fd: int, name: str) -> int:
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        raise MappingRefused(f"{name} is no memory of this user")
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:  # no memfd
        seals = 0
    if seals & _SEALS != _SEALS or status.st_size < REGIONS_OFFSET:
        raise MappingRefused(f"{name} is not sealed, or too short: it could shrink while it is read")
    return status.st_size
