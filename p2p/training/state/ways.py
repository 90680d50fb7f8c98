"""In which ways a model was trained in the last steps: which of its layers are frozen, or in evaluation mode.

Members compare these in each step (`Watch.in_words`). A run that goes on from a checkpoint has nobody to compare with.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from ...step.receipts import Receipt
from ..beside import Beside

logger = logging.getLogger("p2p")

NUM_KEPT: Final = 16
"""Steps of several kinds take turns, a critic's and a generator's."""

PLAIN: Final = "all layers are trained"
OTHERWISE: Final = (
    "where this run goes on, %s, and in none of the %d steps before was it so: there %s. Modes (`eval()` of a layer) "
    "are no part of a state, and what a script has set behind some step is to be set again: by peer.done, or by the "
    "number of the epoch (`if epoch >= 3:`); if it begins here, all is well; this is said once"
)


class WaysOfTraining(Beside):
    """Of one model. Costs nothing to speak of."""

    def __init__(self, how: Callable[[], str]) -> None:
        """`how`: it is trained in the open step, in words; empty: all of it."""
        self._how = how
        self._last: deque[str] = deque(maxlen=NUM_KEPT)
        self._is_expecting = False

    def last(self) -> list[str]:
        """Those of the last steps; a part of the state."""
        return [*self._last]

    def expect(self, then: Sequence[str]) -> None:
        """A state was loaded that was trained in these ways: the next step is one of them."""
        self._last = deque(then, NUM_KEPT)
        self._is_expecting = len(then) > 0

    def hand_out(self, receipt: Receipt) -> None:
        """A step is committed."""
        how = self._how()
        if self._is_expecting and how not in self._last:
            logger.warning(OTHERWISE, how or PLAIN, len(self._last), self._last[-1] or PLAIN)
        self._is_expecting = False
        self._last.append(how)
