"""Buckets of gradients that live on a device: one buffer there for each, which is fetched and stored as a whole.

Marks of parameters stay on the host, where they are needed. What is handed out are parts of the buffer, so that no
memory of the device is needed beside it, unless the script keeps some of it.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from collectives import Array

from ...device import HOST
from ...session.operation_call import Empty
from ...session.tensors import as_array, empty_tensor
from ...staging import Staged, num_users
from ...step.collective import AllReduce
from ...step.operation import Operation
from .buckets import Bucket, layout_of, views

FINITE = 1


@dataclass(slots=True, eq=False)
class StagedBucket(Bucket):
    """A bucket of a device. `flat` has the values alone; the operation has copies of them, and the marks, on the host.

    Gradients are kept as they come, and written into `flat` in one go when the last has come; those of several streams
    in one go on each, which is where their memory is used again.
    """

    _staged: Staged = field(default_factory=lambda: Staged(HOST))
    _verdict: Array = field(default_factory=lambda: np.zeros(0, np.uint8))
    _pending: dict[Hashable, dict[int, Tensor]] = field(default_factory=dict)
    """By the stream that they came on."""
    _stream: Hashable = None
    """That has used `flat` last, after all others."""
    _num_own_users: int = 0
    _is_open: bool = False
    _stored_in: bytes = b""

    def go_by(self, staged: Staged, verdict: Array) -> None:
        """Before its first use: this is the way between the device and the operation, and a byte beside that."""
        self._staged, self._verdict = staged, verdict
        self._num_own_users = num_users(self.flat)
        self._stream = staged.stream()  # which has filled it with zeros
        self.operation.completed = self._store

    @property
    def on_host(self) -> Sequence[Array]:
        """As of others."""
        return self.operation.input, self.operation.result, self._verdict

    def begin_step(self) -> None:
        """As of others. What was handed out stays until something is added."""
        Bucket.begin_step(self)
        self._pending.clear()
        self._is_open = False

    def add(self, index: int, gradient: Tensor, fraction: float, keep: float = 1.0) -> None:
        """As of others; the gradient may be read later."""
        if index in self.empty and fraction == 1.0:
            self._pending.setdefault(self._staged.stream(), {})[index] = gradient
            self.empty.discard(index)
            self.missing.discard(index)
        else:
            self._write()
            Bucket.add(self, index, gradient, fraction, keep)
        if not self.missing:
            self._write()

    def end_pass(self, keep: float) -> None:
        """As of others."""
        if self._pending or (keep != 1.0 and self.missing - self.empty):
            self._write()
        Bucket.end_pass(self, keep)

    def check(self, index: int) -> None:
        """The device looks, at all of it, before it is fetched."""

    def zero_empty(self) -> None:
        """As of others."""
        if self._pending or self.empty:
            self._write()
        Bucket.zero_empty(self)

    def _write(self) -> None:
        """Write what has come into the buffer, which from the first time in a step on is no longer the script's.

        What the current stream does to it from now on comes after all that was done to it.
        """
        self._follow()
        if not self._is_open:
            self._is_open = True
            self._handed_out, self._result = (), None
            self._staged.wait()  # a step that came to nothing may have left copies, which share the memory, too
            if num_users(self.flat) > self._num_own_users:
                self.flat = torch.empty_like(self.flat)
                self.inputs = views(self.flat, self.parameters)
        for stream, gradients in self._pending.items():
            with self._staged.beside(stream):
                torch._foreach_copy_([self.inputs[index] for index in gradients], [*gradients.values()])
        self._pending.clear()

    def _follow(self) -> None:
        """The current stream is the next to use `flat`."""
        self._staged.follow(self._stream)
        self._stream = self._staged.stream()

    def fetch(self) -> None:
        """It is full: begin to copy it, and whether it is finite, to the host."""
        self._stored_in = b""
        self._follow()
        is_finite = self.flat.isfinite().all().view(torch.uint8).view(1)
        self._staged.fetch((self.flat, self._values(self.operation.input)), (is_finite, self._verdict))

    def is_ready(self) -> bool:
        """Whether it has been fetched, and the result of the step before stored."""
        return self._staged.is_ready()

    def wait(self) -> None:
        """Return when it is ready."""
        self._staged.wait()

    def is_finite(self) -> bool:
        """Whether all that was fetched is."""
        return bool(self._verdict[0] == FINITE)

    def take_back(self) -> None:
        """It was, before the buffer was written."""

    def _store(self, view: bytes) -> None:
        """The result is complete in a view: begin to copy it to the device, if that has not been done."""
        if self._stored_in != view:
            self._stored_in = view
            self._staged.store(self._values(self.operation.result), self.flat)

    def _values(self, array: Array) -> Array:
        return array[: len(self.flat)]

    def hand_out(self) -> Sequence[Tensor | None]:
        """For the script: parts of the buffer, as of others."""
        self._follow()
        self._staged.hold()
        self._result, self._version = self.flat, self.flat._version
        marks = torch.from_numpy(self.operation.result[len(self.flat) :].view(f"i{self.flat.itemsize}"))
        pairs = zip(views(self.flat, self.parameters), marks.view(self.flat.dtype).tolist(), strict=True)
        self._handed_out = [part if mark else None for part, mark in pairs]
        return self._handed_out


def make_staged_bucket(
    parameters: Sequence[Tensor], algorithm: str | None, empty: Empty = np.empty, *, make_staged: Callable[[], Staged]
) -> StagedBucket:
    """A bucket for `parameters` of one type; `empty` makes its memory on the host, `make_staged` its way there.

    Raises:
        MemoryShort: their device has no room for it.
    """
    num_values, staged = sum(parameter.numel() for parameter in parameters), make_staged()
    flat = staged.zeros(num_values, parameters[0].detach())
    shape = (num_values + len(parameters),)
    input, result = (empty_tensor(shape, flat.dtype, empty).zero_() for _ in range(2))
    operation = Operation(AllReduce("mean", is_weighted=True), as_array(input), as_array(result), shape, algorithm)
    layouts = [*map(layout_of, parameters)]
    bucket = StagedBucket(
        parameters, flat, views(flat, parameters), input[num_values:], operation, lambda: flat, layouts
    )
    bucket.go_by(staged, empty(1, np.dtype(np.uint8)))
    bucket.begin_step()
    return bucket
