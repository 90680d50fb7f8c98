"""Comparison of optimizer settings at the end of rounds with a fixed number of inner steps; logged once.

The comparison of parameters does not cover them, since inner steps are local. In rounds that end by time, peers make
different numbers of steps; see `Rates`.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import xxhash

from ...net.trees import pack_tree
from ...step.collective import AllGather
from ...step.operation import Operation
from ...step.receipts import Receipt
from ..side_operations import SideOperations
from ..state.comparison import settings_of
from ..state.replica_state import Stateful

logger = logging.getLogger("p2p")


class SameSettings(SideOperations):
    """Compares the groups of all optimizers: a gather of 8 bytes per value in every round."""

    def __init__(self, parts: Mapping[str, Stateful], is_timed: Callable[[], bool]) -> None:
        """`parts`: all parts that a joiner receives, by name; `is_timed`: whether the open round ends by time."""
        self._parts, self._is_timed = parts, is_timed
        self._has_warned = False
        self._settings: dict[str, Any] = {}
        self._gather: Operation | None = None

    def operations(self, step: int) -> Iterator[Operation]:
        """The gather to submit in `step`."""
        self._gather = None
        if not self._is_timed():
            self._settings = dict(sorted(_each(settings_of(self._parts))))  # a joiner may have another order
            row = np.array([*map(_as_number, self._settings.values())], np.float64)
            self._gather = Operation(AllGather(label="settings of optimizers"), row, row, row.shape, "one-shot")
            yield self._gather

    def on_commit(self, receipt: Receipt) -> None:
        """Compare the settings of a committed round; log the first that differs, once."""
        if self._gather is None or self._has_warned:
            return
        rows = self._gather.result.reshape(len(receipt.contributions), -1)
        for (name, value), column in zip(self._settings.items(), rows.T, strict=True):
            (others,) = (column.view(np.int64) != column.view(np.int64)[0]).nonzero()
            if len(others):
                places = 0, int(others[0])
                shown = [f"{column[each]:g}" if _is_number(value) else "another one" for each in places]
                peers = [receipt.contributions[each].peer_id for each in places]
                logger.warning(
                    "%s is %s at peer %s and %s at peer %s at the end of round %d, so their inner steps differ, and a "
                    "joiner may start with either value. Put the schedule into extra= and step it as often on every "
                    "peer, or compute the rate from peer.done or peer.samples, which are the same on all peers "
                    "(reported once)",
                    *(name, shown[0], peers[0], shown[1], peers[1], receipt.step),
                )
                self._has_warned = True
                return


def _each(settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, list):
            yield from ((f"{name}, number {place},", each) for place, each in enumerate(value))
        else:
            yield name, value


def _is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float)


def _as_number(value: Any) -> float:
    """A number unchanged; a digest of any other value."""
    return float(value) if _is_number(value) else float(xxhash.xxh3_64_intdigest(pack_tree(value)) >> 12)
