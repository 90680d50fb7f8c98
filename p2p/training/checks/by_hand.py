"""Gradients that a script computed itself; and, in rounds, local versions of the calls for dense steps."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch

from ..tensors.summable import kind_of

Given = Sequence[torch.Tensor | None] | Mapping[str, torch.Tensor | None]
"""Gradients in the order of the parameters, or by their names."""
Matched = dict[str, tuple[torch.nn.Parameter, torch.Tensor | None]]


def match(named: Mapping[str, torch.nn.Parameter], summed: Collection[torch.Tensor], given: Given) -> Matched:
    """Match the gradients of the script with parameters, by name.

    Args:
        named: all parameters of a model, by name.
        summed: those that need a gradient.
        given: the script's gradients.

    Raises:
        TypeError: a gradient is sparse.
        ValueError: a gradient matches no parameter, or has another shape or device.
    """
    if not isinstance(given, Mapping):
        needed = [name for name, each in named.items() if each.requires_grad or len(given) == len(named)]
        if len(given) != len(needed):
            raise ValueError(
                f"got {len(given)} gradients for {len(needed)} parameters: pass one, or None, for each parameter that "
                "needs a gradient, in the order of `module.parameters()`, or a dict by name"
            )
        given = dict(zip(needed, given, strict=True))
    for name, gradient in given.items():
        parameter = named.get(name)
        if parameter is None or (gradient is not None and parameter not in summed):
            raise ValueError(f"got a gradient for {name}, which is not a parameter that needed one at the wrap")
        if gradient is not None and kind_of(gradient) != kind_of(parameter):
            ours, theirs = map(kind_of, (gradient, parameter))
            raise ValueError(f"the gradient of {name} is {ours}, but the parameter is {theirs}")
    return {name: (named[name], gradient) for name, gradient in given.items()}


def given_as(given: Given, found: Mapping[str, torch.Tensor | None]) -> Given:
    """`found`, in the form of `given`."""
    return found if isinstance(given, Mapping) else tuple(found.values())


def add_to_grad(parameter: torch.nn.Parameter, gradient: torch.Tensor, *, is_kept: bool) -> None:
    """Add to `grad` as autograd does; `is_kept`: further passes add to `grad`, so it must not share memory."""
    before, gradient = parameter.grad, gradient.detach()
    if before is None:
        parameter.grad = gradient.clone() if is_kept else gradient
    else:
        parameter.grad = before + gradient


class LocalPasses:
    """Backward passes of a model in a round: gradients stay local, and no call waits."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """`parameters`: those that are trained."""
        self._parameters = [*parameters]
        self._is_under_no_sync = self._has_summed = False

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Passes in the block sum in `grad`, and the pass after it adds to the sum."""
        before, self._is_under_no_sync = self._is_under_no_sync, True
        self._has_summed = True
        try:
            yield
        finally:
            self._is_under_no_sync = before

    def skip(self) -> None:
        """Drop the gradients, so that the next update changes nothing."""
        for each in self._parameters:
            each.grad = None
        self._has_summed = False

    def take(self, matched: Matched) -> None:
        """Set `grad` to these gradients; add them to the sum of earlier passes, if these were under `no_sync`."""
        if not self._has_summed:
            self.skip()
        for parameter, gradient in matched.values():
            if gradient is not None:
                add_to_grad(parameter, gradient, is_kept=True)
        self._has_summed = self._is_under_no_sync
