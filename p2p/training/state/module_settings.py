"""Plain attributes of modules, which are not part of a state: a temperature, the rate of a dropout."""

import logging
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from ...step.receipts import Receipt
from ..side_operations import SideOperations

logger = logging.getLogger("p2p")

MOST_SHOWN: Final = 16
"""The most changed attributes that are shown: the first by name."""

MOST_CHARACTERS: Final = 80
UNCHANGED: Final = "as it was"

UNLIKE: Final = (
    "attributes of modules are not part of a state, and some that had changed where the state comes from have their "
    "initial values again: %s. If training depends on them (a temperature, a dropout rate), it now differs: compute "
    "them from peer.done or the number of the epoch, or make them buffers (reported once)"
)


class ModuleSettings(SideOperations):
    """Numbers, strings and flags that are attributes of a model's modules, and have changed since the wrap.

    A joiner, or a run that continues from a checkpoint, has its initial values; if a script changes them by events that
    a joiner has not seen, they differ. Costs a look at each attribute of each module.
    """

    def __init__(self, module: nn.Module) -> None:
        """Record the attributes of `module` as it is now."""
        self._module = module
        self._begun = dict(plain_of(module))
        self._expected: Mapping[str, str] = {}

    def refresh(self) -> None:
        """Take up a changed module: attributes of new layers start with their current values."""
        self._begun = {**dict(plain_of(self._module)), **self._begun}

    def changed(self) -> dict[str, str]:
        """The `repr` of the changed attributes, by name."""
        found = {name: value for name, value in plain_of(self._module) if self._begun.get(name) != value}
        return dict(sorted(found.items())[:MOST_SHOWN])

    def expect(self, then: Mapping[str, str]) -> None:
        """Expect the attributes `then`, which the writer of a loaded state had changed, after the next step."""
        self._expected = then

    def on_commit(self, receipt: Receipt) -> None:
        """Warn of expected attributes that the script has not set by the end of the first committed step."""
        if not self._expected:
            return
        expected, self._expected = self._expected, {}
        now = {name: value for name, value in plain_of(self._module) if name in expected}
        begun = [
            name
            for name in expected
            if name not in now or _is_nearer(now[name], self._begun.get(name, ""), expected[name])
        ]
        if words := differences({name: now.get(name, UNCHANGED) for name in begun}, {n: expected[n] for n in begun}):
            logger.warning(UNLIKE, words)


def differences(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    """Both values of each attribute that differs, in words; empty: none. Names cut off by `MOST_SHOWN` are skipped."""
    ends = [max(each) for each in (ours, theirs) if len(each) >= MOST_SHOWN]
    names = sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
    names = [name for name in names if all(name <= end for end in ends)]
    return ", ".join(
        f"{name} is {ours.get(name, UNCHANGED)} here, {theirs.get(name, UNCHANGED)} there" for name in names
    )


def _is_nearer(now: str, begun: str, then: str) -> bool:
    """Whether the value `now` is closer to the initial value `begun` than to the expected value `then`."""
    try:
        return abs(float(now) - float(begun)) < abs(float(now) - float(then))
    except ValueError:
        return now == begun != then


def plain_of(module: nn.Module) -> Iterator[tuple[str, str]]:
    for path, layer in module.named_modules():
        prefix = f"{path}." if path else ""
        for key, value in [*vars(layer).items()]:
            plain = value_of(value)
            if plain is not None and key != "training" and not key.startswith("_"):
                yield prefix + key, repr(plain)[:MOST_CHARACTERS]


def value_of(attribute: Any) -> bool | int | float | str | None:
    """The value of a number, string or flag, also of numpy, or of torch on the host; None for other objects."""
    is_scalar = type(attribute) is torch.Tensor and attribute.numel() == 1 and attribute.is_cpu
    plain = attribute.item() if is_scalar or isinstance(attribute, np.generic) else attribute
    return plain if type(plain) in (bool, int, float, str) else None


def check_shown(shown: Any) -> dict[str, str]:
    """Return the attributes that a member has sent, after a check of their form.

    Raises:
        TypeError: the form is wrong.
    """
    if not (isinstance(shown, dict) and all(isinstance(each, str) for pair in shown.items() for each in pair)):
        raise TypeError(f"attributes of modules are shown as {type(shown).__name__}")
    return shown
