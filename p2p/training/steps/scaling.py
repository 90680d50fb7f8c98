"""Scaling of learning rates by the number of samples counted in a step, which changes as peers come and go.

The gradient of a step is a mean, so only the rate determines how far its samples move the model. Linear: k times the
samples, k times the rate (Goyal et al. 2017, section 2.1), for SGD. Square root: for optimizers that divide by the size
of gradients, such as Adam (Malladi et al. 2022, section 5).

The factor follows from the receipt alone, and applies only during the update of an optimizer: schedules, states for
joiners and checkpoints have the rates that the script has set. Leaves out: scaling of other settings, such as momentum
and the decays of Adam, and warm-up.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

import torch

RULES: Final = ("linear", "sqrt")


@dataclass(frozen=True, slots=True)
class LrScaling:
    """The rule by which rates scale with the weight of all samples on the receipt.

    Attributes:
        rule: one of `RULES`; None: no scaling.
        batch: the number of samples for which the script's rates are meant.
    """

    rule: str | None = None
    batch: int | None = None

    def __post_init__(self) -> None:
        if self.rule is not None and self.rule not in RULES:
            raise ValueError(f"lr_scaling must be {' or '.join(RULES)}, is {self.rule!r}")
        if (self.rule is None) != (self.batch is None):
            raise ValueError(
                f"lr_scaling is {self.rule!r} and lr_batch is {self.batch}: pass both, a rule and the number of "
                "samples for which the script's learning rate is meant"
            )
        if self.batch is not None and self.batch < 1:
            raise ValueError(f"lr_batch must be at least 1, is {self.batch}")

    def factor(self, weight: int) -> float:
        """The factor on rates in the update with a step of this weight; the same bits on all peers."""
        if self.batch is None:
            return 1.0
        return weight / self.batch if self.rule == "linear" else math.sqrt(weight / self.batch)

    def __str__(self) -> str:
        if self.rule is None:
            return "learning rates of the script, whatever a step counts"
        return f"learning rates {self.rule} in the samples of a step, those of the script at {self.batch}"


class ScaledRates:
    """The rates of the optimizers of one wrapper.

    Attributes:
        factor: of the last committed step.
    """

    def __init__(self, scaling: LrScaling, parts: Collection[object]) -> None:
        """Check that all optimizers among `parts` have rates, if `scaling` has a rule.

        Raises:
            ValueError: an optimizer has a group without a learning rate.
        """
        self.factor = 1.0
        self._scaling = scaling
        self._factors: dict[torch.optim.Optimizer, float] = {}
        self._held: list[tuple[dict[str, Any], Any]] = []
        for optimizer in parts:
            if scaling.rule is not None and isinstance(optimizer, torch.optim.Optimizer):
                for number, group in enumerate(optimizer.param_groups):
                    if group.get("lr") is None:
                        raise ValueError(
                            f"group {number} of {type(optimizer).__name__} has no lr that lr_scaling={scaling.rule!r} "
                            "could scale: remove lr_scaling, or give the group an lr"
                        )

    def committed(self, optimizers: Collection[torch.optim.Optimizer], weight: int) -> None:
        """Note that gradients of a step of this weight were committed, for these optimizers."""
        self.factor = self._scaling.factor(weight)
        self._factors |= dict.fromkeys(optimizers, self.factor)

    def apply(self, optimizer: torch.optim.Optimizer) -> None:
        """Scale the rates of an optimizer before its update with its last committed gradients."""
        self.restore()
        factor = self._factors.get(optimizer, 1.0)
        if factor != 1.0:
            self._held = [(group, group["lr"]) for group in optimizer.param_groups]
            for group, lr in self._held:
                group["lr"] = lr * factor

    def restore(self) -> None:
        """Restore the rates after an update, or after its error."""
        for group, lr in self._held:
            group["lr"] = lr
        self._held = []

    def forget(self) -> None:
        """Keep the current rates, as set by a loaded state, without restoring others."""
        self._held = []
