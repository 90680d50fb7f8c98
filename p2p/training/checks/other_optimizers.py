"""Updates by optimizers unknown to a wrapper, whose state neither a joiner nor a checkpoint would receive."""

import weakref
from collections.abc import Callable, Collection

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from .rates import unwrapped

_FOLLOWING: "weakref.WeakSet[OtherOptimizers]" = weakref.WeakSet()
_HOOKS: list[RemovableHandle] = []


class OtherOptimizers:
    """The check of one wrapper, as long as that exists."""

    def __init__(
        self,
        known: Collection[Optimizer],
        is_ours: Callable[[torch.Tensor], bool],
        is_within: Callable[[], bool],
        has_left: Callable[[], bool],
        found: Callable[[str], None],
        other: Callable[[Optimizer], None],
    ) -> None:
        """Check each update of any optimizer of this process.

        Args:
            known: the optimizers of the wrapper.
            is_ours: whether a parameter belongs to the wrapped model.
            is_within: whether a known optimizer is making an update; updates of its inner ones (Lookahead) are allowed.
            has_left: whether the peer has left; then all updates are allowed.
            found: is called with the type name of an unknown optimizer before it updates a parameter of the model.
            other: is called with an optimizer before it updates no parameter of the model.
        """
        self._known, self._is_ours, self._is_within, self._has_left = frozenset(known), is_ours, is_within, has_left
        self._found, self._other = found, other
        if not _HOOKS:  # never removed: a hook must not be removed while torch iterates over them
            _HOOKS.append(register_optimizer_step_pre_hook(_look))
        _FOLLOWING.add(self)

    def end(self) -> None:
        """Stop checking updates."""
        _FOLLOWING.discard(self)

    def check(self, optimizer: Optimizer) -> None:
        """Check an optimizer that is about to make an update."""
        if optimizer in self._known or self._is_within() or unwrapped(optimizer) in self._known:
            return
        if self._has_left():
            self.end()
        elif any(self._is_ours(parameter) for group in optimizer.param_groups for parameter in group["params"]):
            self._found(type(optimizer).__name__)
        else:
            self._other(optimizer)


def _look(optimizer: Optimizer, *_: object) -> None:
    for each in [*_FOLLOWING]:
        each.check(optimizer)
