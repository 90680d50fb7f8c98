"""Check for optimizers that keep copies of parameters: their next update would undo the result of a round."""

from collections.abc import Iterable
from typing import Final

import torch
from torch import Tensor

from ...errors import ShoalError

KEPT: Final = (
    "%s keeps a copy of its parameters (%r in its state) and sets them from it in each update, so the result of a "
    "round would be lost silently: use an optimizer without copies (float32 parameters under autocast need none), or "
    "p2p.DataParallel"
)

AVERAGE_OF_ASGD: Final = "ax"
"""The average of the parameters; equal to them for its first million updates, but never written to them."""


def check_keeps_no_copies(optimizers: Iterable[torch.optim.Optimizer]) -> None:
    """Raise ShoalError if, after an update, a state equals its parameter when rounded: master or slow weights."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                for key, value in optimizer.state.get(parameter, {}).items():
                    if isinstance(optimizer, torch.optim.ASGD) and key == AVERAGE_OF_ASGD:
                        continue
                    if isinstance(value, Tensor) and _is_copy(value, parameter.detach()):
                        raise ShoalError(KEPT % (type(optimizer).__name__, key))


def _is_copy(value: Tensor, parameter: Tensor) -> bool:
    """Whether `value` is a copy. Excludes scalars, such as counters, and zeros, which moments may be."""
    if value.shape != parameter.shape or not (value.dim() and value.is_floating_point()):
        return False
    return bool(value.any()) and torch.equal(value.to(parameter), parameter)
