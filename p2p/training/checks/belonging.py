"""Ownership of parameters: a wrapped model has all those of its optimizers, and shares none with another wrapper."""

import weakref
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

import torch
from torch import nn
from torch.utils.weak import WeakTensorKeyDictionary

from ...errors import ShoalError

BY_NAME: Final = 'as in p2p.DataParallel(peer, {"G": g, "D": d}, {"G": optimizer_g, "D": optimizer_d})'
_OWNERS = WeakTensorKeyDictionary()
"""By parameter, a weak method that tells whether the wrapper that owns it is still in use."""


def claim(named: Iterable[tuple[str, nn.Parameter]], is_in_use: Callable[[], bool]) -> None:
    """Claim these parameters for a wrapper as long as its method `is_in_use` returns True.

    Raises:
        ShoalError: another wrapper owns one of them.
    """
    named = list(named)
    for name, parameter in named:
        asks = _OWNERS[parameter]() if parameter in _OWNERS else None
        if asks is not None and asks != is_in_use and asks():
            raise ShoalError(f"parameter {name} is already in a p2p.DataParallel: wrap both models at once, {BY_NAME}")
    for _, parameter in named:
        _OWNERS[parameter] = weakref.WeakMethod(is_in_use)


def check_optimizers(module: nn.Module, parts: Mapping[str, object]) -> None:
    """Raise unless the first of `parts` is an optimizer, and all optimizers among them have parameters of `module`.

    Args:
        module: a model.
        parts: its optimizers and other parts, by their names in messages.

    Raises:
        TypeError, ValueError: the check fails.
    """
    first, optimizer = next(iter(parts.items()))
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"{first} must be a torch.optim.Optimizer, is a {type(optimizer).__name__}")
    known = {id(parameter) for parameter in module.parameters()}
    for name, part in parts.items():
        if isinstance(part, torch.optim.Optimizer):
            _check_states(name, part)
            _check_groups(name, part, known)


def _check_states(name: str, optimizer: torch.optim.Optimizer) -> None:
    held = {id(each) for group in optimizer.param_groups for each in group["params"]}
    keys: Iterable[object] = optimizer.state
    for each in keys:
        if isinstance(each, torch.Tensor) and id(each) not in held:
            raise ValueError(
                f"{name} has the state of a parameter, {each.dtype} {list(each.shape)}, that is no longer in any of "
                "its groups: call `optimizer.state.pop(parameter, None)` where you replace a parameter"
            )


def _check_groups(name: str, optimizer: torch.optim.Optimizer, known: Collection[int]) -> None:
    for number, group in enumerate(optimizer.param_groups):
        for place, parameter in enumerate(group["params"]):
            if id(parameter) not in known and parameter.requires_grad:
                raise ValueError(
                    f"parameter {place} of group {number} of {name}, {parameter.dtype} {list(parameter.shape)}, is "
                    "not in its model, so its gradient would not be averaged: wrap a module that has it, make the "
                    "optimizer after the model has its final form, or remove it from param_groups if it is no longer "
                    "used"
                )
