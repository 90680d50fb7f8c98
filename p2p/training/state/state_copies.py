"""Copies of a state for its receivers, made while the loop and the script continue.

A thread fetches a state on a device in pieces, through two slots, after the mark at which it is complete. For a state
in host memory a thread copies the parts that the borrower needs (`PackedState.run_in_background`). Only a thread that
is about to change the state waits: until all is copied, or until the last piece is in flight, after which the device
waits in its place.
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

from ...catchup.frozen import FrozenDiffer, begun
from ...catchup.replica import Copies, Packer
from ...device import HOST, OVER, Device, Mark, MemoryShort, failures_named
from ...errors import DeviceLost
from ...net.parcels import PackedState
from ...session.device_memory import cut_of, pinned
from ...session.session import Session
from ...staging import Cut, whole
from ..tensors.layouts import dense_strides, in_memory_order
from .replica_state import FlatState, lent

logger = logging.getLogger("p2p")

SLOT_BYTES: Final = 16 << 20
NUM_SLOTS: Final = 2


class StateCopies:
    """The pending copies of one replica's state."""

    def __init__(
        self,
        device: Device,
        device_of: Callable[[object], Device],
        slots: Sequence[Array],
        cut: Cut = whole,
        told: Callable[[DeviceLost], None] = lambda error: None,
    ) -> None:
        """Start without copies.

        Args:
            device: of the model.
            device_of: returns the device of a tensor: parts of a state may be on the host.
            slots: two byte arrays, pinned if possible.
            cut: splits copies into them.
            told: is called with an error of the device before `order_after_copies` raises it.
        """
        self._device, self._device_of, self._slots, self._cut = device, device_of, slots, cut
        self._told = told
        self._lock, self._slots_are_free = threading.Lock(), threading.Lock()
        self._open: list[_Copy] = []

    def begin(self, state: FlatState, after: Mark, tell: Callable[[], None], known: bytes = b"") -> PackedState:
        """Begin to fetch `state`, as it is at `after`; another thread calls `tell` when the copy is complete.

        For the loop's thread. Do not change the tensors before `order_after_copies` or `end`. `known`: as in
        `PackedState`.
        """
        copy = _Copy(state, after, known)
        self._start(copy, partial(self._fetch, copy), tell)
        raws = [each.data for each in copy.parts]
        return PackedState(state.tree, raws, copy.is_whole, state.replicated, frozen=state.frozen, known=known)

    def aside(self, tell: Callable[[], None], copy: Callable[[], None], then: Callable[[], None]) -> Callable[[], bool]:
        """As `PackedState.run_in_background`, for host memory: a thread runs `copy`, then `then`, then calls `tell`.

        For the loop's thread. Do not change the memory that `copy` reads before `order_after_copies` or `end`.
        """
        made = _Copy(FlatState(b"", ()), OVER)

        def work() -> None:
            copy()
            made.is_issued.set()
            then()

        self._start(made, work, tell)
        return made.is_whole

    def order_after_copies(self) -> None:
        """Order further work of the current stream after all copies that were begun. For the training thread.

        Raises:
            DeviceLost: the device has raised an error. The copy is incomplete, and is not sent.
        """
        for copy in self._under_way():
            copy.is_issued.wait()
            if isinstance(copy.error, DeviceLost):
                self._told(copy.error)
            if copy.error is not None:
                raise copy.error
            self._device.order_after(copy.last)

    def end(self) -> None:
        """Wait until all copies are complete. For the training thread."""
        for copy in self._under_way():
            assert copy.thread is not None
            copy.thread.join()

    def _under_way(self) -> "list[_Copy]":
        with self._lock:
            return list(self._open)

    def _start(self, copy: "_Copy", work: Callable[[], None], tell: Callable[[], None]) -> None:
        thread = threading.Thread(target=self._run, args=(copy, work, tell), name="shoal-copy", daemon=True)
        copy.thread = thread
        with self._lock:  # the thread takes it to remove the copy
            thread.start()  # if this raises, the copy is not open
            self._open.append(copy)

    def _run(self, copy: "_Copy", work: Callable[[], None], tell: Callable[[], None]) -> None:
        try:
            work()
            copy.is_over = True
            with self._lock:
                self._open.remove(copy)  # its receiver keeps the memory
            tell()
        except Exception as error:
            copy.error = error
        finally:
            copy.is_issued.set()

    def _fetch(self, copy: "_Copy") -> None:
        """Copy all tensors, except frozen ones that the receiver knows: only compare the digest of these."""
        frozen = sorted(copy.state.frozen) if copy.known else []
        with self._slots_are_free, failures_named():
            if frozen:
                found = begun((number, copy.parts[number].nbytes) for number in frozen)
                for piece, _ in self._landed(copy, frozen):
                    found.update(piece.data)
                if copy.lacks is None and found.digest() != copy.known:
                    copy.lacks = FrozenDiffer()
            if copy.lacks is None:
                numbers = sorted({*range(len(copy.parts))} - {*frozen})
                for piece, into in self._landed(copy, numbers, copy.is_issued.set):
                    into[:] = piece

    def _landed(
        self, copy: "_Copy", numbers: Sequence[int], issued: Callable[[], object] = bool
    ) -> Iterator[tuple[Array, Array]]:
        """Pieces of these tensors and their targets, in order, through the slots.

        `issued` is called once the last piece is in flight. Use each piece before the next one is requested.
        """
        landing: deque[tuple[Mark, Array, Array]] = deque()
        num_fetched = 0
        try:
            for source, into, after in self._pieces(copy, numbers):
                while landing and (after is None or len(landing) == NUM_SLOTS):
                    yield _arrived(*landing.popleft())
                if after is None:
                    yield source.numpy(), into
                    continue
                slot = self._slots[num_fetched % NUM_SLOTS][: len(into)]
                for part in self._cut(slot):
                    copy.last = self._device.fetch(source[part], slot[part], after)
                landing.append((copy.last, slot, into))
                num_fetched += 1
        except MemoryShort as short:  # training needs that memory, and continues
            copy.lacks = short
            logger.warning(
                "did not copy a state for a joiner: elements of one of its tensors have gaps between them, which "
                "takes memory of the device, where %s; the joiner asks again, or asks another member",
                short,
            )
        issued()
        while landing:
            yield _arrived(*landing.popleft())

    def _pieces(self, copy: "_Copy", numbers: Sequence[int]) -> Iterator[tuple[torch.Tensor, Array, list[Mark] | None]]:
        """Bytes of these tensors, their targets, and the marks to wait for; None: on the host, no wait."""
        for number in numbers:
            tensor, part = copy.state.tensors[number], copy.parts[number]
            if not tensor.numel():
                continue
            if self._device_of(tensor) is HOST:
                yield in_memory_order(tensor).view(torch.uint8), part, None
                continue
            flat, after, length = self._flat(tensor, copy.after), [copy.after], len(self._slots[0])
            if flat.data_ptr() != tensor.data_ptr():
                after.append(self._device.mark())  # the elements were gathered just now
            for begin in range(0, len(part), length):
                yield flat[begin : begin + length], part[begin : begin + length], after

    def _flat(self, tensor: torch.Tensor, after: Mark) -> torch.Tensor:
        """The bytes of a tensor in memory order; gathered by this thread's stream if there are gaps.

        Raises:
            MemoryShort: the device has no memory for gathering.
        """
        self._device.order_after(after)
        if dense_strides(tensor) is not None or tensor.is_contiguous():
            return in_memory_order(tensor).view(torch.uint8)
        flat: torch.Tensor = self._device.zeros(tensor.numel(), tensor)
        flat.view(tensor.shape).copy_(tensor)
        return flat.view(torch.uint8)


def copies_of(session: Session, device: Device, tensors: Sequence[torch.Tensor]) -> Copies:
    """Create the copies of a model on `device`; `tensors`: of its initial state."""
    if device is HOST:
        return StateCopies(HOST, session.device_of, ())
    num_bytes = min(SLOT_BYTES, sum(2 * tensor.nbytes for tensor in tensors))  # moments may come
    make = pinned(session, device, session.empty)
    slots = [make(max(1, num_bytes), np.dtype(np.uint8)) for _ in range(NUM_SLOTS)]
    return StateCopies(device, session.device_of, slots, cut_of(session), session.membership.interrupt)


def lender_of(session: Session, device: Device, copies: Copies, lower: Callable[[], FlatState]) -> Callable[[], Packer]:
    """The `lender` of a `Replica`; `lower` returns the state; `copies`: the result of `copies_of`."""
    assert isinstance(copies, StateCopies)

    def lend() -> Packer:
        mark, loop = device.mark(), session.loop
        tell = partial(loop.reactor.post, loop.state_copied, is_aside=True)

        def begin(known: bytes) -> PackedState:
            state = lower()
            if device is HOST:
                return replace(lent(state), run_in_background=partial(copies.aside, tell), known=known)
            return copies.begin(state, mark, tell, known)

        return begin

    return lend


class _Copy:
    """The copy of one state.

    Attributes:
        parts: the bytes of each tensor.
        known: as in `PackedState`.
        lacks: why the copy stays incomplete: too little device memory, or frozen tensors that differ from `known`.
        last: mark of the last piece in flight; of the whole copy once `is_issued` is set.
    """

    def __init__(self, state: FlatState, after: Mark, known: bytes = b"") -> None:
        self.state, self.after, self.known = state, after, known
        self.parts = [np.empty(tensor.nbytes, np.uint8) for tensor in state.tensors]
        self.last: Mark = OVER
        self.is_issued = threading.Event()
        self.is_over = False
        self.lacks: MemoryShort | FrozenDiffer | None = None
        self.error: Exception | None = None
        self.thread: threading.Thread | None = None

    def is_whole(self) -> bool:
        """Whether the copy is complete.

        Raises:
            MemoryShort, FrozenDiffer: it never will be.
        """
        if self.lacks is not None:
            raise self.lacks
        return self.is_over


def _arrived(mark: Mark, slot: Array, into: Array) -> tuple[Array, Array]:
    mark.wait()
    return slot, into
