"""Comparison of tensors that are not averaged but should be equal on all members; logged once.

Parameters without a gradient may still change with each peer's own samples (prototypes, an average of features), and
so may models in `extra` (running statistics that `update_bn` computes from a part of the data).
"""

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import torch
import xxhash
from torch import Tensor, nn

from gossip import View

from ...step.collective import AllGather
from ...step.operation import Operation
from ...step.receipts import Receipt
from ..side_operations import SideOperations, first_difference
from ..state.mirrors import Mirror
from ..state.replica_state import Stateful
from ..tensors.layouts import in_memory_order

logger = logging.getLogger("p2p")

NUM_TURNS: Final = 16
"""Number of steps in which each tensor is compared once."""
WINDOW_BYTES: Final = 1 << 14
"""Bytes of a tensor that are compared at a time, each time in another place: changes mostly affect the whole tensor."""

ADVICE: Final = (
    "%s differs between peers %s and %s in step %d (digests %016x and %016x). Nothing averages it, so it follows each "
    "peer's own samples, and what is saved depends on which peer saves it. Update it from values that all peers "
    "share, as in `peer.all_reduce(x, op='mean')`; or, if it belongs to the model, make it a buffer and pass "
    "buffers='mean' to the wrapper (reported once)"
)


class Unaveraged(SideOperations):
    """Compares tensors of a model and of models in `extra`: a sixteenth of them in each step, by 8 bytes each."""

    def __init__(self, module: nn.Module, parts: Mapping[str, Stateful], make_mirror: Callable[[], Mirror]) -> None:
        """Compare tensors of `module` as it is now, and of the models among `parts`, which may refer to `module`."""
        owners = {f"parameter {name}": place for name, place in _places(module, is_frozen=True)}
        own = {*module.modules()}
        for part, model in parts.items():
            if isinstance(model, nn.Module):
                places = ((name, place) for name, place in _places(model, is_frozen=False) if place[0] not in own)
                owners |= {f"{name} of {part}": place for name, place in places}
        self._owners, self._mirror, self._step = owners, make_mirror(), -1
        self._shown: list[str] = []
        self._has_warned = False
        self._gather: Operation | None = None
        if owners:
            row = np.zeros(math.ceil(len(owners) / NUM_TURNS), np.int64)
            what = f"a part of {len(owners)} tensors that are not averaged"
            self._gather = Operation(AllGather(label=what), row, row, row.shape, "one-shot")

    def begin(self, step: int) -> None:
        """Begin to read the tensors that `step` compares: its forward passes are over."""
        self._step, self._shown = step, [*self._owners][step % NUM_TURNS :: NUM_TURNS]
        self._mirror.begin([_window(getattr(*self._owners[name], None), step) for name in self._shown])

    def operations(self, step: int) -> Iterator[Operation]:
        """The gather to submit in `step`."""
        if self._gather is not None:
            if self._step != step:
                self.begin(step)
            self._show(self._gather)
            yield self._gather

    def rebuild_operations(self, operations: Sequence[Operation], step: int, view: View | None) -> list[Operation]:
        """The operations of the open step, now `step`, with digests of the loaded state."""
        if self._gather is not None:
            self.begin(step)
            self._show(self._gather)
        return [*operations]

    def _show(self, gather: Operation) -> None:
        digests = [xxhash.xxh3_64_intdigest(raw.data) >> 1 for raw in self._mirror.read()]
        gather.input[:] = [*digests, *[0] * (gather.input.size - len(digests))]
        self._step = -1  # another call for the same step reads again

    def on_commit(self, receipt: Receipt) -> None:
        """Compare the digests of a committed step, unless peers of several numerics classes round differently."""
        if self._gather is None or self._has_warned or not receipt.state_digest:
            return
        rows = self._gather.result.reshape(-1, self._gather.input.size)
        if (found := first_difference(self._shown, rows, receipt)) is not None:
            logger.warning(ADVICE, *found)
            self._has_warned = True


def _places(module: nn.Module, *, is_frozen: bool) -> Iterator[tuple[str, tuple[nn.Module, str]]]:
    """Name, owner and attribute of parameters without a gradient; or, unless `is_frozen`, of all tensors."""
    for path, owner in module.named_modules():
        tables = [owner._parameters] if is_frozen else [owner._parameters, owner._buffers]
        for key, tensor in (pair for table in tables for pair in table.items()):
            is_wanted = tensor is not None and not (is_frozen and tensor.requires_grad)
            if is_wanted and tensor.numel() and tensor.layout is torch.strided and not tensor.is_meta:
                yield f"{path}.{key}" if path else key, (owner, key)


def _window(tensor: Tensor | None, step: int) -> Tensor:
    """The part of a tensor that `step` compares."""
    if tensor is None or tensor.layout is not torch.strided or tensor.is_meta:
        return torch.empty(0, device="cpu")
    flat = in_memory_order(tensor.detach())
    length = max(1, WINDOW_BYTES // flat.itemsize)
    start = step // NUM_TURNS % max(1, math.ceil(len(flat) / length)) * length
    return flat[start : start + length]
