"""Resynchronisation of several numerics classes: in each step, all members take one slice of the replica of one member.

After a receipt of several classes, all members submit their own bytes of one of 128 slices of parameters and moments.
The view in which the operation runs determines the source (`gossip.numerics.source_of`), so there is one whichever
members died. Every member overwrites its own slice before the update. With one class no operation is sent (R21 of
PROTOCOL.md).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from collectives import Array
from gossip import View

from ...session.session import Session
from ...step.collective import Resync
from ...step.operation import Operation
from ...step.receipts import Receipt
from ..side_operations import SideOperations
from ..state.mirrors import Mirror
from ..tensors.layouts import dense_strides, in_memory_order, laid_out
from .reducer import GradientReducer

NUM_SLICES: Final = 128

LEAST_BYTES: Final = 64 << 10
"""Minimum size of a slice: distances are relative to its largest magnitude, which a few elements may not have."""

MOST_ROUNDINGS: Final = 2**12
"""Distance in roundings of a slice's largest magnitude, above which a peer has made other updates than its source."""

_ALIGNED_BYTES: Final = 16
"""Each tensor starts at a multiple of this, so that its elements are aligned in every slice."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a tensor in a slice: the bytes of `tensor` from `start` on lie at `where` in the slice."""

    tensor: Tensor
    start: int
    where: slice

    def bytes(self) -> Tensor:
        """The bytes in memory order; a view of the tensor if it has no gaps."""
        return self._flat()[self.start : self.start + self.where.stop - self.where.start]

    def write(self, raw: Tensor) -> None:
        """Write `raw` to the tensor, unseen by autograd, which may still hold tensors saved in a forward pass."""
        flat, tensor = self._flat(), self.tensor.data
        flat[self.start : self.start + raw.numel()].copy_(raw)
        if flat.data_ptr() != tensor.data_ptr():  # a copy
            tensor.copy_(laid_out(flat.view(tensor.dtype), tensor.shape, dense_strides(tensor)))

    def _flat(self) -> Tensor:
        return in_memory_order(self.tensor.data).view(torch.uint8)


class Resynchronisation(SideOperations):
    """The side operation of each step that synchronises one model between several numerics classes."""

    def __init__(
        self,
        session: Session,
        gradients: GradientReducer,
        parts: Sequence[object],
        *,
        is_whole: Callable[[], bool] = lambda: False,
    ) -> None:
        """Synchronise the parameters of `gradients`, and the moments of the optimizers among `parts`.

        `is_whole`: whether the open step synchronises all parameters, and no moments, in place of a slice.
        """
        self._is_whole = is_whole
        self._session = session
        self._gradients = gradients
        self._optimizers = [part for part in parts if isinstance(part, torch.optim.Optimizer)]
        self._operation: Operation | None = None
        self._slice: list[_Part] = []
        self._place = self._length = self._whole_bytes = 0
        self._memory: Sequence[Array] = ()
        self._mirror = Mirror(session, gradients.device)
        self._begun = -1

    def begin(self, step: int) -> None:
        """Begin to read the slice of `step`, which does not change before the update."""
        self._plan(step, self._session.history.view)
        self._begun = step

    def operations(self, step: int) -> Iterator[Operation]:
        """The operation to submit in `step`, if there are several classes."""
        self._place = self._session.num_submitted
        if self._begun != step:
            self.begin(step)
        self._begun = -1  # another call for the same step reads again
        if (operation := self._make()) is not None:
            yield operation

    def rebuild_operations(self, operations: Sequence[Operation], step: int, view: View | None) -> list[Operation]:
        """The operations of the open step, now `step`, after the state that `view` has committed was loaded."""
        kept = [each for each in operations if not each.collective.is_of_one]
        self._plan(step, view)
        if (operation := self._make()) is not None:
            kept.insert(self._place, operation)
        return kept

    def on_commit(self, receipt: Receipt) -> None:
        """After a commit, before any update: write the slice of the source to the replica."""
        if self._operation is None:
            return
        ours, theirs = (each.view(np.uint8) for each in (self._operation.input, self._operation.result))
        parts = [part for part in self._slice if not np.array_equal(ours[part.where], theirs[part.where])]
        found = self._mirror.write([theirs[part.where] for part in parts], [part.bytes() for part in parts])
        for part, raw in zip(parts, found, strict=True):
            part.write(raw)

    # The slice of a step.

    def _plan(self, step: int, view: View | None) -> None:
        """Begin to read the slice of `step`; no slice if `view`, that of the last receipt, has one class."""
        self._operation, self._slice, self._length = None, [], 0
        if view is None or not view.is_mixed:
            return
        tensors = [tensor for tensor in self._replicated() if tensor.numel()]
        starts = np.cumsum([0, *(-(-tensor.nbytes // _ALIGNED_BYTES) * _ALIGNED_BYTES for tensor in tensors)]).tolist()
        length = max(-(-starts[-1] // (1 if self._is_whole() else NUM_SLICES)), min(LEAST_BYTES, starts[-1]))
        length = -(-length // _ALIGNED_BYTES) * _ALIGNED_BYTES
        first = step % -(-starts[-1] // length) * length
        for tensor, start in zip(tensors, starts, strict=False):
            begin, end = max(start, first), min(start + tensor.nbytes, first + length)
            if begin < end:
                self._slice.append(_Part(tensor, begin - start, slice(begin - first, end - first)))
        self._length, self._whole_bytes = length, starts[-1]
        self._mirror.begin([part.bytes() for part in self._slice])

    def _make(self) -> Operation | None:
        """The operation with this peer's bytes of the slice; None: no slice."""
        if not self._length:
            return None
        if not self._memory or self._memory[0].nbytes != self._length:
            self._memory = [self._session.empty(self._length // 8, np.dtype(np.int64)) for _ in range(2)]
        mine, theirs = self._memory
        mine[:] = 0
        for part, raw in zip(self._slice, self._mirror.read(), strict=True):
            mine.view(np.uint8)[part.where] = raw
        self._operation = Operation(Resync(), mine, theirs, (self._whole_bytes,), is_far=self._is_far)
        return self._operation

    def _replicated(self) -> Iterator[Tensor]:
        """Parameters and moments, in an order that is the same on all peers."""
        yield from self._gradients.parameters
        for optimizer in () if self._is_whole() else self._optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    state = optimizer.state.get(parameter, {})
                    yield from (state[key] for key in sorted(state) if isinstance(state[key], Tensor))

    def _is_far(self) -> bool:
        """Whether this peer's slice differs from that of the source by more than roundings; see `are_far`."""
        assert self._operation is not None
        pairs = [
            [torch.from_numpy(each.view(np.uint8)[part.where]).view(part.tensor.dtype) for part in self._slice]
            for each in (self._operation.input, self._operation.result)
        ]
        by_type: dict[torch.dtype, list[tuple[Tensor, Tensor]]] = {}
        for part, ours, theirs in zip(self._slice, *pairs, strict=True):
            by_type.setdefault(part.tensor.dtype, []).append((ours, theirs))
        return any(are_far(*map(torch.cat, zip(*each, strict=True))) for each in by_type.values())


def are_far(ours: Tensor, theirs: Tensor) -> bool:
    """Whether two parts of slices differ by more than `MOST_ROUNDINGS` of the largest magnitude in `theirs`."""
    if not theirs.is_floating_point():
        return not torch.equal(ours, theirs)
    differs = (ours != theirs) & ~(ours.isnan() & theirs.isnan())
    if not differs.any():
        return False
    finite = theirs[theirs.isfinite()].double().abs()
    info = torch.finfo(theirs.dtype)
    largest = max(finite.max().item() if finite.numel() else 0.0, info.tiny)
    apart = (ours[differs].double() - theirs[differs].double()).abs()
    return not bool((apart <= MOST_ROUNDINGS * info.eps * largest).all())  # far, too, if one is NaN or infinite
