"""Detection of changes to the parameters and buffers of a wrapped model."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from operator import attrgetter, is_, methodcaller
from typing import Final

import torch
import xxhash
from torch import nn

from ...errors import ShoalError
from .module_state import tensors_of

REFRESH: Final = (
    "plan the change (`changes=` of p2p.DataParallel), or call `refresh()` of p2p.DataParallel, on every peer after "
    "the same step"
)
OF_STEPS: Final = f"its gradients are not averaged over all peers: give the optimizer its new parameters, and {REFRESH}"
OF_ROUNDS: Final = (
    "rounds would not exchange what is trained: wrap the model while everything that is ever trained needs a "
    "gradient, and freeze after that what has to wait"
)
OTHER_STATE: Final = (
    "joiners and resumed runs have another state_dict: change the model before it is wrapped (if its first forward "
    "pass makes buffers, run that first)"
)

CONTAINERS: Final = (nn.ModuleDict, nn.ModuleList, nn.Sequential)
"""Modules whose own mode has no effect; scripts that call `train` on their children do not change it."""


class Watch:
    """Checks that the summed parameters are in the model, that no other needs a gradient, and its state's names.

    Costs 3 ms for 20,000 parameters of 10,000 layers while there is no change.

    Attributes:
        summed: the parameters that needed a gradient at the wrap.
    """

    def __init__(self, module: nn.Module, summed: Iterable[nn.Parameter], advice: str = OF_STEPS) -> None:
        """Record `module` as it is now; `summed`: its parameters that need a gradient."""
        self._module, self._advice = module, advice
        self.summed = frozenset(summed)
        self._names = {parameter: name for name, parameter in module.named_parameters()}
        self._state = [*tensors_of(module)]
        self._modes, self._modes_in_words = b"", ""
        self._noted: str | None = None
        self._said: str | None = None
        self._remember()

    def check(self) -> None:
        """Accept changes of other modules and parameters, and remember them.

        Raises:
            ShoalError: a new parameter needs a gradient, a summed one is gone, or the `state_dict` has other names.
        """
        if not self._is_as_before():
            if (found := self._first_change()) is not None:
                name, what = found
                raise ShoalError(f"parameter {name} was {what} after the model was wrapped, so {self._advice}")
            self._check_state()
            self._remember()

    def check_other(self, optimizer: torch.optim.Optimizer) -> None:
        """Check an optimizer that is about to update no summed parameter.

        Raises:
            ShoalError: the model has changed, and one of the parameters belongs to it, now or at the wrap.
        """
        if self._is_as_before():
            return
        own = {*self._names, *self._module.parameters()}
        trained = (each for group in optimizer.param_groups for each in group["params"] if each.grad is not None)
        if (found := next((each for each in trained if each in own), None)) is not None:
            self.check()
            name = self._names[found]
            raise ShoalError(f"parameter {name} was unfrozen after the model was wrapped, so {self._advice}")

    def _check_state(self) -> None:
        state = [*tensors_of(self._module)]
        for names, others, what in ((state, self._state, "added"), (self._state, state, "removed")):
            if name := next((name for name in names if name not in {*others}), ""):
                way_out = f", or {REFRESH}" if self._advice is OF_STEPS else ""
                raise ShoalError(f"{name} was {what} after the model was wrapped, so {OTHER_STATE}{way_out}")

    def frozen(self) -> str:
        """The summed parameters that need no gradient now, in words; equal words mean equal parameters."""
        if all(map(attrgetter("requires_grad"), self.summed)):
            return ""
        names = [name for each, name in self._names.items() if each in self.summed and not each.requires_grad]
        digest = xxhash.xxh3_64_hexdigest(repr(names).encode())
        return f"{len(names)} parameters, the first {names[0]}, are frozen (digest {digest})"

    def in_words(self, *, is_skipped: bool = False) -> str:
        """How the model is trained in this step, in words to compare: frozen parameters, layers in evaluation mode.

        Modes are those noted by `note_modes` since the last call, else the current ones. `is_skipped`: the script skips
        the step; if all layers are in evaluation mode then, the modes of the step before are used.
        """
        modes, self._noted = self._noted, None
        if modes is None:
            is_elsewhere = is_skipped and self._said is not None and not any(map(attrgetter("training"), self._layers))
            modes = self._said if is_elsewhere else self.evaluates()
        self._said = modes
        return ", while ".join(filter(None, (self.frozen(), modes)))

    def note_modes(self) -> None:
        """Note the current modes of layers as those of the next step."""
        self._noted = self.evaluates()

    def evaluates(self) -> str:
        """The layers in evaluation mode, in words as `frozen`: they use other statistics, and update none."""
        modes = bytes(map(attrgetter("training"), self._layers))
        if modes != self._modes:
            named = ((name, each) for name, each in self._module.named_modules() if type(each) not in CONTAINERS)
            names = [name for name, layer in named if not layer.training]
            digest, first = xxhash.xxh3_64_hexdigest(repr(names).encode()), next(filter(None, names), "the model")
            number = f"{len(names)} layers, the first {first},"
            self._modes_in_words = f"{number} are in evaluation mode (digest {digest})" if names else ""
            self._modes = modes
        return self._modes_in_words

    def _remember(self) -> None:
        self._layers, self._modes = [each for each in self._module.modules() if type(each) not in CONTAINERS], b""
        tables = ((each._parameters, each._modules) for each in self._module.modules())
        every: list[Mapping[str, object]] = [table for pair in tables for table in pair]
        self._tables, self._empty = [each for each in every if each], [each for each in every if not each]
        self._held = list(_values(self._tables))
        self._frozen = [each for each in self._module.parameters() if each not in self.summed]
        buffers = [each._buffers for each in self._module.modules()]
        self._empty += [each for each in buffers if not each]
        self._with_buffers = [each for each in buffers if each]
        self._buffers = [_filled(each) for each in self._with_buffers]

    def _is_as_before(self) -> bool:
        if any(self._empty) or any(map(attrgetter("requires_grad"), self._frozen)):
            return False
        if sum(map(len, self._tables)) != len(self._held) or not all(map(is_, _values(self._tables), self._held)):
            return False
        return [*map(_filled, self._with_buffers)] == self._buffers

    def _first_change(self) -> tuple[str, str] | None:
        """Name of a changed parameter, and the kind of change."""
        named = dict(self._module.named_parameters())
        before = set(self._names.values())
        for name, parameter in named.items():
            if parameter.requires_grad and parameter not in self.summed:
                return name, "unfrozen" if parameter in self._names else "replaced" if name in before else "added"
        there = set(named.values())
        return next(((name, "removed") for each, name in self._names.items() if each in self.summed - there), None)


def is_training(module: nn.Module) -> bool:
    """Whether the model, or any of its layers, is in training mode, as is none in an evaluation."""
    return any(map(attrgetter("training"), module.modules()))


def _filled(buffers: Mapping[str, torch.Tensor | None]) -> list[str]:
    """Names of the buffers that are not None; a script may replace their tensors."""
    return [name for name, buffer in buffers.items() if buffer is not None]


def _values(tables: Sequence[Mapping[str, object]]) -> Iterable[object]:
    return chain.from_iterable(map(methodcaller("values"), tables))
