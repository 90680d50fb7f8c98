"""The initial settings of a script, stored in checkpoints: they tell an edited script from one that has progressed.

Frozen parameters and settings of optimizer groups change during a run, and continue as in the checkpoint. If the
initial
values of this script differ from those of the script that wrote the checkpoint, its user has changed them: flags of
frozen parameters then follow this script (rounds refuse that), and other differences are logged.
"""

import logging
from collections.abc import Mapping
from typing import Any

import torch
import xxhash
from torch import nn

from ...errors import JoinRefused
from .comparison import first_change, settings_of
from .replica_state import Stateful

logger = logging.getLogger("p2p")


class InitialSettings:
    """The initial settings of one model, its optimizers and the other parts."""

    def __init__(self, module: nn.Module, parts: Mapping[str, Stateful]) -> None:
        """Record `module` and `parts`, by name, as they are now."""
        self._module, self._parts = module, parts
        self._saved: Mapping[str, Any] | None = None
        self._settings: Mapping[str, Any] = {}
        self.refresh()

    def refresh(self) -> None:
        """Take up a changed module. Existing groups keep their initial settings, whatever their rates are now."""
        self._trained = {name: each.requires_grad for name, each in self._module.named_parameters()}
        self._settings = {**settings_of(self._parts), **self._settings}

    def state_dict(self) -> dict[str, Any]:
        """The initial settings as plain values."""
        return {
            "trained": self._trained,
            "settings": self._settings,
            "groups": self._groups(),
            "kinds": self._kinds(),
        }

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Keep a loaded state for `resume`; None: the checkpoint has none."""
        self._saved = state

    def resume(self) -> str:
        """Compare the script that wrote the loaded checkpoint with this one.

        Returns:
            The parameters that only one of the two scripts trains, in words; empty: none.

        Raises:
            JoinRefused: an optimizer has its parameters in other groups, or in another order, so that moments were
                loaded for the wrong parameters; or the other parts are in another order.
        """
        saved, self._saved = self._saved, None
        if saved is None:
            return ""
        here, there = self._kinds(), saved.get("kinds", self._kinds())
        if here != there and sorted(here) == sorted(there):
            raise JoinRefused(
                f"it has the states of {', '.join(there)}, but this script has {', '.join(here)}. They are loaded by "
                "position, so pass `extra` in the order of the checkpoint"
            )
        ours, theirs = self._groups(), saved["groups"]
        for name in ours.keys() & theirs.keys():
            for number, (mine, other) in enumerate(zip(ours[name], theirs[name], strict=False)):
                if mine != other:
                    raise JoinRefused(
                        f"group {number} of {name} has other parameters, or another order of them: {mine} here, "
                        f"{other} there. Moments are loaded by position, so pass the parameters in the order of the "
                        "checkpoint"
                    )
        if list(ours) != list(theirs):
            logger.warning(
                "the checkpoint is of %s, but this script has %s: groups and moments are loaded as they are, "
                "including the settings in them, as `load_state_dict` does",
                *(", ".join(each) or "no optimizer" for each in (theirs, ours)),
            )
        elif here != there:
            logger.warning(
                "the checkpoint has the states of %s, but this script has %s: each is loaded by position, as "
                "`load_state_dict` does",
                *(", ".join(each) for each in (there, here)),
            )
        elif found := first_change(saved["settings"], self._settings):
            logger.warning(
                "%s was %s in the script that wrote the checkpoint, but is %s in this one: the run continues with the "
                "value of the checkpoint, as `load_state_dict` does; to use another one, set it after the wrap",
                *found,
            )
        return self._take_flags(saved["trained"])

    def _take_flags(self, saved: Mapping[str, bool]) -> str:
        """Set `requires_grad` as in this script where the initial flags of the two scripts differ."""
        changed = [
            (name, each)
            for name, each in self._module.named_parameters()
            if self._trained.get(name) != saved.get(name, self._trained.get(name))
        ]
        for name, each in changed:
            each.requires_grad_(self._trained[name])
        if not changed:
            return ""
        name, each = changed[0]
        now, before = ("trained", "frozen") if each.requires_grad else ("frozen", "trained")
        return (
            f"{len(changed)} parameters, the first {name}, are {now} in this script, but were {before} in the one "
            "that wrote the checkpoint"
        )

    def _kinds(self) -> list[str]:
        return [type(each).__name__ for each in self._parts.values()]

    def _groups(self) -> dict[str, list[str]]:
        """For each group of each optimizer, the number of parameters and a digest of their names, in words."""
        names = {id(each): name for name, each in self._module.named_parameters()}
        return {
            part_name: [
                _in_words([names.get(id(each), "?") for each in group["params"]]) for group in part.param_groups
            ]
            for part_name, part in self._parts.items()
            if isinstance(part, torch.optim.Optimizer)
        }


def _in_words(names: list[str]) -> str:
    first = f", the first {names[0]}" if names else ""
    return f"{len(names)} parameters{first} (digest {xxhash.xxh3_64_hexdigest(repr(names).encode())[:8]})"


def has_moments(parts: Mapping[str, Stateful]) -> bool:
    """Whether an optimizer among `parts` has a state."""
    return any(isinstance(each, torch.optim.Optimizer) and len(each.state) for each in parts.values())


def say_what_is_lost(num_trained: int, *, had_moments: bool) -> None:
    """Warn if the script of this peer had loaded a state, and another peer founded the swarm without it."""
    if num_trained or had_moments:
        logger.warning(
            "the script of this peer had loaded a state, of step %d, but the swarm was founded without it, at step 0, "
            "so it is lost: load the same state on every founder, or pass checkpoint=, whose holder sends it to all",
            num_trained,
        )
