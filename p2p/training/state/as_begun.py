"""How a script has made what it wraps, in checkpoints: a script that was changed is told from one that has come far.

What is frozen, and what groups of optimizers say, changes in a run, and goes on as the checkpoint has it. Where the
script itself says something else than the one that has written it, its user means that.
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


class AsBegun:
    """Of one model, and of what changes it."""

    def __init__(self, module: nn.Module, parts: Mapping[str, Stateful]) -> None:
        """`module` and `parts`, by name, as they are now."""
        self._module, self._parts = module, parts
        self._saved: Mapping[str, Any] | None = None
        self._settings: Mapping[str, Any] = {}
        self.refresh()

    def refresh(self) -> None:
        """The module is another one by now. Groups that were there began as they did, whatever rates they have now."""
        self._trained = {name: each.requires_grad for name, each in self._module.named_parameters()}
        self._settings = {**settings_of(self._parts), **self._settings}

    def state_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"trained": self._trained, "settings": self._settings, "groups": self._groups()}

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Keep them for `resume`; None: the state has none."""
        self._saved = state

    def resume(self) -> str:
        """What was loaded is of a checkpoint, which perhaps another script has written.

        Returns:
            What this script trains and that one did not, or the other way round, in words; empty: nothing.

        Raises:
            JoinRefused: an optimizer has parameters in other groups, or in another order, so that it was given moments
                of others.
        """
        saved, self._saved = self._saved, None
        if saved is None:
            return ""
        ours, theirs = self._groups(), saved["groups"]
        for name in ours.keys() & theirs.keys():
            for number, (here, there) in enumerate(zip(ours[name], theirs[name], strict=False)):
                if here != there:
                    raise JoinRefused(
                        f"group {number} of {name} has other parameters, or in another order: {here} here, {there} "
                        "there; what it keeps is loaded by their places, so give them in those of then"
                    )
        if list(ours) != list(theirs):
            logger.warning(
                "the checkpoint is of %s, and this script has %s: groups and moments are loaded as they are, and with "
                "them what these say, as `load_state_dict` does it",
                *(", ".join(each) or "no optimizer" for each in (theirs, ours)),
            )
        elif found := first_change(saved["settings"], self._settings):
            logger.warning(
                "%s was %s in the script that the checkpoint is of, and is %s in this one: the run goes on with that "
                "of the checkpoint, as `load_state_dict` does it; set it behind the wrap to have another one",
                *found,
            )
        return self._take_flags(saved["trained"])

    def _take_flags(self, saved: Mapping[str, bool]) -> str:
        """What this script has frozen that the other one had not, or the other way round, is as in this one."""
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
            f"{len(changed)} parameters, the first {name}, are {now} in this script, and were {before} in the one that "
            "the checkpoint is of"
        )

    def _groups(self) -> dict[str, list[str]]:
        """By optimizer, of each group how many parameters it has, and a digest of their names."""
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
    """Whether an optimizer among `parts` keeps something."""
    return any(isinstance(each, torch.optim.Optimizer) and len(each.state) for each in parts.values())


def say_what_is_lost(num_trained: int, *, had_moments: bool) -> None:
    """A swarm was founded anew, and this peer, which did not found it, had a state that its script has loaded."""
    if num_trained or had_moments:
        logger.warning(
            "the script of this peer has loaded a state, of step %d, and the swarm was founded without it, at step 0: "
            "load the same on every founder, or pass checkpoint=, whose holder gives it to all",
            num_trained,
        )
