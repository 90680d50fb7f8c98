"""Comparison of parts of `extra` whose input may be local to a peer, such as its own loss; logged once."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from gossip import View

from ...step.collective import AllGather
from ...step.operation import Operation
from ...step.receipts import Receipt
from ..side_operations import SideOperations, first_difference
from ..state.comparison import digest_of
from ..state.replica_state import Stateful

logger = logging.getLogger("p2p")

BY_THEMSELVES: Final = (torch.optim.Optimizer, torch.amp.GradScaler, nn.Module, LRScheduler)
"""Types that need no comparison: their state follows from committed gradients, parameters and the number of steps."""


class SameExtra(SideOperations):
    """Compares the other parts between members: a gather of 8 bytes per part in every step, if there are any."""

    def __init__(self, parts: Mapping[str, Stateful]) -> None:
        """`parts`: all parts that a joiner receives, by name."""
        self._parts = {
            name: part
            for name, part in parts.items()
            if isinstance(part, ReduceLROnPlateau) or not isinstance(part, BY_THEMSELVES)
        }
        self._has_warned = False
        self._gather: Operation | None = None
        if self._parts:
            row = np.zeros(len(self._parts), np.int64)
            self._gather = Operation(AllGather(label="parts of extra"), row, row, row.shape, "one-shot")

    def operations(self, step: int) -> Iterator[Operation]:
        """The gather to submit in `step`."""
        if self._gather is not None:
            self._show(self._gather)
            yield self._gather

    def rebuild_operations(self, operations: Sequence[Operation], step: int, view: View | None) -> list[Operation]:
        """The operations of the open step, with digests of the loaded state."""
        if self._gather is not None:
            self._show(self._gather)
        return [*operations]

    def _show(self, gather: Operation) -> None:
        gather.input[:] = [digest_of(part) for part in self._parts.values()]

    def on_commit(self, receipt: Receipt) -> None:
        """Compare the digests of a committed step; log the first part that differs, once."""
        if self._gather is None or self._has_warned:
            return
        rows = self._gather.result.reshape(-1, self._gather.input.size)
        if (found := first_difference(self._parts, rows, receipt)) is not None:
            logger.warning(
                "%s in extra= differs between peers %s and %s in step %d, so their parameters will differ sooner or "
                "later, and one of them will have to leave. Feed it values that all peers share, as in "
                "`schedule.step(peer.combine(loss, samples=n)[0])` (reported once)",
                *found[:4],
            )
            self._has_warned = True
