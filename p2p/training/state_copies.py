"""A state that is being copied, for those who are to be given it, while the loop and the script go on.

One whose tensors live on a device is fetched by a thread in pieces, through two slots, after the mark at which it is
complete. Of one in memory of the host a thread copies what the borrower wants of it (`PackedState.aside`). Nobody waits
for that but whoever is about to change the state: until all is copied, or the last piece is under way; from then on the
device waits, not the host.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np
import torch

from collectives import Array

from ..catchup.replica import Copies, Packer
from ..device import HOST, OVER, Device, Mark, MemoryShort, failures_named
from ..errors import DeviceLost
from ..net.parcels import PackedState
from ..session.device_memory import cut_of, pinned
from ..session.session import Session
from ..staging import Cut, whole
from .layouts import dense_strides, in_memory_order
from .replica_state import Lowered, lent

logger = logging.getLogger("p2p")

SLOT_BYTES: Final = 16 << 20
NUM_SLOTS: Final = 2


class StateCopies:
    """Of one replica."""

    def __init__(
        self,
        device: Device,
        device_of: Callable[[object], Device],
        slots: Sequence[Array],
        cut: Cut = whole,
        told: Callable[[DeviceLost], None] = lambda error: None,
    ) -> None:
        """None is under way.

        Args:
            device: of the model.
            device_of: where a tensor lives: parts of a state may be on the host.
            slots: two, of bytes, pinned if that can be.
            cut: for copies into them.
            told: is, before `hold` raises an error of the device.
        """
        self._device, self._device_of, self._slots, self._cut = device, device_of, slots, cut
        self._told = told
        self._lock, self._slots_are_free = threading.Lock(), threading.Lock()
        self._open: list[_Copy] = []

    def begin(
        self,
        tree: bytes,
        tensors: Sequence[torch.Tensor],
        after: Mark,
        tell: Callable[[], None],
        replicated: Sequence[int] = (),
    ) -> PackedState:
        """Begin to fetch `tensors`, as they are at `after`; `tell` is called by another thread when they are there.

        For the loop's thread. Until `hold` or `end` nobody changes the tensors.
        """
        copy = _Copy(tensors, after)
        self._start(copy, partial(self._fetch, copy), tell)
        return PackedState(tree, [each.data for each in copy.parts], copy.is_whole, replicated)

    def aside(self, tell: Callable[[], None], copy: Callable[[], None], then: Callable[[], None]) -> Callable[[], bool]:
        """As of `PackedState`, for memory of the host; `tell` is called by the thread when both are done.

        For the loop's thread. Until `hold` or `end` nobody changes what `copy` reads.
        """
        made = _Copy((), OVER)

        def work() -> None:
            copy()
            made.is_issued.set()
            then()

        self._start(made, work, tell)
        return made.is_whole

    def hold(self) -> None:
        """What the current stream is given from now on comes after all that was begun. For the training thread.

        Raises:
            DeviceLost: the device has raised an error. The copy is not whole, and is not given to anybody.
        """
        for copy in self._under_way():
            copy.is_issued.wait()
            if isinstance(copy.error, DeviceLost):
                self._told(copy.error)
            if copy.error is not None:
                raise copy.error
            self._device.hold(copy.last)

    def end(self) -> None:
        """Return when nothing is under way. For the training thread."""
        for copy in self._under_way():
            assert copy.thread is not None
            copy.thread.join()

    def _under_way(self) -> "list[_Copy]":
        with self._lock:
            return list(self._open)

    def _start(self, copy: "_Copy", work: Callable[[], None], tell: Callable[[], None]) -> None:
        with self._lock:
            self._open.append(copy)
        thread = threading.Thread(target=self._run, args=(copy, work, tell), name="shoal-copy", daemon=True)
        copy.thread = thread
        thread.start()

    def _run(self, copy: "_Copy", work: Callable[[], None], tell: Callable[[], None]) -> None:
        try:
            work()
            copy.is_over = True
            with self._lock:
                self._open.remove(copy)  # whoever is given it keeps the memory
            tell()
        except Exception as error:
            copy.error = error
        finally:
            copy.is_issued.set()

    def _fetch(self, copy: "_Copy") -> None:
        landing: deque[tuple[Mark, Array, Array]] = deque()
        with self._slots_are_free, failures_named():
            try:
                for number, (source, into, after) in enumerate(self._pieces(copy)):
                    if len(landing) == NUM_SLOTS:
                        _land(*landing.popleft())
                    slot = self._slots[number % NUM_SLOTS][: len(into)]
                    for part in self._cut(slot):
                        copy.last = self._device.fetch(source[part], slot[part], after)
                    landing.append((copy.last, slot, into))
            except MemoryShort as short:  # who trains needs that memory, and goes on
                copy.short = short
                logger.warning(
                    "a state for a joiner is not copied: of the device's memory %s, for elements of one tensor with "
                    "gaps between them; the joiner asks again, or another member",
                    short,
                )
            copy.is_issued.set()
            while landing:
                _land(*landing.popleft())

    def _pieces(self, copy: "_Copy") -> Iterator[tuple[torch.Tensor, Array, list[Mark]]]:
        """Bytes of tensors of the device, where they go, and after what. Those of the host are there at once."""
        for tensor, part in zip(copy.tensors, copy.parts, strict=True):
            if not tensor.numel():
                continue
            if self._device_of(tensor) is HOST:
                part[:] = in_memory_order(tensor).view(torch.uint8).numpy()
                continue
            flat, after, length = self._flat(tensor, copy.after), [copy.after], len(self._slots[0])
            if flat.data_ptr() != tensor.data_ptr():
                after.append(self._device.mark())  # the elements were gathered just now
            for begin in range(0, len(part), length):
                yield flat[begin : begin + length], part[begin : begin + length], after

    def _flat(self, tensor: torch.Tensor, after: Mark) -> torch.Tensor:
        """Its bytes as they lie in memory; where there are gaps, gathered by the stream of this thread.

        Raises:
            MemoryShort: the device has no room for that.
        """
        self._device.hold(after)
        if dense_strides(tensor) is not None or tensor.is_contiguous():
            return in_memory_order(tensor).view(torch.uint8)
        flat: torch.Tensor = self._device.zeros(tensor.numel(), tensor)
        flat.view(tensor.shape).copy_(tensor)
        return flat.view(torch.uint8)


def copies_of(session: Session, device: Device, tensors: Sequence[torch.Tensor]) -> Copies:
    """For a model on `device`, whose state begins with these."""
    if device is HOST:
        return StateCopies(HOST, session.device_of, ())
    num_bytes = min(SLOT_BYTES, sum(2 * tensor.nbytes for tensor in tensors))  # moments may come
    make = pinned(session, device, session.empty)
    slots = [make(max(1, num_bytes), np.dtype(np.uint8)) for _ in range(NUM_SLOTS)]
    return StateCopies(device, session.device_of, slots, cut_of(session), session.membership.interrupt)


def lender_of(session: Session, device: Device, copies: Copies, lower: Callable[[], Lowered]) -> Callable[[], Packer]:
    """As of `Replica`; `lower`: the state; `copies`: of `copies_of`."""
    assert isinstance(copies, StateCopies)

    def lend() -> Packer:
        mark, loop = device.mark(), session.loop
        tell = partial(loop.reactor.post, loop.state_copied, is_aside=True)

        def begin() -> PackedState:
            tree, tensors, replicated = lower()
            if device is HOST:
                return replace(lent(tree, tensors, replicated), aside=partial(copies.aside, tell))
            return copies.begin(tree, tensors, mark, tell, replicated)

        return begin

    return lend


class _Copy:
    """One state.

    Attributes:
        parts: the bytes of each tensor.
        short: the device had no memory for it: it is never whole.
        last: mark of the last piece that is under way; all of it, where `is_issued`.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], after: Mark) -> None:
        self.tensors, self.after = tensors, after
        self.parts = [np.empty(tensor.nbytes, np.uint8) for tensor in tensors]
        self.last: Mark = OVER
        self.is_issued = threading.Event()
        self.is_over = False
        self.short: MemoryShort | None = None
        self.error: Exception | None = None
        self.thread: threading.Thread | None = None

    def is_whole(self) -> bool:
        """Whether all parts are there.

        Raises:
            MemoryShort: they will never be.
        """
        if self.short is not None:
            raise self.short
        return self.is_over


def _land(mark: Mark, slot: Array, into: Array) -> None:
    mark.wait()
    into[:] = slot
