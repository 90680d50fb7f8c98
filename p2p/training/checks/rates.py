"""Check for learning rates that no part of the state explains: a joiner's would differ; logged once."""

import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

logger = logging.getLogger("p2p")


class Rates:
    """Observes the learning rates of optimizers for which `extra` has no schedule."""

    def __init__(self, parts: Mapping[str, object], fate: str = "and be refused") -> None:
        """`parts`: all parts that a joiner receives, by name; `fate`: words on a joiner with other rates."""
        self._fate = fate
        self._watched = {
            each: name
            for name, each in parts.items()
            if isinstance(each, torch.optim.Optimizer) and not any(_may_schedule(part, each) for part in parts.values())
        }
        self._names = {each: name for name, each in parts.items() if isinstance(each, torch.optim.Optimizer)}
        self._known: dict[torch.optim.Optimizer, list[float]] = {}

    def forget(self) -> None:
        """Forget the known rates: a state was loaded, with the rates of the members, or a round begins."""
        self._known.clear()

    def check_in_round(self, optimizer: torch.optim.Optimizer) -> None:
        """Before an update in a round that ends by time: check that the rates are those at the start of the round."""
        rates = _rates(optimizer)
        before = self._known.setdefault(optimizer, rates)
        if before != rates and optimizer in self._names:
            number, (old, new) = next(
                pair for pair in enumerate(zip(before, rates, strict=True)) if len({*pair[1]}) > 1
            )
            logger.warning(
                "lr of group %d of %s changed to %g in the middle of a round, it was %g: with round_s= peers make "
                "different numbers of steps, so their rates would differ; compute them from peer.samples, which is "
                "the same on all peers",
                *(number, self._names.pop(optimizer), new, old),
            )

    def check(self, optimizer: torch.optim.Optimizer) -> None:
        """Before an update: check that the rates of an optimizer without a schedule have not changed."""
        if optimizer not in self._watched:
            return
        rates = _rates(optimizer)
        before = self._known.setdefault(optimizer, rates)
        for number, (old, new) in enumerate(zip(before, rates, strict=False)):
            if old != new:
                logger.warning(
                    "lr of group %d of %s changed to %g, it was %g, and nothing in extra= explains it. If it is "
                    "computed from peer.done alone, all is well. Otherwise a joiner would start with another rate, "
                    "%s, and a resumed run would keep this one: put the schedule into extra",
                    *(number, self._watched.pop(optimizer), new, old, self._fate),
                )
                return


def _rates(optimizer: torch.optim.Optimizer) -> list[float]:
    return [float(group["lr"]) for group in optimizer.param_groups if "lr" in group]


def _may_schedule(part: object, optimizer: torch.optim.Optimizer) -> bool:
    """Whether `part` may change the rates of `optimizer`: a part that names its optimizers changes only theirs."""
    if isinstance(part, torch.optim.Optimizer | torch.amp.GradScaler | nn.Module):
        return False
    optimizers = getattr(part, "optimizers", None) or [getattr(part, "optimizer", None)]
    return any(each is None or unwrapped(each) is optimizer for each in optimizers)


def unwrapped(optimizer: Any) -> Any:
    """The optimizer that makes the updates, inside wrappers such as `AcceleratedOptimizer`."""
    inner = getattr(optimizer, "optimizer", None)
    while isinstance(optimizer, torch.optim.Optimizer) and isinstance(inner, torch.optim.Optimizer):
        optimizer, inner = inner, getattr(inner, "optimizer", None)
    return optimizer
