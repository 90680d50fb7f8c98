"""The arena: one piece of memory per peer, which all peers of this host can read.

A memfd: it has no name, so nothing is left behind whoever is killed. It is allocated in full at the start and sealed
against shrinking, so no reader is ever hit by SIGBUS, and against growing: running out is back-pressure, not
allocation. Its first page is the board (board.py), the rest is given out in regions.

Another peer maps it read-only through `/proc/PID/fd/N` and proves by the nonce that it is the right one: neither a
process id nor a host's name is taken for granted (containers share neither, and both are used again).

Left out: page-locking for CUDA; huge pages; the memory limit of a cgroup, which is told from the machine's only by
being killed.
"""

import fcntl
import mmap
import os
import secrets
import stat
from bisect import bisect
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from .board import BOARD_BYTES, LINE_BYTES, NONCE_BYTES, Board
from .errors import ShoalError

Array = npt.NDArray[Any]

_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_MAX_KEPT_ARRAYS: Final = 1024  # making one anew costs a microsecond; the same regions are lent again and again
_MAX_PID: Final = 1 << 22  # of Linux


class ArenaError(ShoalError):
    """This peer cannot have an arena. It can still use sockets."""


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

    def close(self) -> None:
        """Use it no more; the memory itself goes with the last array."""
        self._arrays.clear()
        del self._mapped, self.board


class Arena(Memory):
    """The memory of this peer. Regions are given out and taken back by one thread.

    Attributes:
        nonce: what proves to others that they have mapped this arena.
        fd: under which they find it, in this process.
    """

    def __init__(self, size: int) -> None:
        """Allocate `size` bytes, a multiple of the page size, the board included.

        Raises:
            ArenaError: there is no such memory.
        """
        if size < 2 * BOARD_BYTES or size % mmap.PAGESIZE:
            raise ValueError(f"an arena has whole pages, two at least, got {size} bytes")
        available = available_bytes()
        if size > available:  # asking the kernel instead would have it kill somebody to make room
            raise ArenaError(f"no arena of {size} bytes can be had: {available} are available; make it smaller")
        self.nonce = secrets.token_bytes(NONCE_BYTES)
        try:
            self.fd = os.memfd_create("shoal-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as error:
            raise _no_memory(size, error) from error
        try:
            os.posix_fallocate(self.fd, 0, size)
            super().__init__(mmap.mmap(self.fd, size))
            self.board.sign(self.nonce)
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEALS)
        except OSError as error:
            os.close(self.fd)
            raise _no_memory(size, error) from error
        self._free = [Region(BOARD_BYTES, size - BOARD_BYTES)]

    @property
    def free_bytes(self) -> int:
        return sum(region.length for region in self._free)

    def allocate(self, length: int) -> Region | None:
        """The first place where `length` bytes fit, on a cache line of its own; None: wait until some are freed."""
        rounded = align(length)
        for index, (offset, free) in enumerate(self._free):
            if rounded <= free:
                rest = Region(offset + rounded, free - rounded)
                self._free[index : index + 1] = [rest] if rest.length else []
                return Region(offset, length)
        return None

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

    def close(self) -> None:
        """Give up the own mapping and the descriptor; peers keep what they have mapped."""
        os.close(self.fd)
        super().close()


class Slots:
    """Two regions for the small inputs of one group, taken in turns: the last but one has been read by all."""

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


class Mapping(Memory):
    """The memory of another peer of this host, read-only."""

    @classmethod
    def open(cls, pid: int, fd: int, size: int, nonce: bytes) -> Self:
        """Map what the peer says of its arena: its process, descriptor, size and nonce. Nothing of it is trusted.

        Raises:
            MappingRefused: it is not what the peer said, or not ours to read. The reason is a sentence.
        """
        if not (0 < pid <= _MAX_PID and 0 <= fd < 1 << 31 and size >= BOARD_BYTES and len(nonce) == NONCE_BYTES):
            raise MappingRefused(f"no arena is descriptor {fd} of process {pid} with {size} bytes")
        name = f"descriptor {fd} of process {pid}"
        opened = _open_readable(f"/proc/{pid}/fd/{fd}", name)
        try:
            _check_sealed(opened, size, name)
            mapped = mmap.mmap(opened, size, access=mmap.ACCESS_READ)
        except OSError as error:
            raise MappingRefused(f"{name} cannot be mapped: {error.strerror}") from error
        finally:
            os.close(opened)
        mapping = cls(mapped)
        if not mapping.board.is_signed(nonce):
            raise MappingRefused(
                f"{name} is the arena of another peer, or of another version: its nonce is not the one"
            )
        return mapping


def align(length: int) -> int:
    """`length`, rounded up to whole cache lines; never 0, so that regions differ."""
    return max(-(-length // LINE_BYTES), 1) * LINE_BYTES


def available_bytes() -> int:
    """What this machine could give without swapping."""
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(fields["MemAvailable"].split()[0]) * 1024


def _end(region: Region) -> int:
    return region.offset + region.length


def _no_memory(size: int, error: OSError) -> ArenaError:
    return ArenaError(f"no arena of {size} bytes can be had: {error.strerror}; make it smaller")


def _open_readable(path: str, name: str) -> int:
    try:
        if not _is_private_file(os.stat(path)):  # before it is opened: that would wait for the writer of a pipe
            raise MappingRefused(f"{name} is no memory of this user")
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise MappingRefused(f"there is no {name}: it is gone, or lives on another host or in a container") from None
    except OSError as error:
        reason = f"{error.strerror}; it may be of another user"
        raise MappingRefused(f"{name} cannot be opened: {reason}") from error


def _check_sealed(fd: int, size: int, name: str) -> None:
    status = os.fstat(fd)
    if not _is_private_file(status):  # another one by now
        raise MappingRefused(f"{name} is no memory of this user")
    if status.st_size != size:
        raise MappingRefused(f"{name} has {status.st_size} bytes, its owner said {size}")
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:  # no memfd
        seals = 0
    if seals & _SEALS != _SEALS:
        raise MappingRefused(f"{name} is not sealed: it could shrink while it is read")


def _is_private_file(status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
