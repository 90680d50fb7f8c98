"""Peers of several numerics classes stay near each other: each step makes one slice of the replica that of one peer.

After a receipt of several classes all submit their own bytes of one of 128 slices of parameters and moments. Whose are
taken, the view says in which the operation runs (`gossip.numerics.source_of`), so it has a source whoever died. Every
member writes them over its own before the update. With one class nothing is sent (R21 of PROTOCOL.md).
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
from ..beside import Beside
from ..state.mirrors import Mirror
from ..tensors.layouts import dense_strides, in_memory_order, laid_out
from .gradients import Gradients

NUM_SLICES: Final = 128

LEAST_BYTES: Final = 64 << 10
"""Of a slice: how far apart two are is told by their largest magnitude, which one element may not have."""

MOST_ROUNDINGS: Final = 2**12
"""Of the largest magnitude of a slice: who is further from its source has made other updates, not rounded them."""

_ALIGNED_BYTES: Final = 16
"""Each tensor begins at a multiple, so that its elements do in every slice."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Of a tensor, in a slice: `tensor` from byte `start` on is `where` in the slice."""

    tensor: Tensor
    start: int
    where: slice

    def bytes(self) -> Tensor:
        """As they lie in memory; of the tensor itself, where it has no gaps."""
        return self._flat()[self.start : self.start + self.where.stop - self.where.start]

    def write(self, raw: Tensor) -> None:
        """Put `raw` in its place, unseen by autograd, which may still hold what a forward pass has saved."""
        flat, tensor = self._flat(), self.tensor.data
        flat[self.start : self.start + raw.numel()].copy_(raw)
        if flat.data_ptr() != tensor.data_ptr():  # a copy
            tensor.copy_(laid_out(flat.view(tensor.dtype), tensor.shape, dense_strides(tensor)))

    def _flat(self) -> Tensor:
        return in_memory_order(self.tensor.data).view(torch.uint8)


class Resynchronisation(Beside):
    """Of one model: what each step sends beside its gradients, where there are several classes."""

    def __init__(
        self,
        session: Session,
        gradients: Gradients,
        parts: Sequence[object],
        *,
        is_whole: Callable[[], bool] = lambda: False,
    ) -> None:
        """Of the parameters of `gradients`, and the moments of the optimizers among `parts`.

        `is_whole`: whether the open step has all parameters, and no moments, in place of a slice.
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
        """Begin to read the slice of `step`, which stays as it is until the update."""
        self._plan(step, self._session.history.view)
        self._begun = step

    def operations(self, step: int) -> Iterator[Operation]:
        """What to submit in `step`."""
        self._place = self._session.num_submitted
        if self._begun != step:
            self.begin(step)
        self._begun = -1  # who calls this again, for the same step, has it read again
        if (operation := self._make()) is not None:
            yield operation

    def renew(self, operations: Sequence[Operation], step: int, view: View | None) -> list[Operation]:
        """Those of the open step, which is `step` now: the state that `view` has committed was loaded meanwhile."""
        kept = [each for each in operations if not each.collective.is_of_one]
        self._plan(step, view)
        if (operation := self._make()) is not None:
            kept.insert(self._place, operation)
        return kept

    def hand_out(self, receipt: Receipt) -> None:
        """A step is committed: what the source has is the replica's, before any update."""
        if self._operation is None:
            return
        ours, theirs = (each.view(np.uint8) for each in (self._operation.input, self._operation.result))
        parts = [part for part in self._slice if not np.array_equal(ours[part.where], theirs[part.where])]
        found = self._mirror.write([theirs[part.where] for part in parts], [part.bytes() for part in parts])
        for part, raw in zip(parts, found, strict=True):
            part.write(raw)

    # A slice.

    def _plan(self, step: int, view: View | None) -> None:
        """Begin to read the slice of `step`; nothing, if `view`, of the last receipt, has one class."""
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
        """This peer's bytes of the slice; None: there is none."""
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
        """In an order that is the same on all peers."""
        yield from self._gradients.parameters
        for optimizer in () if self._is_whole() else self._optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    state = optimizer.state.get(parameter, {})
                    yield from (state[key] for key in sorted(state) if isinstance(state[key], Tensor))

    def _is_far(self) -> bool:
        """Whether this peer's slice is not that of the source, but for roundings of the largest magnitude in it."""
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
    return not bool((apart <= MOST_ROUNDINGS * info.eps * largest).all())  # nor where one is NaN or infinite
