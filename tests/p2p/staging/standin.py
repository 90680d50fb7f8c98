"""A stand-in device without a GPU: memory of CPU tensors counts as its own, and its copies are as late as permitted.

The CPU computes, so a script's computations are done immediately. A copy is not:

1. It runs when its mark is waited for, or held, or at a random query whether it is over, as drawn by the seed; never at
   the call. Copies of one stream run in order, between streams at random. It reads its source then.
2. Until then its target holds poison: NaN, or bytes 0xA5 in integers.
3. After `order_after` the current stream sees the copied data, but the copy is not over: the source of a store must not
   change yet. The source of a fetch may, since later computations come after it.
4. A copy is refused if the current stream may have written its tensor after all marks that the copy comes after.
5. One thread makes all calls, except `pin`, `unpin` and `wait_for_copies`, and those of threads that copy a state;
   never the thread of a loop.
6. The memory of a copy is in one piece of pinned memory, or in none; each piece is whole pages, and disjoint from
   others; `unpin` finds no copy of it in progress. `refuses_every` k: each k-th `pin` is refused. A copy of memory that
   is not pinned is `pageable`: the host waits for it.
7. In a `capture`, and if it `is_lost`, it raises: ShoalError, and RuntimeError as torch does. Work in progress on a
   lost device never ends, and its targets are not written any more.
8. It has `capacity` bytes, if that is given, for `zeros`.
9. Scripts have streams, by name (`on`): their order is checked where it is watched (streams.py).
10. Sums (standin_adder.py) have a stream of their own, and need pinned memory for all that they read and write.

`Unordered` names the broken law. The effects of a missing wait must be visible in the results.
"""

import mmap
import random
import sys
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from collectives import Array
from p2p.device import HOST, Device, Mark, MemoryShort, PinRefused
from p2p.errors import ShoalError
from tests.p2p.staging.standin_adder import StandInAdder, Unordered
from tests.p2p.staging.streams import MAIN, Clock, Order

__all__ = ["StandIn", "Unordered"]

MOST_HAPPENED = 1000


@dataclass(eq=False)
class Written:
    """A mark of the current stream: versions of the tensors that the device knows, and the time."""

    time: int
    versions: dict[int, int]
    is_aside: bool = False
    clock: Clock = field(default_factory=dict)

    def is_over(self) -> bool:
        return True

    def wait(self) -> None:
        pass


@dataclass(eq=False)
class Copy:
    """A mark of a copy."""

    device: "StandIn"
    stream: str
    source: Array
    into: Array
    after: Sequence[Mark]
    kept: object
    has_run: bool = False
    is_held: bool = False
    is_done: bool = False
    taken: bytes = field(default=b"", repr=False)
    clock: Clock = field(default_factory=dict)

    @property
    def used(self) -> Sequence[Array]:
        """Memory that the copy reads or writes."""
        return self.source, self.into

    def is_over(self) -> bool:
        self.device.check_is_there()
        if not self.is_done and self.device.random.random() < self.device.haste:
            self.device.progress()
        if self.is_done and self.device.order is not None:
            self.device.order.waited(self.clock)
        return self.is_done

    def wait(self) -> None:
        with self.device._lock:
            self.device.check_is_there()
            if not self.is_done:
                self.device.happened.append("wait")
            while not self.is_done:
                self.device.progress()
            if self.device.order is not None:
                self.device.order.waited(self.clock)

    @property
    def may_run(self) -> bool:
        return all(each.has_run for each in self.after if isinstance(each, Copy))

    def run(self) -> None:
        self.taken = self.source.tobytes()
        self.into[...] = self.source
        self.has_run = True

    def finish(self) -> None:
        if not self.is_held and self.source.tobytes() != self.taken:
            raise Unordered(f"the source of a copy of {self.source.nbytes} bytes ({self.stream}) changed under it")
        self.is_done, self.kept = True, None
        self.source = self.into = np.empty(0, np.uint8)


class StandIn:
    """One device of the process."""

    numerics = ""
    where = "cpu"
    """Torch's name of the device."""
    empty = staticmethod(np.empty)
    """Creates an array in memory of the host, copies of which may be late."""

    def __init__(self, seed: int) -> None:
        self.begin(seed)
        self.num_copies = self.num_pins = self.refuses_every = 0
        self.pinned: dict[int, int] = {}
        """Begin and end of each piece, by address; searches use a copy, since other threads may pin meanwhile."""
        self._time = 0
        self._queues: dict[str, deque[Any]] = {"fetch": deque(), "store": deque(), "add": deque()}
        self.adder = StandInAdder(self)
        self.refused: list[Unordered] = []
        """Errors found where they could not be raised."""
        self._seen: dict[int, int] = {}
        self._stream = MAIN
        self.order: Order | None = None
        self._thread, self._lock = threading.get_ident(), threading.RLock()
        self.is_captured = self.is_lost = False
        self.capacity = sys.maxsize
        self.happened: deque[str] = deque(maxlen=MOST_HAPPENED)
        """Begun copies, which of them were pageable, and waits of the host for unfinished ones."""
        self.watched: Callable[[], Iterable[torch.Tensor]] = tuple
        """Tensors whose versions marks record, although they were not copied yet."""

    def begin(self, seed: int) -> None:
        """Use `seed` from now on."""
        self.random = random.Random(seed)
        self.haste = self.random.choice([0.0, 0.3, 1.0])

    def device_of(self, tensor: Any) -> Device:
        """For `LoopConfig`: tensors with elements are on this device."""
        return self if isinstance(tensor, torch.Tensor) and not tensor.is_meta else HOST

    def check(self) -> None:
        if self.is_captured:
            raise ShoalError("the stand-in was called while a graph is captured")

    def check_is_there(self) -> None:
        if self.is_lost:
            raise RuntimeError("CUDA error: an illegal memory access was encountered\nmay be reported late")

    def zeros(self, count: int, like: Any) -> Any:
        self.check_is_there()
        found = like.new_zeros(count)
        if found.nbytes > self.capacity:
            raise MemoryShort(found.nbytes, self.capacity)
        self.capacity -= found.nbytes
        return found

    def current_stream(self) -> Hashable:
        return self._stream

    @contextmanager
    def on(self, stream: Hashable) -> Iterator[None]:
        before, self._stream = self._stream, str(stream)
        try:
            yield
        finally:
            self._stream = before

    def mark(self) -> Mark:
        self.check()
        self.check_is_there()
        with self._lock:
            if threading.get_ident() != self._thread:  # other threads have streams of their own
                return Written(self._tick(), {}, is_aside=True)
            watched = {tensor.data_ptr(): tensor._version for tensor in self.watched()}
            clock = self.order.clock_of(self._stream) if self.order else {}
            return Written(self._tick(), self._seen | watched, clock=clock)

    def fetch(self, source: Any, into: Array, after: Sequence[Mark]) -> Mark:
        return self._copy("fetch", source, _of_tensor(source), _bytes(into), after, into)

    def store(self, source: Array, into: Any, after: Sequence[Mark]) -> Mark:
        return self._copy("store", into, _bytes(source), _of_tensor(into), after, into)

    def order_after(self, mark: Mark) -> None:
        self.check()
        self.check_is_there()
        with self._lock:
            self._tick()
            if self.order is not None and isinstance(mark, Copy | Written):
                self.order.follow(self._stream, mark.clock)
            while isinstance(mark, Copy) and not mark.has_run:
                self._run_one()
            for copy in self._queues["fetch"]:
                copy.is_held |= copy.has_run

    def pin(self, memory: Array) -> None:
        begin, end = extent(memory)
        self.num_pins += 1
        self.check_is_there()
        if not memory.flags.writeable:
            raise PinRefused("the stand-in registers no memory that may only be read")
        if begin % mmap.PAGESIZE or end % mmap.PAGESIZE or begin == end:
            raise Unordered(f"{memory.nbytes} bytes at {begin:#x} are no whole pages")
        if any(begin < other_end and other < end for other, other_end in self.pinned.copy().items()):
            raise Unordered(f"a part of {memory.nbytes} bytes at {begin:#x} is pinned already")
        memory[:: mmap.PAGESIZE].sum()  # makes all pages resident
        if self.refuses_every and self.num_pins % self.refuses_every == 0:
            raise PinRefused(f"the stand-in refuses each {self.refuses_every}th")
        self.pinned[begin] = end

    def unpin(self, memory: Array) -> None:
        begin, end = extent(memory)
        if self.is_lost:
            self.pinned.pop(begin)
        self.check_is_there()
        for copy in (each for queue in self._queues.values() for each in queue.copy()):
            for used, used_end in map(extent, copy.used):
                if used < end and begin < used_end:
                    self.refused.append(
                        Unordered(f"memory at {begin:#x} is unpinned while it is copied ({copy.stream})")
                    )
                    raise self.refused[-1]
        if self.pinned.pop(begin) != end:
            raise Unordered(f"{memory.nbytes} bytes at {begin:#x} were not pinned as a whole")

    def lose(self) -> None:
        """Lose the device: from now on all calls raise; work in progress stays unfinished."""
        with self._lock:
            self.is_lost = True
            for queue in self._queues.values():
                queue.clear()

    def wait_for_copies(self) -> None:
        with self._lock:
            while self._queues["fetch"] or self._queues["store"]:
                self.progress()

    def drain(self) -> None:
        """Let all copies end."""
        with self._lock:
            while any(self._queues.values()):
                self.progress()

    def progress(self) -> None:
        """Let the next copy of a random stream run, or end."""
        with self._lock:
            ready = [queue for queue in self._queues.values() if queue and (queue[0].has_run or queue[0].may_run)]
            queue = self.random.choice(ready)
            if queue[0].has_run:
                queue.popleft().finish()
            else:
                queue[0].run()

    def users_of(self, memory: Array) -> Iterator[Any]:
        """Work in progress that reads or writes this memory."""
        for queue in self._queues.values():
            for each in queue:
                if any(np.may_share_memory(used, memory) for used in each.used):
                    yield each

    def _run_one(self) -> None:
        waiting = (next((each for each in queue if not each.has_run), None) for queue in self._queues.values())
        self.random.choice([each for each in waiting if each is not None and each.may_run]).run()

    def _copy(self, stream: str, tensor: Any, source: Array, into: Array, after: Sequence[Mark], target: Any) -> Mark:
        self.check()
        self.check_is_there()
        with self._lock:
            return self._enqueue(stream, tensor, source, into, after, target)

    def _enqueue(
        self, stream: str, tensor: Any, source: Array, into: Array, after: Sequence[Mark], target: Any
    ) -> Mark:
        now = self._tick()
        assert source.nbytes == into.nbytes, (source.nbytes, into.nbytes)
        self._check_order(tensor, now, after, stream)
        self.check_pieces(into if stream == "fetch" else source)
        copy = Copy(self, stream, source, into, after, (tensor, target))
        if self.order is not None:
            clocks = [each.clock for each in after if isinstance(each, Copy | Written)]
            copy.clock = self.order.copied(stream, clocks, tensor, is_written=stream == "store")
        if not any(
            np.may_share_memory(read, into) for q in self._queues.values() for each in q for read in each.used[:-1]
        ):
            into[...] = 0xFF if _is_floating(target) else 0xA5
        self._queues[stream].append(copy)
        self.happened.append(stream)
        if not self.is_pinned(into if stream == "fetch" else source):
            self.happened.append("pageable")
        self.num_copies += 1
        return copy

    def _check_order(self, tensor: Any, now: int, after: Sequence[Mark], stream: str) -> None:
        place, version = tensor.data_ptr(), tensor._version
        written = _written(after)
        newest = max((mark for mark in written if not mark.is_aside), key=lambda mark: mark.time, default=None)
        if newest is None:
            raise Unordered(f"a {stream} comes after nothing that the current stream was given")
        if place not in newest.versions and threading.get_ident() != self._thread:
            return  # a thread that copies a state has just created it, or it is not watched
        if newest.versions.get(place, -1) != version and newest.time < now - 1:
            raise Unordered(f"a {stream} may come before what the current stream has written last")
        self._seen[place] = version

    def check_pieces(self, host: Array, *, is_pinned: bool = False) -> None:
        begin, end = extent(host)
        if is_pinned and not self.is_pinned(host):
            raise Unordered(f"{host.nbytes} bytes at {begin:#x} are added up, and no one piece that is pinned")
        for pinned, pinned_end in self.pinned.copy().items():
            if pinned < end and begin < pinned_end and not pinned <= begin <= end <= pinned_end:
                raise Unordered(f"a copy of {host.nbytes} bytes crosses the end of what is pinned")

    def is_pinned(self, host: Array) -> bool:
        begin, end = extent(host)
        return any(first <= begin and end <= last for first, last in self.pinned.copy().items())

    def _tick(self) -> int:
        if threading.get_ident() != self._thread and threading.current_thread().name != "shoal-copy":
            raise Unordered(f"{threading.current_thread().name} has called the device of another thread")
        self._time += threading.get_ident() == self._thread  # other threads do not affect this thread's order
        return self._time


def _written(after: Sequence[Mark]) -> list[Written]:
    found = []
    for each in after:
        found += [each] if isinstance(each, Written) else _written(each.after) if isinstance(each, Copy) else []
    return found


def extent(array: Array) -> tuple[int, int]:
    begin = array.__array_interface__["data"][0]
    return begin, begin + array.nbytes


def _bytes(array: Array) -> Array:
    assert array.flags.c_contiguous and array.ndim == 1
    return array.view(np.uint8)


def _of_tensor(tensor: Any) -> Array:
    with torch._C.DisableTorchFunction():  # this read must not be counted
        assert tensor.is_contiguous() and tensor.ndim == 1
        found: Array = tensor.detach().view(torch.uint8).numpy()
        return found


def _is_floating(target: Any) -> bool:
    return target.is_floating_point() if isinstance(target, torch.Tensor) else target.dtype.kind not in "iub"
