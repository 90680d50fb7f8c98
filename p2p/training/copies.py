"""Copies of a model that a script keeps beside it, and that no joiner is given: found once they change, and said once.

An average of weights, a teacher, a target network change no parameter of the members, so nothing that is compared
shows that a joiner has begun its own anew. They are looked for among the objects of the process: what has a
`state_dict`, and tensors of the model's shapes. Leaves out plain lists and dicts of the script itself.
"""

import gc
import logging
import weakref
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any, Final

import torch
import xxhash
from torch import Tensor, nn

from ..step.receipts import Receipt
from .beside import Beside
from .replica_state import Stateful, raw_bytes

logger = logging.getLogger("p2p")

FIRST_LOOKS: Final = (1, 4, 16)
"""Steps; a later look is after four times as many steps as the one before, since one goes through all objects."""

MOST_BETWEEN: Final = 4096
"""Steps."""

MOST_SHARE: Final = 0.01
"""Of the time of a run that later looks may take."""


class ModelCopies(Beside):
    """Of one model, or of several."""

    def __init__(self, module: nn.Module, parts: Mapping[str, Stateful], clock: Callable[[], float]) -> None:
        """Of all of `module`, and of each model in it, if it is a dict of several.

        Args:
            module: the model.
            parts: all that a joiner is given.
            clock: in seconds.
        """
        self._models = [module, *(module.values() if isinstance(module, nn.ModuleDict) else ())]
        self._parts = parts
        self._clock = clock
        self._num_steps, self._next, self._not_before_s = 0, FIRST_LOOKS[0], 0.0
        self._known: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._has_warned = False

    def hand_out(self, receipt: Receipt) -> None:
        """A step is committed: look, if it is time to."""
        self._num_steps += 1
        if self._num_steps < self._next or self._has_warned:
            return
        began_s = self._clock()
        if self._num_steps not in FIRST_LOOKS and began_s < self._not_before_s:
            return
        self._look()
        self._next = self._num_steps + min(3 * self._num_steps, MOST_BETWEEN)
        ended_s = self._clock()
        self._not_before_s = ended_s + (ended_s - began_s) / MOST_SHARE

    def _look(self) -> None:
        before, self._known = self._known, {}
        for holder, tensors in self._found():
            digest = _digest(tensors)
            seen, old = before.get(id(holder), (None, digest))
            self._known[id(holder)] = (weakref.ref(holder), digest)
            if seen is not None and seen() is holder and old != digest:
                logger.warning(
                    "%s has a copy of the model's parameters, which changes, and is not in extra=: "
                    "a joiner, or a run that is resumed, would begin its own anew, an average of weights, a teacher or "
                    "a target network; put it into extra, on every peer; this is said once",
                    type(holder).__name__,
                )
                self._has_warned = True
                self._known.clear()
                return

    def _found(self) -> Iterator[tuple[Any, list[Tensor]]]:
        """Objects that have a copy, each copy once, and the tensors of it."""
        every = [[*model.parameters()] for model in self._models]
        every += [[each for each in own if each.requires_grad] for own in every]
        shapes = [[each.shape for each in own] for own in every]
        taken = {each.data_ptr() for each in (*every[0], *_given(self._parts))} - {0}
        for holder in _stateful():
            for tensors in _sets_of(holder):
                places = {each.data_ptr() for each in tensors if not each.is_meta} - {0}
                if [each.shape for each in tensors] in shapes and places and not places & taken:
                    taken |= places
                    yield holder, tensors


def _stateful() -> Iterator[Any]:
    """All objects that have a `state_dict`; by their types, so that no object is asked anything.

    A tuple that another thread is just making must not be held while that thread goes on (its SystemError), and all
    objects are. So the look at them is one call of C, in which no other thread has a turn, nor has the collector; an
    object refers to its type, and who refers to one is found without holding the others.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        # `map` asks for the objects as `set` asks for the first of them: all of it is within that call.
        found = set(map(type, chain.from_iterable(map(gc.get_objects, (None,)))))
    finally:
        if was_enabled:
            gc.enable()
    kinds = {kind for kind in found if _has_state(kind)}
    return (each for each in gc.get_referrers(*kinds) if type(each) in kinds)


def _has_state(kind: type) -> bool:
    return all(callable(getattr(kind, name, None)) for name in ("state_dict", "load_state_dict"))


def _sets_of(holder: Any) -> Iterator[list[Tensor]]:
    """Tensors that may be a copy of all parameters: those of a module, or a list or dict in another object."""
    try:
        held = [[*holder.parameters()]] if isinstance(holder, nn.Module) else [*vars(holder).values()]
    except (AttributeError, RuntimeError, TypeError):  # another thread is making it
        return
    for each in held:
        values = [*each.values()] if isinstance(each, dict) else [*each] if isinstance(each, list | tuple) else []
        if values and all(isinstance(value, Tensor) and value.layout is torch.strided for value in values):
            yield values


def _given(parts: Mapping[str, Stateful]) -> Iterator[Tensor]:
    """Tensors that a joiner is given with `parts`, or that their objects hold."""
    for part in parts.values():
        stack: list[Any] = [part.state_dict(), *getattr(part, "__dict__", {}).values()]
        while stack:
            each = stack.pop()
            if isinstance(each, Tensor):
                yield each
            elif isinstance(each, nn.Module):
                stack += each.parameters()
            elif isinstance(each, dict):
                stack += each.values()
            elif isinstance(each, list | tuple):
                stack += each


def _digest(tensors: list[Tensor]) -> int:
    digest = xxhash.xxh3_64()
    for each in tensors:
        digest.update(raw_bytes(each.detach()))
    return digest.intdigest()
