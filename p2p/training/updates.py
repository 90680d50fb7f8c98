"""Optimizers use gradients that all members have, or none."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..errors import ShoalError
from .gradients import Gradients

TWICE = (
    "backward was called twice for one `optimizer.step`: call all but the last under `with model.no_sync():`, "
    "checkpoint with use_reentrant=False, and use no optimizer that evaluates the model several times (LBFGS)"
)
SKIPPED = (
    "the gradients that `skip_step` brought were not used, so this replica is not that of the others: go on after it "
    "as after `loss.backward()`, with clipping, `optimizer.step` and schedules, instead of `continue`"
)
BETWEEN = "`optimizer.step` was called between the passes of a step: end it, outside `no_sync`, first"


class Updates:
    """Which optimizers have not used the gradients of the last commit yet; refuses gradients of this peer alone.

    Attributes:
        is_due: committed gradients wait for the model's optimizer.
    """

    def __init__(
        self,
        parts: Sequence[object],
        gradients: Gradients,
        has_raised: Callable[[], bool],
        is_between: Callable[[], bool],
        *,
        allow_local: bool,
    ) -> None:
        """Look at each update of the optimizers in `parts`.

        Args:
            parts: the model's optimizer first.
            gradients: of the optimizers' parameters.
            has_raised: whether a backward pass was interrupted, so that what there is in `grad` is of no use.
            is_between: whether a step has begun under `no_sync`, and has not ended.
            allow_local: gradients of this peer alone may be used.
        """
        if not isinstance(parts[0], torch.optim.Optimizer):
            raise TypeError(f"the optimizer has to be a torch.optim.Optimizer, is a {type(parts[0]).__name__}")
        self._optimizers = [part for part in parts if isinstance(part, torch.optim.Optimizer)]
        self._gradients = gradients
        self._allow_local = allow_local
        self._has_raised, self._is_between = has_raised, is_between
        self._due: set[torch.optim.Optimizer] = set()
        self._is_under_way = False
        self._unused = b""  # a digest of the parameters that have to change
        self._last_pass = -1  # autograd's number of it; they ascend
        for optimizer in self._optimizers:
            optimizer.register_step_pre_hook(self._before)
            optimizer.register_step_post_hook(self._after)

    @property
    def is_due(self) -> bool:
        return self._optimizers[0] in self._due

    def committed(self) -> None:
        """Gradients were handed out."""
        self._due = set(self._optimizers)

    def skipped(self) -> None:
        """This peer has added nothing to what was committed, and has to use it all the same."""
        if self._gradients.are_finite:  # a GradScaler may leave an update out
            self._unused = self._gradients.digest()

    def check_is_wanted(self, was_added: bool) -> None:
        """A pass begins; `was_added`: to a gradient that was handed out, which nothing else has changed since.

        Raises:
            ShoalError: the optimizer has not used what the pass before has committed.
        """
        unused, self._unused = self._unused, b""
        if unused and unused == self._gradients.digest():
            raise ShoalError(SKIPPED)
        before, self._last_pass = self._last_pass, torch._C._current_graph_task_id()
        is_around_it = 0 <= self._last_pass < before  # a pass within this one has ended a step
        if self.is_due and (is_around_it or self._is_under_way or was_added):
            raise ShoalError(TWICE)

    def _before(
        self, optimizer: torch.optim.Optimizer, arguments: tuple[Any, ...], named: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        closure = named.get("closure") or (arguments[1] if len(arguments) > 1 else None)
        if self._has_raised():
            self._gradients.drop()  # the script goes on
        if closure is None:
            self._check(optimizer)
        self._is_under_way = True
        if closure is None:
            return None

        def check_after_closure() -> Any:
            loss = closure()
            self._check(optimizer)
            return loss

        return arguments[:1], {**named, "closure": check_after_closure}

    def _after(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        self._due.discard(optimizer)
        self._unused = b""
        self._is_under_way = False

    def _check(self, optimizer: torch.optim.Optimizer) -> None:
        """Raise ShoalError if `optimizer` has gradients to use that came from no commit."""
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if self._is_between():
            if any(parameter.grad is not None for parameter in parameters):
                raise ShoalError(BETWEEN)
        elif optimizer not in self._due and not self._allow_local:
            self._gradients.check_are_committed(parameters)
