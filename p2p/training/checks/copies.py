"""Search for copies of a model that a script keeps outside `extra`, so that no joiner receives them; logged once.

An average of weights, a teacher, or a target network does not change the members' parameters, so no comparison shows
that a joiner has started its own from scratch. The search covers the objects of the process: objects with a
`state_dict` that hold tensors of the model's shapes, and any lists and dicts of tensors close to the model's. A copy is
reported once it changes. Leaves out a list whose elements are replaced in each step.
"""

import gc
import logging
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Final, NamedTuple, TypeAlias

import torch
import xxhash
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ...step.receipts import Receipt
from ..side_operations import SideOperations
from ..state.replica_state import Stateful, raw_bytes

logger = logging.getLogger("p2p")

FIRST_LOOKS: Final = (1, 4, 16)
"""Steps of the first searches; each later one comes after four times as many steps, since it visits all objects."""

MOST_BETWEEN: Final = 4096
"""The most steps between two searches."""

MOST_SHARE: Final = 0.01
"""Share of a run's time that later searches may take."""

PLAIN: Final = (list, dict, OrderedDict)

MOST_PROBES: Final = 16
"""Tensors whose holders are searched at once: each object is compared with each of these tensors."""


Shapes: TypeAlias = tuple[torch.Size, ...]


class Copy(NamedTuple):
    """A copy that was found."""

    holder: Any
    name: str
    witness: Any
    """The copy is the same while this is the same object. It is kept by a weak reference, or is a str."""
    tensors: list[Tensor]


class ModelCopies(SideOperations):
    """Search for copies of one model, or of several."""

    def __init__(self, module: nn.Module, parts: Mapping[str, Stateful], clock: Callable[[], float]) -> None:
        """Search for copies of `module`, and of each model in it, if it is a dict of several.

        Args:
            module: the model.
            parts: all parts that a joiner receives.
            clock: in seconds.
        """
        self._models = [module, *(module.values() if isinstance(module, nn.ModuleDict) else ())]
        self._parts = parts
        self._clock = clock
        self._num_steps, self._next, self._not_before_s = 0, FIRST_LOOKS[0], 0.0
        self._known: dict[int, tuple[Callable[[], Any], int]] = {}
        self._has_warned = False

    def on_commit(self, receipt: Receipt) -> None:
        """Count a committed step, and search if one is due."""
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
        for holder, name, witness, tensors in self._found():
            digest = _digest(tensors)
            seen, old = before.get(id(holder), (None, digest))
            self._known[id(holder)] = _weakly(witness), digest
            if seen is not None and seen() is witness and old != digest:
                logger.warning(
                    "%s has a copy of the model's parameters that changes (an average of weights, a teacher or a "
                    "target network?) and is not in extra=, so a joiner or a resumed run would start its copy anew. "
                    "Put it into extra on every peer, in an object with `state_dict` and `load_state_dict` (reported "
                    "once)",
                    name,
                )
                self._has_warned = True
                self._known.clear()
                return

    def _found(self) -> Iterator[Copy]:
        """Each copy once."""
        every = [[*model.parameters()] for model in self._models]
        every += [[each for each in own if each.requires_grad] for own in every]
        states = [model.state_dict().values() for model in self._models]
        every += [[each for each in own if isinstance(each, Tensor)] for own in states]
        originals: dict[Shapes, list[Sequence[Tensor]]] = {}
        for own in filter(None, every):
            originals.setdefault(_shapes(own), []).append(own)
        given = [*every[0], *filter(_is_in_memory, _given(self._parts))]
        taken = {each.data_ptr() for each in given} - {0}
        stateful, tensors = _alive()
        # Tensors are kept with their ids, since an id may be reused.
        ours = {id(each): each for each in (*given, *chain.from_iterable(every), *(each.grad for each in every[0]))}
        plain = _plain([each for each in tensors if id(each) not in ours and not each.is_nested], originals)
        masters = _masters(self._parts.values(), {id(each) for each in every[0]})
        for copy in chain(masters, chain.from_iterable(map(_copies_of, stateful)), plain):
            places = {each.data_ptr() for each in copy.tensors} - {0}
            is_like = copy.holder in self._parts.values() or _shapes(copy.tensors) in originals
            if is_like and places and not places & taken:
                taken |= places
                yield copy


def _weakly(witness: Any) -> Callable[[], Any]:
    """A function that returns `witness` as long as it exists; a str, which allows no weak reference, is kept."""
    return (lambda: witness) if isinstance(witness, str) else weakref.ref(witness)


def _shapes(tensors: Sequence[Tensor]) -> Shapes:
    return tuple(each.shape for each in tensors)


def _alive() -> tuple[list[Any], list[Tensor]]:
    """All objects with a `state_dict`, and all tensors; selected by type, so that no code of an object runs.

    A reference to a tuple that another thread is still building makes that thread fail (SystemError), and the list of
    all objects has such references. So one C call, which neither another thread nor the collector can interrupt,
    consumes that list and keeps only the types; instances are then found as referrers of their types.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        # `map` is lazy: the list of objects is created when `set` asks for the first, within that one call.
        found = set(map(type, chain.from_iterable(map(gc.get_objects, (None,)))))
    finally:
        if was_enabled:
            gc.enable()
    kinds = {kind for kind in found if _has_state(kind)}
    tensors = (Tensor, nn.Parameter)
    everything = gc.get_referrers(*kinds, *tensors)
    return [each for each in everything if type(each) in kinds], [each for each in everything if type(each) in tensors]


def _has_state(kind: type) -> bool:
    return all(callable(getattr(kind, name, None)) for name in ("state_dict", "load_state_dict"))


def _copies_of(holder: Any) -> Iterator[Copy]:
    """Candidates for a copy of all parameters: parameters of a module, or a list or dict in another object."""
    try:
        held = [[*holder.parameters()]] if isinstance(holder, nn.Module) else [*vars(holder).values()]
    except (AttributeError, RuntimeError, TypeError):  # another thread is still building it
        return
    for each in held:
        if tensors := _tensors_in(each):
            yield Copy(holder, type(holder).__name__, holder, tensors)


def _masters(parts: Iterable[Stateful], ours: Collection[int]) -> Iterator[Copy]:
    """What an optimizer among `parts` has that is none of `ours`; it may be of some parameters alone."""
    for part in parts:
        if isinstance(part, torch.optim.Optimizer):
            every = (each for group in part.param_groups for each in group["params"])
            if tensors := [each for each in every if id(each) not in ours and _is_in_memory(each)]:
                yield Copy(part, type(part).__name__, part, tensors)


def _tensors_in(each: Any) -> list[Tensor]:
    """The tensors of a list, tuple or dict, if all its values are strided tensors; else empty."""
    values = [*each.values()] if isinstance(each, dict) else [*each] if isinstance(each, list | tuple) else []
    return values if all(map(_is_in_memory, values)) else []


def _is_in_memory(each: Any) -> bool:
    """A tensor whose elements can be read: none that is sparse, of the device `meta`, or of a lazy module still."""
    return isinstance(each, Tensor) and not is_lazy(each) and each.layout is torch.strided and not each.is_meta


def _plain(alive: Sequence[Tensor], originals: Mapping[Shapes, Sequence[Sequence[Tensor]]]) -> Iterator[Copy]:
    """Lists and dicts, in any holder, of tensors close to originals of the same shapes.

    A dict is identified by the first of its keys that was created for it (with a dot), which stays if values are
    replaced (`ema[name] = ...`); a list, by its first tensor.
    """
    numbers = Counter(_shapes(alive))
    rarest = {min(shapes, key=lambda shape: (numbers[shape], -shape.numel())) for shapes in originals}
    probes = (each for each in alive if each.shape in rarest)
    for holder in gc.get_referrers(*islice(probes, MOST_PROBES)):
        if type(holder) not in PLAIN or not (tensors := _tensors_in(holder)):
            continue
        if not all(each.is_leaf for each in tensors):
            continue
        if any(_is_near(tensors, original) for original in originals.get(_shapes(tensors), ())):
            names = holder if isinstance(holder, dict) else ()
            made = (name for name in names if isinstance(name, str) and "." in name)
            name = f"a {'list' if type(holder) is list else 'dict'} of the script"
            yield Copy(holder, name, next(made, tensors[0]), tensors)


@torch.no_grad()
def _is_near(tensors: Sequence[Tensor], originals: Sequence[Tensor]) -> bool:
    """Whether `tensors` are closer to `originals` than zeros are, which does not hold for gradients or moments."""
    distance = size = 0.0
    for each, original in zip(tensors, originals, strict=True):
        if original.is_floating_point():
            here = original.to(torch.float32)
            distance += float(torch.dist(each.to(here), here)) ** 2
            size += float(torch.linalg.vector_norm(here)) ** 2
    return distance < size / 2


def _given(parts: Mapping[str, Stateful]) -> Iterator[Tensor]:
    """Tensors that a joiner receives with `parts`, or that these objects hold.

    Tensors that an optimizer updates are not part of its state: if these are copies of parameters in another type
    (masters), the script has to pass them on.
    """
    for part in parts.values():
        changed = ["param_groups"] if isinstance(part, torch.optim.Optimizer) else []
        held = (each for name, each in getattr(part, "__dict__", {}).items() if name not in changed)
        stack: list[Any] = [part.state_dict(), *held]
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
