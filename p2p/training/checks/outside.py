"""Check for parameters outside the wrapped model that its backward passes train: of a loss (centers, task weights).

Their gradients come from this peer's samples alone, so they soon differ between peers, and no comparison shows it.
They are found through their optimizer, at its second update or later. Leaves out updates by hand.
"""

from collections.abc import Callable
from functools import partial
from typing import Final
from weakref import WeakKeyDictionary

import torch
from torch.optim import Optimizer

OUTSIDE: Final = (
    "%s updates parameters that are in no wrapped model, with gradients from backward passes of this model. Nothing "
    "averages these gradients, so the parameters soon differ between peers, and a joiner starts with its own. Wrap "
    "them, too, in one nn.ModuleDict with the model or as several models by name; or average their gradients with "
    "`peer.all_reduce`, and send the parameters to joiners (reported once)"
)


class Outside:
    """The check of one wrapper."""

    def __init__(self, last_pass: Callable[[], int], found: Callable[[str], None]) -> None:
        """Check the optimizers of such parameters.

        Args:
            last_pass: returns autograd's number of the last backward pass that reached the wrapped model.
            found: is called once, with the type name of an optimizer that uses gradients of such a pass.
        """
        self._last_pass, self._found = last_pass, found
        self._passes: WeakKeyDictionary[Optimizer, list[int]] = WeakKeyDictionary()
        self._has_found = False

    def check(self, optimizer: Optimizer) -> None:
        """Check an optimizer that is about to update no parameter of the model."""
        if self._has_found:
            return
        passes = self._passes.get(optimizer)
        if passes is None:
            every = (each for group in optimizer.param_groups for each in group["params"])
            first = next((each for each in every if each.grad is not None and each.requires_grad), None)
            if first is not None:
                self._passes[optimizer] = passes = []
                first.register_post_accumulate_grad_hook(partial(_note_pass, passes))
        elif passes and passes[0] == self._last_pass():
            self._has_found = True
            self._found(type(optimizer).__name__)


def _note_pass(passes: list[int], _: torch.Tensor) -> None:
    passes[:] = [torch._C._current_graph_task_id()]
