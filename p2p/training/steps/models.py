"""The models of one wrapper: one, or several by name (a generator and a discriminator, an actor and a critic)."""

import reprlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR

from ..checks.belonging import check_optimizers
from ..checks.rates import unwrapped

AS_ONE = "wrap one nn.ModuleDict of all models, and pass the further optimizers in extra="


@dataclass(frozen=True, slots=True)
class Models:
    """The wrapped models and their optimizers.

    Attributes:
        module: contains all models; the state is that of this module.
        named: the models by name; a single one has an empty name.
        optimizers: by the name of their model, or by another name for several; a single one has an empty name.
    """

    module: nn.Module
    named: Mapping[str, nn.Module]
    optimizers: Mapping[str, Any]

    def check(self, parts: Mapping[str, object]) -> None:
        """Raise TypeError or ValueError unless optimizers have parameters of their model, those in `parts` of any."""
        for name, optimizer in self.optimizers.items():
            check_optimizers(
                self.named.get(name, self.module), {f"optimizer {name}" if name else "the optimizer": optimizer}
            )
        check_optimizers(self.module, parts)


def collect_models(models: nn.Module | Mapping[str, nn.Module], optimizers: Any) -> Models:
    """Collect the arguments of `DataParallel`.

    Raises:
        TypeError, ValueError: they are neither a model and an optimizer, nor dicts by name.
    """
    if isinstance(models, nn.Module):
        if isinstance(optimizers, Mapping):
            raise TypeError("the optimizers have names, but the model has none: pass a dict of models, too")
        return Models(models, {"": models}, {"": unwrapped(optimizers)})
    if not isinstance(models, Mapping):
        raise TypeError(f"the model must be a torch.nn.Module, or a dict of them, is a {type(models).__name__}")
    if not models:
        raise ValueError("the dict of models is empty")
    for name, model in models.items():
        if not isinstance(model, nn.Module):
            raise TypeError(f"model {name!r} must be a torch.nn.Module, is a {type(model).__name__}")
    try:
        module = nn.ModuleDict(models)
    except (KeyError, TypeError) as error:
        raise ValueError(f"models cannot be called {', '.join(map(repr, models))}: {error.args[0]}") from None
    _check_are_apart(models)
    if not isinstance(optimizers, Mapping):
        return Models(module, dict(models), {"": unwrapped(optimizers)})
    if not optimizers:
        raise ValueError(f"the dict of optimizers is empty; the models are {', '.join(models)}")
    return Models(module, dict(models), {name: unwrapped(each) for name, each in optimizers.items()})


def name_parts(optimizers: Mapping[str, Any], extra: Sequence[Any]) -> dict[str, Any]:
    """All parts that a joiner receives in addition to the models, by their names in messages, equal on all peers.

    An optimizer has the name that the script gave it; other parts are named by class, and by the index in `extra` if
    several have the same class.

    Raises:
        TypeError: `extra` is no sequence of objects with a state.
    """
    if isinstance(extra, Mapping) or not isinstance(extra, Iterable):
        raise TypeError(f"extra must be a list of objects, as in extra=[schedule, scaler], is {reprlib.repr(extra)}")
    for each in extra:
        if not (hasattr(each, "state_dict") and hasattr(each, "load_state_dict")):
            raise TypeError(f"objects in extra must have state_dict and load_state_dict, got {reprlib.repr(each)}")
    further = [unwrapped(each) for each in extra]
    kinds = Counter(type(each).__name__ for each in (*optimizers.values(), *further))
    named = {}
    for name, optimizer in optimizers.items():
        kind = type(optimizer).__name__
        named[f"optimizer {name} ({kind})" if name else kind] = optimizer
    for place, each in enumerate(further):
        kind = type(each).__name__
        named[kind if kinds[kind] == 1 else f"{kind} (extra[{place}])"] = each
    return named


def ends_of(parts: Mapping[str, Any]) -> dict[str, int]:
    """The number of steps after which a schedule raises, by name."""
    return {name: each.total_steps for name, each in parts.items() if isinstance(each, OneCycleLR)}


def _check_are_apart(models: Mapping[str, nn.Module]) -> None:
    owners: dict[torch.Tensor, str] = {}
    for name, model in models.items():
        for path, parameter in model.named_parameters():
            if (owner := owners.setdefault(parameter, f"{name}.{path}")) != f"{name}.{path}":
                raise ValueError(f"parameter {name}.{path} is also {owner}, so no optimizer has it alone: {AS_ONE}")


class OneOfSeveral(nn.Module):
    """A wrapper of one of several models, to be called in place of the model.

    Attributes:
        module: the model.
    """

    def __init__(self, module: nn.Module, forward: Callable[..., Any]) -> None:
        """`forward` is called for each forward pass."""
        super().__init__()
        self.module = module
        self._forward = forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model's forward pass, as `DataParallel.forward`."""
        return self._forward(self.module, *args, **kwargs)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The state dict of the model."""
        return self.module.state_dict(*args, **kwargs)
