"""Gradients that passes under `no_sync` have added up in `grad`: whether the script has dropped them since."""

from collections.abc import Iterable

import torch


class NoSyncPasses:
    """The passes under `no_sync` of one step."""

    def __init__(self) -> None:
        self._versions: dict[torch.Tensor, int] = {}

    def begin_step(self) -> None:
        """Forget the passes of the step before."""
        self._versions.clear()

    def added(self, parameter: torch.Tensor) -> None:
        """Note that a pass has added to `grad`."""
        if parameter.grad is not None:
            self._versions[parameter] = parameter.grad._version

    def are_dropped(self, first: torch.nn.Parameter, parameters: Iterable[torch.Tensor]) -> bool:
        """Whether `zero_grad` has dropped, or set to zero, all gradients since then.

        Each addition and each `zero_` increments the `_version` of a gradient. Zeros that nobody has written since are
        gradients, of a loss times zero, say. Reads gradients only where something was written since.

        Args:
            first: the only one of `parameters` that the pass after them has reached.
            parameters: all that are averaged, of the models that these passes have reached.
        """
        if first.grad is None or first.grad.requires_grad:  # `create_graph` adds out of place
            return False
        version = first.grad._version
        if version == self._versions.get(first, -1) + 1 > 0:
            return False
        others = [each for each in parameters if each is not first]
        is_known = version == 0 or any(each.grad is not None for each in others)  # else it may have been clipped
        return is_known and all(map(self._is_dropped, others))

    def _is_dropped(self, parameter: torch.Tensor) -> bool:
        gradient = parameter.grad
        if gradient is None:
            return True
        return gradient._version != self._versions.get(parameter, gradient._version) and not has_values(gradient)


def has_values(gradient: torch.Tensor | None) -> bool:
    """Whether it is more than zeros. Reads it, if it is dense."""
    return gradient is not None and bool(gradient._nnz() if gradient.is_sparse else gradient.any())
