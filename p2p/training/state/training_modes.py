"""How a model was trained in the last steps: which layers were frozen, or in evaluation mode.

Members compare this in each step (`Watch.in_words`). A run that continues from a checkpoint has no member to compare
with, so it compares with the steps before the checkpoint.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from ...step.receipts import Receipt
from ..side_operations import SideOperations

logger = logging.getLogger("p2p")

NUM_KEPT: Final = 16
"""Steps that are kept: several, since kinds of steps may alternate, as those of a critic and a generator."""

PLAIN: Final = "all layers are trained"
OTHERWISE: Final = (
    "where this run continues, %s, but this was so in none of the %d steps before: in the last one, %s. Modes "
    "(`eval()` of a layer) are not part of a state, so what a script sets after some step must be set again: by "
    "peer.done, or by the number of the epoch (`if epoch >= 3:`). If it begins here, all is well (reported once)"
)


class TrainingModes(SideOperations):
    """The last ways of training one model, in words. Its cost is negligible."""

    def __init__(self, how: Callable[[], str]) -> None:
        """`how` returns how the model is trained in the open step, in words; empty: all layers."""
        self._how = how
        self._last: deque[str] = deque(maxlen=NUM_KEPT)
        self._is_expecting = False

    def last(self) -> list[str]:
        """The ways of the last steps, part of the state."""
        return [*self._last]

    def expect(self, then: Sequence[str]) -> None:
        """Expect the next step to be trained in one of the ways `then`, from a loaded state."""
        self._last = deque(then, NUM_KEPT)
        self._is_expecting = len(then) > 0

    def on_commit(self, receipt: Receipt) -> None:
        """Compare a committed step with the expected ways, and keep its own."""
        how = self._how()
        if self._is_expecting and how not in self._last:
            logger.warning(OTHERWISE, how or PLAIN, len(self._last), self._last[-1] or PLAIN)
        self._is_expecting = False
        self._last.append(how)
