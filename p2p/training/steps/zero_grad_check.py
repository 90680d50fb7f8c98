"""Gradients that an update has used and the script has not dropped, to which the next backward pass adds.

That trains as one process does, and a joiner has such sums after one step. But no state contains them, so a run that
resumes from a checkpoint begins them anew, and makes other updates. Nor do they count in full where passes of some
peers leave out a parameter, or where a step has micro-batches, which are weighted with the old sum in the first. The
usual cause is a forgotten `zero_grad`, mostly of one of several optimizers.
"""

from collections.abc import Callable, Iterable
from typing import Final

import torch
from torch.optim import Optimizer

from .reducer import GradientReducer

NUM_LOOKS: Final = 4
"""How many steps are examined, from the first on. A forgotten `zero_grad` shows in each, and a look reads `grad`."""

KEPT: Final = (
    "%s makes an update with gradients that were added to those of its last update, since `zero_grad` was not called. "
    "No checkpoint contains such sums, so a run that resumes from one trains differently; and they are too small where "
    "a peer's pass reaches a parameter and another's does not, and with max_local_batch. Call `zero_grad` of each "
    "optimizer before each backward pass; this is said once"
)


class ZeroGradCheck:
    """The kept gradients of one wrapper."""

    def __init__(self, gradients: GradientReducer, found: Callable[[str], None]) -> None:
        """`found` is called once, with the name of an optimizer that uses such sums."""
        self._gradients, self._found = gradients, found
        self._num_looks = NUM_LOOKS
        self._kept: set[torch.Tensor] = set()
        self._sums: set[torch.Tensor] = set()

    def begin_pass(self, first: torch.nn.Parameter) -> None:
        """A pass has reached `first`, and no other parameter yet."""
        if self._num_looks:
            self._kept.update(self._gradients.kept(first))

    def committed(self) -> None:
        """The passes of a step are over, and their sums are in `grad`."""
        self._sums = {each for each in self._kept if self._gradients.has_added(each)}
        self._num_looks -= self._num_looks > 0
        self._kept.clear()

    def update(self, optimizer: Optimizer, parameters: Iterable[torch.Tensor]) -> None:
        """`optimizer` is about to use the gradients of `parameters`."""
        if self._sums and not self._sums.isdisjoint(parameters):
            self._num_looks = 0
            self._sums.clear()
            self._found(type(optimizer).__name__)
