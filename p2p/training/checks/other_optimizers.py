"""Updates by optimizers that a wrapper was not given: what they keep no joiner is given, and no checkpoint has."""

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
    """Of one wrapper, as long as that is there."""

    def __init__(
        self,
        known: Collection[Optimizer],
        is_ours: Callable[[torch.Tensor], bool],
        is_within: Callable[[], bool],
        has_left: Callable[[], bool],
        found: Callable[[str], None],
        other: Callable[[Optimizer], None],
    ) -> None:
        """Look at each update of any optimizer of this process.

        Args:
            known: what the wrapper was given.
            is_ours: whether a parameter is one of the wrapped model.
            is_within: an optimizer that is known makes an update; one in it (of Lookahead) may be anybody's.
            has_left: the peer has, and a script may do what it likes.
            found: is called before an update by another one of a parameter that is ours, with its name.
            other: is called before an update of parameters none of which is ours.
        """
        self._known, self._is_ours, self._is_within, self._has_left = frozenset(known), is_ours, is_within, has_left
        self._found, self._other = found, other
        if not _HOOKS:  # for good: nobody may remove one while torch goes through them
            _HOOKS.append(register_optimizer_step_pre_hook(_look))
        _FOLLOWING.add(self)

    def end(self) -> None:
        """Look at no further update."""
        _FOLLOWING.discard(self)

    def look(self, optimizer: Optimizer) -> None:
        """It is about to make an update."""
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
        each.look(optimizer)
