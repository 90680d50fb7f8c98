"""Tensors that nothing averages, and all members should have: compared, and said once.

Parameters that need no gradient may be changed by each peer's own samples all the same (prototypes, an average of
features), and so may models in `extra` (running statistics that `update_bn` makes of a part of the data).
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
from ..beside import Beside, first_difference
from ..state.mirrors import Mirror
from ..state.replica_state import Stateful
from ..tensors.layouts import in_memory_order

logger = logging.getLogger("p2p")

NUM_TURNS: Final = 16
"""In so many steps each of them is looked at once,"""
WINDOW_BYTES: Final = 1 << 14
"""at so much of it, each time elsewhere: what is changed is mostly changed as a whole."""

ADVICE: Final = (
    "%s is not the same at peers %s and %s in step %d (digests %016x and %016x): nothing averages it, so it follows "
    "the samples of each peer alone, and what is saved depends on who saves it. Change it by what all have, as in "
    "`peer.all_reduce(x, op='mean')`, or, if it is of the model, make it a buffer, and pass buffers='mean' to the "
    "wrapper; this is said once"
)


class Unaveraged(Beside):
    """Of one model, and of those in `extra`. One gather of 8 bytes for a sixteenth of these tensors in each step."""

    def __init__(self, module: nn.Module, parts: Mapping[str, Stateful], make_mirror: Callable[[], Mirror]) -> None:
        """Of `module` as it is now. `parts`: in which models are looked for, by name; some may refer to `module`."""
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
        """The forward passes of `step` are over: begin to read what it shows."""
        self._step, self._shown = step, [*self._owners][step % NUM_TURNS :: NUM_TURNS]
        self._mirror.begin([_window(getattr(*self._owners[name], None), step) for name in self._shown])

    def operations(self, step: int) -> Iterator[Operation]:
        """What to submit then."""
        if self._gather is not None:
            if self._step != step:
                self.begin(step)
            self._show(self._gather)
            yield self._gather

    def renew(self, operations: Sequence[Operation], step: int, view: View | None) -> list[Operation]:
        """Those of the open step, which is `step` now: they show what was loaded."""
        if self._gather is not None:
            self.begin(step)
            self._show(self._gather)
        return [*operations]

    def _show(self, gather: Operation) -> None:
        digests = [xxhash.xxh3_64_intdigest(raw.data) >> 1 for raw in self._mirror.read()]
        gather.input[:] = [*digests, *[0] * (gather.input.size - len(digests))]
        self._step = -1  # who asks again, for the same step, has it read again

    def hand_out(self, receipt: Receipt) -> None:
        """A step is committed. Where peers round otherwise, what follows from parameters is not the same."""
        if self._gather is None or self._has_warned or not receipt.state_digest:
            return
        rows = self._gather.result.reshape(-1, self._gather.input.size)
        if (found := first_difference(self._shown, rows, receipt)) is not None:
            logger.warning(ADVICE, *found)
            self._has_warned = True


def _places(module: nn.Module, *, is_frozen: bool) -> Iterator[tuple[str, tuple[nn.Module, str]]]:
    """Name, owner and attribute of its parameters that need no gradient, or else of all parameters and buffers."""
    for path, owner in module.named_modules():
        tables = [owner._parameters] if is_frozen else [owner._parameters, owner._buffers]
        for key, tensor in (pair for table in tables for pair in table.items()):
            is_wanted = tensor is not None and not (is_frozen and tensor.requires_grad)
            if is_wanted and tensor.numel() and tensor.layout is torch.strided and not tensor.is_meta:
                yield f"{path}.{key}" if path else key, (owner, key)


def _window(tensor: Tensor | None, step: int) -> Tensor:
    """The part of it that `step` shows."""
    if tensor is None or tensor.layout is not torch.strided or tensor.is_meta:
        return torch.empty(0)
    flat = in_memory_order(tensor.detach())
    length = max(1, WINDOW_BYTES // flat.itemsize)
    start = step // NUM_TURNS % max(1, math.ceil(len(flat) / length)) * length
    return flat[start : start + length]
