"""Optimizers that keep parameters in their state: what rounds make of these they set back in their next update."""

from collections.abc import Iterable
from typing import Final

import torch
from torch import Tensor

from ...errors import ShoalError

KEPT: Final = (
    "%s keeps a copy of its parameters (%r in its state), from which it sets them in each update, so that what rounds "
    "exchange would be lost without a word: use one without copies (float32 parameters under autocast need none), or "
    "p2p.DataParallel"
)


def check_keeps_no_copies(optimizers: Iterable[torch.optim.Optimizer]) -> None:
    """Raise ShoalError if one has, behind an update, what a parameter is when it is rounded: masters, slow weights."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                for key, value in optimizer.state.get(parameter, {}).items():
                    if isinstance(value, Tensor) and _is_copy(value, parameter.detach()):
                        raise ShoalError(KEPT % (type(optimizer).__name__, key))


def _is_copy(value: Tensor, parameter: Tensor) -> bool:
    """Not without dimensions, as counters are, nor of zeros, which moments may be, too."""
    if value.shape != parameter.shape or not (value.dim() and value.is_floating_point()):
        return False
    return bool(value.any()) and torch.equal(value.to(parameter), parameter)
