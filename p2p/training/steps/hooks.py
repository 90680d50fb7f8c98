"""Hooks of parameters, which receive each gradient once a backward pass has accumulated it."""

import weakref
from collections.abc import Callable

import torch
from torch.utils.hooks import RemovableHandle


def weakly(take: Callable[[torch.nn.Parameter], None]) -> Callable[[torch.nn.Parameter], None]:
    """`take` through a weak reference: the garbage collector does not see references from hooks of parameters."""
    known = weakref.WeakMethod(take)

    def take_if_there(parameter: torch.nn.Parameter) -> None:
        if (still_there := known()) is not None:
            still_there(parameter)

    return take_if_there


def follow(parameter: torch.nn.Parameter, take: Callable[[torch.nn.Parameter], None]) -> RemovableHandle:
    """Register a hook that runs after all hooks registered so far."""
    hook: RemovableHandle = parameter.register_post_accumulate_grad_hook(take)  # type: ignore[no-untyped-call]
    return hook
