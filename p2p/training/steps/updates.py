"""Checks that optimizers use committed gradients only, and the tracking of their updates."""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final, Protocol

import torch

from ...errors import ShoalError
from ..checks.other_optimizers import OtherOptimizers
from ..checks.outside import OUTSIDE, Outside
from ..checks.rates import Rates
from .reducer import GradientReducer
from .scaling import LrScaling, ScaledRates
from .zero_grad_check import KEPT, ZeroGradCheck

logger = logging.getLogger("p2p")

TWICE = (
    "backward was called twice for one `optimizer.step`. To add up parts of a batch of peer.loader, pass "
    "max_local_batch to the loader. To add up k batches of your own, write `with model.no_sync() if (i + 1) % k else "
    "contextlib.nullcontext(): (loss / k).backward()`. For activation checkpoints, pass use_reentrant=False. "
    "Optimizers that evaluate the model several times (LBFGS) cannot be used"
)
LEFT_OVER = (
    "backward added to the gradient of {0} from the last step, which was neither used nor dropped. If both are for "
    "one update of {0} (`real.backward()`, `fake.backward()`), add the losses, or put the first one under `with "
    "model.no_sync():`. If the old gradient is of a loss that only went through {0} to another model, call "
    "`zero_grad` of the optimizer of {0} first"
)
WITHIN = (
    "`optimizer.step` was called inside a backward pass, and gradients are only averaged over all peers when it ends: "
    "call it after `loss.backward()`"
)
SKIPPED = (
    "the gradients of the step that `skip_step` ended were not used, so this replica differs from the others: "
    "continue after `skip_step` as after `loss.backward()`, with clipping, `optimizer.step` and schedules, instead of "
    "`continue`"
)
AS_SET = LrScaling()
MOST_COMMITS: Final = 8
"""The most commits before an update (SAM has 2) after which a state is withheld until the update."""
BETWEEN = (
    "`optimizer.step` was called between the passes of a step: first end the step with a backward pass outside "
    "`no_sync`"
)


class PassState(Protocol):
    """The state of `Passes` that `Updates` reads."""

    is_under_way: bool
    has_summed: bool


class Updates:
    """Tracks which optimizers still have to use the gradients of the last commit, and refuses local gradients.

    Attributes:
        hooks: of the optimizers.
        scaled: their learning rates.
        is_due: whether the optimizer of a model still has to use committed gradients.
        is_lost: a committed step has ended before its gradients were set, so no update uses them.
        num_stale: the number of steps that may still use graphs from before a state was loaded within a step.
    """

    def __init__(
        self,
        parts: Mapping[str, object],
        gradients: GradientReducer,
        passes: PassState,
        *,
        num_models: int,
        allow_local: bool,
        scaling: LrScaling = AS_SET,
        has_left: Callable[[], bool] = lambda: False,
    ) -> None:
        """Observe each update of the optimizers in `parts`.

        Args:
            parts: by name, the optimizers of models first.
            gradients: of the optimizers' parameters.
            passes: the state of backward passes.
            num_models: the number of optimizers of models.
            allow_local: local gradients may be used.
            scaling: of the learning rates of all optimizers.
            has_left: whether the peer has left.
        """
        self._names = {part: name for name, part in parts.items() if isinstance(part, torch.optim.Optimizer)}
        self._optimizers = [*self._names]
        self._of_models = [*parts.values()][:num_models]
        self._gradients = gradients
        self._allow_local = allow_local
        self._passes = passes
        self._due: set[torch.optim.Optimizer] = set()
        self._since_commit: set[torch.optim.Optimizer] | None = None
        self._has_updated = self.is_lost = False
        self._num_commits = 0  # since the last update
        self._usual_commits, self._is_usual_known = 2, False  # before an update
        self._rates = Rates(parts)
        self.scaled = ScaledRates(scaling, parts.values())
        self.num_stale = 0
        self._has_warned = False
        self._kept = ZeroGradCheck(gradients, self._name_kept)
        self._outside = Outside(lambda: self._last_pass, self._name_outside)
        self._others = OtherOptimizers(
            self._optimizers,
            self._is_ours,
            lambda: self._under_way is not None,
            has_left,
            self._name_other,
            self._look_outside,
        )
        self._under_way: torch.optim.Optimizer | None = None
        self._is_in_closure = False
        self._unused = b""  # digest of parameters that the next update has to change
        self._last_pass = -1  # autograd's number of the pass; numbers ascend
        self.hooks = [each.register_step_pre_hook(self._before) for each in self._optimizers]
        self.hooks += [each.register_step_post_hook(self._after) for each in self._optimizers]

    def end(self) -> None:
        """Stop observing updates."""
        for hook in self.hooks:
            hook.remove()
        self._others.end()

    @property
    def is_due(self) -> bool:
        # Scripts mostly drop gradients of a model that the loss only passes through: a discriminator's, from a
        # generator.
        return any(each in self._due and self._gradients.are_left(_parameters(each)) for each in self._of_models)

    @property
    def are_made(self) -> bool:
        """Whether updates with the last commit were made; one suffices, since some gradients may stay unused.

        A generator's pass leaves gradients in its discriminator, for example.
        """
        return self._has_updated or not self.is_due

    @property
    def are_whole(self) -> bool:
        """As `are_made`, and no update was interrupted, nor a committed step before its gradients were set."""
        return self.are_made and self._under_way is None and not self.is_lost

    @property
    def is_amid_update(self) -> bool:
        """Whether steps were committed since the last update, but fewer than before earlier ones, as far as is known.

        After the first of two steps for an update, SAM has dropped the gradients and moved the parameters for a while.
        """
        return 0 < self._num_commits < self._usual_commits

    @property
    def is_amid_step(self) -> bool:
        """Whether the pass that ends a step is under way."""
        return self._passes.is_under_way

    def committed(self, models: Collection[str], weight: int | None) -> None:
        """Note that gradients of these models were set, of a step of this weight; None: zeros of a withdrawn step."""
        its = {
            each
            for each in self._optimizers
            if any(self._gradients.model_of(parameter) in models for parameter in _parameters(each))
        }
        self._due |= its
        if weight is not None:
            self.scaled.committed(its, weight)
        self._kept.committed()
        self._since_commit, self._has_updated = set(), False
        self._num_commits += 1
        self.num_stale = max(0, self.num_stale - 1)

    def loaded(self) -> None:
        """Note that the state of a member was loaded.

        If that happens in the middle of a step, a loop that updates several optimizers in turn may use graphs from
        before for as many steps.
        """
        self._rates.forget()
        self.scaled.forget()
        self._since_commit = None
        self.num_stale = len(self._optimizers) if self._passes.is_under_way else 0  # the open step is one of them
        self._num_commits = 0

    def since_commit(self) -> str | None:
        """The optimizers that have made an update since the last commit, in words; None: unknown."""
        if self._since_commit is None:
            return None
        return " and ".join(name for each, name in self._names.items() if each in self._since_commit)

    def skipped(self) -> None:
        """After `skip_step`: remember the parameters, since this peer still has to use the committed gradients."""
        if self._gradients.are_finite:  # a GradScaler may skip an update
            self._unused = self._gradients.digest()

    def check_is_wanted(self, parameter: torch.nn.Parameter | None = None) -> None:
        """Check a pass that begins, and has reached `parameter`.

        Raises:
            ShoalError: the optimizer has not used the gradients that the previous pass committed.
        """
        unused, self._unused = self._unused, b""
        if unused and unused == self._gradients.digest():
            raise ShoalError(SKIPPED)
        before, self._last_pass = self._last_pass, torch._C._current_graph_task_id()
        is_around_it = 0 <= self._last_pass < before  # a pass within this one has ended a step
        if not self._is_in_closure:
            self._under_way = None  # an update that has raised is over, too
        if (is_around_it and self._due) or self._under_way in self._due:
            raise ShoalError(TWICE)
        if parameter is not None and self._due:
            its = {due for due in self._due if any(each is parameter for each in _parameters(due))}
            if its and self._gradients.was_added_to(parameter):
                model = self._gradients.model_of(parameter)
                raise ShoalError(LEFT_OVER.format(model) if model else TWICE)
            self._due -= its  # the gradient was dropped, or set to zeros
        if parameter is not None:
            self._kept.begin_pass(parameter)

    def _before(
        self, optimizer: torch.optim.Optimizer, arguments: tuple[Any, ...], named: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if torch._C._current_graph_task_id() >= 0:
            raise ShoalError(WITHIN)
        self._gradients.device.check()
        closure = named.get("closure") or (arguments[1] if len(arguments) > 1 else None)
        if self._passes.is_under_way:  # interrupted, and the script continues
            self._gradients.drop()
        if closure is None:
            self._check(optimizer)
        self._kept.update(optimizer, _parameters(optimizer))
        self._under_way = optimizer
        self._rates.check(optimizer)
        if closure is None:
            self._scale(optimizer)
            return None

        def check_after_closure() -> Any:
            self._is_in_closure = True
            try:
                loss = closure()
            finally:
                self._is_in_closure = False
            self._check(optimizer)
            self._scale(optimizer)
            return loss

        return arguments[:1], {**named, "closure": check_after_closure}

    def _is_ours(self, parameter: torch.Tensor) -> bool:
        return self._gradients.model_of(parameter) is not None

    def _name_other(self, name: str) -> None:
        self._count_update()
        if not (self._has_warned or self._allow_local):
            self._has_warned = True
            logger.warning(
                "%s updates this model but is not in extra=, so joiners and checkpoints do not get its state: put it "
                "into extra on every peer. To start with new moments in the middle of a run, keep the same optimizer: "
                "call `optimizer.state.clear()` and set its param_groups (reported once)",
                name,
            )

    def _look_outside(self, optimizer: torch.optim.Optimizer) -> None:
        if not self._allow_local:
            self._gradients.watch.check_other(optimizer)
        self._outside.check(optimizer)

    def _name_outside(self, name: str) -> None:
        if not self._allow_local:
            logger.warning(OUTSIDE, name)

    def _name_kept(self, name: str) -> None:
        if not self._allow_local:
            logger.warning(KEPT, name)

    def _scale(self, optimizer: torch.optim.Optimizer) -> None:
        if optimizer in self._due or not self._allow_local:  # else the gradients are local
            self.scaled.apply(optimizer)

    def _after(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        self.scaled.restore()
        self._due.discard(optimizer)
        if self._since_commit is not None:
            self._since_commit.add(optimizer)
        self._has_updated = True
        self._unused = b""
        self._under_way = None
        self._count_update()

    def _count_update(self) -> None:
        """Note an update of the model by any optimizer."""
        if self._num_commits:
            before = self._usual_commits if self._is_usual_known else 1
            self._usual_commits, self._is_usual_known = max(before, min(self._num_commits, MOST_COMMITS)), True
        self._num_commits = 0

    def _check(self, optimizer: torch.optim.Optimizer) -> None:
        """Raise ShoalError if `optimizer` is about to use gradients that were not committed."""
        parameters = list(_parameters(optimizer))
        if self._passes.has_summed:
            if any(parameter.grad is not None for parameter in parameters):
                raise ShoalError(BETWEEN)
        elif optimizer not in self._due and not self._allow_local:
            self._gradients.check_are_committed(parameters)


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]
