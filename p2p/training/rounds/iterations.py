"""Which update is the last of an inner step, where a script makes several in one: of one optimizer, or of several.

A round ends behind that one. In the middle of a step the graph of a further loss may be there, whose parameters must
not change; and what has committed is to be the anchor, and no update more.
"""

from collections import Counter
from collections.abc import Sequence

from torch.optim import Optimizer


class Iterations:
    """Of one model, from round to round.

    A batch of a loader is done with as many updates as the batch had that had most, so far. With data of its own a
    script says by its order: the last is that of the optimizer whose first update came last, before the one that was
    named first made its second.

    Attributes:
        optimizers: of the model; the first is what `DiLoCo` was given.
        num_updates: since the last round.
        num_steps: inner steps of the round that is under way.
    """

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        """Nothing was updated."""
        self.optimizers = optimizers
        self.num_updates = self.num_steps = 0
        self._batch = self._of_batch = self._most = 0
        self._order: list[Optimizer] = []
        self._is_known = len(optimizers) == 1
        self._last = optimizers[0]
        self._of: Counter[Optimizer] = Counter()

    def end_round(self) -> None:
        """What comes belongs to the next one."""
        self.num_updates = self.num_steps = 0
        self._of.clear()

    def is_done(self, optimizer: Optimizer, batch: int | None) -> bool:
        """An update was made; whether it ends an inner step. Where that is not known, it does not.

        Args:
            optimizer: that has made it.
            batch: number of the loader's batch that it was made on; None: data are the script's own.
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
