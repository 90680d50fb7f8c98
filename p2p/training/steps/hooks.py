"""Hooks of parameters, which see each gradient as a backward pass has left it."""

import weakref
from collections.abc import Callable

import torch
from torch.utils.hooks import RemovableHandle


def weakly(take: Callable[[torch.nn.Parameter], None]) -> Callable[[torch.nn.Parameter], None]:
    """A method, as long as its object is there: no garbage collector sees what hooks of parameters keep."""
    known = weakref.WeakMethod(take)

    def take_if_there(parameter: torch.nn.Parameter) -> None:
        if (still_there := known()) is not None:
            still_there(parameter)

    return take_if_there


def follow(parameter: torch.nn.Parameter, take: Callable[[torch.nn.Parameter], None]) -> RemovableHandle:
    """Take each gradient away after all hooks that there are so far have seen it."""
    hook: RemovableHandle = parameter.register_post_accumulate_grad_hook(take)  # type: ignore[no-untyped-call]
    return hook
