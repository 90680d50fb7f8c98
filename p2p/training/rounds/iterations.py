"""Detection of the last update of an inner step, in scripts with several updates per step, of one or more optimizers.

A round ends after that update. Earlier in a step, the graph of another loss may exist, whose parameters must not
change; and after the commit the parameters must equal the anchor, without a further update.
"""

from collections import Counter
from collections.abc import Sequence

from torch.optim import Optimizer


class Iterations:
    """The updates and inner steps of one model, over all rounds.

    With a loader, an inner step ends after as many updates as the batch with most updates had so far. Without one, the
    order decides: the last update is that of the optimizer whose first update came last, before the first optimizer
    made its second.

    Attributes:
        optimizers: of the model; the first is the one passed to `DiLoCo`.
        num_updates: since the last round.
        num_steps: inner steps of the current round.
    """

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        """Start before the first update."""
        self.optimizers = optimizers
        self.num_updates = self.num_steps = 0
        self._batch = self._of_batch = self._most = 0
        self._order: list[Optimizer] = []
        self._is_known = len(optimizers) == 1
        self._last = optimizers[0]
        self._of: Counter[Optimizer] = Counter()

    def end_round(self) -> None:
        """Count later updates for the next round."""
        self.num_updates = self.num_steps = 0
        self._of.clear()

    def count_update(self, optimizer: Optimizer, batch: int | None) -> bool:
        """Count an update; return whether it ends an inner step. False if that is not known.

        Args:
            optimizer: the optimizer that has made it.
            batch: number of the loader's batch; None: the script has its own data.
        """
        self.num_updates += 1
        return self._is_last_of_own(optimizer) if batch is None else self._is_last_of_batch(batch)

    def _is_last_of_batch(self, batch: int) -> bool:
        if batch != self._batch:
            self._most = max(self._most, self._of_batch)
            self._batch, self._of_batch = batch, 0
            self.num_steps += 1
        self._of_batch += 1
        return self._of_batch >= (self._most or len(self.optimizers))

    def _is_last_of_own(self, optimizer: Optimizer) -> bool:
        first = self.optimizers[0]
        if not self._is_known:
            self._is_known = optimizer is first and first in self._order
            if optimizer not in self._order:
                self._order.append(optimizer)
                self._last = optimizer if len(self._order) > 1 else first
        self._of[optimizer] += 1
        self.num_steps = self._of[self._last]
        return optimizer is self._last and (self._is_known or (optimizer is first and self._order[0] is not first))
