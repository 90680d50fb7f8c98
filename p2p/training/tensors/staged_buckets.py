"""Buckets of gradients on a device: one device buffer for each bucket, which is fetched and stored as a whole.

Marks of parameters stay on the host, where they are needed. The script receives parts of the buffer, so that no further
device memory is needed, unless the script keeps some of them.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from collectives import Array

from ...device import HOST
from ...session.operation_call import ArrayAllocator
from ...session.tensors import as_array, empty_tensor
from ...staging import Staged, num_users
from ...step.collective import AllReduce
from ...step.operation import Operation
from .buckets import Bucket, layout_of, views

FINITE = 1


@dataclass(slots=True, eq=False)
class StagedBucket(Bucket):
    """A bucket on a device. `flat` has only the values; the operation has copies of them, and the marks, on the host.

    Gradients are collected, and written into `flat` together when the last has come; those of several streams in one
    call per stream, on which their memory is reused.
    """

    _staged: Staged = field(default_factory=lambda: Staged(HOST))
    _verdict: Array = field(default_factory=lambda: np.zeros(0, np.uint8))
    _pending: dict[Hashable, dict[int, Tensor]] = field(default_factory=dict)
    """Gradients by the stream on which they came."""
    _stream: Hashable = None
    """The stream that has used `flat` last, after all others."""
    _num_own_users: int = 0
    _is_open: bool = False
    _stored_in: bytes = b""

    def set_staging(self, staged: Staged, verdict: Array) -> None:
        """Set, before the first use, the copier between device and operation, and the byte for the finiteness check."""
        self._staged, self._verdict = staged, verdict
        self._num_own_users = num_users(self.flat)
        self._stream = staged.current_stream()  # the stream that has filled it with zeros
        self.operation.on_complete = self._store

    @property
    def on_host(self) -> Sequence[Array]:
        """As `Bucket.on_host`, and the byte of the finiteness check."""
        return self.operation.input, self.operation.result, self._verdict

    def begin_step(self) -> None:
        """As `Bucket.begin_step`. The script's gradients stay valid until the first `add`."""
        Bucket.begin_step(self)
        self._pending.clear()
        self._is_open = False

    def add(self, index: int, gradient: Tensor, fraction: float, keep: float = 1.0) -> None:
        """As `Bucket.add`; the gradient may be read later."""
        if index in self.unused and fraction == 1.0:
            self._pending.setdefault(self._staged.current_stream(), {})[index] = gradient
            self.unused.discard(index)
            self.missing.discard(index)
        else:
            self._write()
            Bucket.add(self, index, gradient, fraction, keep)
        if not self.missing:
            self._write()

    def end_pass(self, keep: float) -> None:
        """As `Bucket.end_pass`."""
        if self._pending or (keep != 1.0 and self.missing - self.unused):
            self._write()
        Bucket.end_pass(self, keep)

    def check(self, index: int) -> None:
        """Does nothing: the device checks the whole buffer in `fetch`."""

    def zero_empty(self) -> None:
        """As `Bucket.zero_empty`."""
        if self._pending or self.unused:
            self._write()
        Bucket.zero_empty(self)

    def _write(self) -> None:
        """Write the collected gradients to the buffer, which the script gives up at the first call in a step.

        Further work of the current stream on the buffer is ordered after all earlier work.
        """
        self._follow()
        if not self._is_open:
            self._is_open = True
            self._handed_out, self._result = (), None
            self._staged.wait()  # copies left from an aborted step share the memory, too
            if num_users(self.flat) > self._num_own_users:
                self.flat = torch.empty_like(self.flat)
                self.inputs = views(self.flat, self.parameters)
        for stream, gradients in self._pending.items():
            with self._staged.beside(stream):
                torch._foreach_copy_([self.inputs[index] for index in gradients], [*gradients.values()])
        self._pending.clear()

    def _follow(self) -> None:
        """Order the current stream after the last one that used `flat`."""
        self._staged.order_after_stream(self._stream)
        self._stream = self._staged.current_stream()

    def fetch(self) -> None:
        """Begin to copy the full buffer, and the result of the finiteness check, to the host."""
        self._stored_in = b""
        self._follow()
        is_finite = self.flat.isfinite().all().view(torch.uint8).view(1)
        self._staged.fetch((self.flat, self._values(self.operation.input)), (is_finite, self._verdict))

    def is_ready(self) -> bool:
        """Whether the buffer was fetched, and the result of the step before was stored."""
        return self._staged.is_ready()

    def wait(self) -> None:
        """Wait until `is_ready`."""
        self._staged.wait()

    def is_finite(self) -> bool:
        """Whether all fetched values are finite."""
        return bool(self._verdict[0] == FINITE)

    def reclaim_result(self) -> None:
        """Does nothing: `_write` has done so."""

    def _store(self, view: bytes) -> None:
        """Begin to copy the complete result of a view to the device, once per view."""
        if self._stored_in != view:
            self._stored_in = view
            self._staged.store(self._values(self.operation.result), self.flat)

    def _values(self, array: Array) -> Array:
        return array[: len(self.flat)]

    def result_views(self) -> Sequence[Tensor | None]:
        """Parts of the buffer for the script, as `Bucket.result_views`."""
        self._follow()
        self._staged.order_after_stores()
        self._result, self._version = self.flat, self.flat._version
        marks = torch.from_numpy(self.operation.result[len(self.flat) :].view(f"i{self.flat.itemsize}"))
        pairs = zip(views(self.flat, self.parameters), marks.view(self.flat.dtype).tolist(), strict=True)
        self._handed_out = [part if mark else None for part, mark in pairs]
        return self._handed_out


def make_staged_bucket(
    parameters: Sequence[Tensor],
    algorithm: str | None,
    empty: ArrayAllocator = np.empty,
    *,
    make_staged: Callable[[], Staged],
) -> StagedBucket:
    """Create a bucket for `parameters` of one type; `empty` allocates host memory, `make_staged` creates the copier.

    Raises:
        MemoryShort: the device has no memory for it.
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
    bucket.set_staging(staged, empty(1, np.dtype(np.uint8)))
    bucket.begin_step()
    return bucket
