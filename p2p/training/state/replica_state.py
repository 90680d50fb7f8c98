"""Serialisation of the state of a replica as plain values and raw tensors, without pickle.

State(D) is everything that the next step depends on: parameters, buffers, optimizer, the sampler's state, and parts of
the script (`extra`), after `optimizer.step` of step D. Imports torch; `import p2p` does not import this module.
"""

import copy
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import torch

from ...catchup.frozen import LEAST_BYTES, FrozenDiffer, digest_of
from ...errors import JoinRefused, RemoteProtocolError
from ...net.bounds import MAX_BYTES_LEN
from ...net.parcels import PackedState, Raw
from ...net.trees import Slot, pack_tree, unpack_tree
from ..tensors.layouts import dense_strides, in_memory_order, is_dense, is_overlapping, laid_out
from .numerics import FLAGS

OTHER_MODEL: Final = (
    "start this peer again with the model as it is now, or plan the change in all scripts (`changes=`), which needs "
    "no restart"
)
REFUSES: Final = (
    "`load_state_dict` of {0} raised {1!r}: it refuses its state, which the members or the checkpoint have; start this "
    "peer with a script whose {0} takes it"
)


class Stateful(Protocol):
    """An object with a state: an optimizer, a scheduler, a scaler."""

    def state_dict(self) -> dict[str, Any]:
        """The state as plain values and tensors."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> object:
        """Load the `state_dict` of another replica."""
        ...


def describe(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """Serialise the layout: name, shape, dtype and memory order of every tensor, in order.

    Raises:
        ValueError: elements of a tensor share memory, so that no state could be loaded into it; or the layout is too
            long.
    """
    for name, tensor in tensors.items():
        if is_overlapping(tensor):
            where = f"{list(tensor.shape)} with strides {list(tensor.stride())}"
            raise ValueError(f"elements of {name} share memory ({where}): give each its own, with `.clone()`")
    layout = pack_tree(_rows(tensors))
    if len(layout) > MAX_BYTES_LEN:
        raise ValueError(f"{len(tensors)} tensors cannot be described to a joiner in {MAX_BYTES_LEN} bytes")
    return layout


def _rows(tensors: Mapping[str, torch.Tensor]) -> list[list[Any]]:
    rows: list[list[Any]] = []
    for name, tensor in tensors.items():
        strides = None if tensor.is_contiguous() else dense_strides(tensor)  # dimensions of size 1 do not matter
        rows.append([name, list(tensor.shape), _dtype_name(tensor), strides])
    return rows


def compare(ours: bytes, theirs: bytes) -> str:
    """The first difference between two layouts, in words."""
    return _difference(unpack_tree(ours), unpack_tree(theirs))


def _difference(mine: Sequence[list[Any]], other: Sequence[list[Any]]) -> str:
    for index in range(max(len(mine), len(other))):
        here = _in_words(mine[index]) if index < len(mine) else "missing"
        there = _in_words(other[index]) if index < len(other) else "missing"
        if here != there:
            return f"this model is not the swarm's: tensor {index} is {here} here, {there} in the swarm"
    return "this model is not the swarm's, although all its tensors are"


class FlatState(NamedTuple):
    """A tree with slots, and the tensors for them; `replicated` and `frozen` as in `PackedState`."""

    tree: bytes
    tensors: Sequence[torch.Tensor]
    replicated: Sequence[int] = ()
    frozen: Sequence[int] = ()

    @property
    def sizes(self) -> list[int]:
        """Sizes of the tensors in bytes, without the frozen ones."""
        frozen = {*self.frozen}
        return [each.nbytes for number, each in enumerate(self.tensors) if number not in frozen]


def pack(tensors: Mapping[str, torch.Tensor], parts: Sequence[Stateful], samples: object) -> PackedState:
    """Pack a state as a tree with slots; dense tensors on the host are referenced, not copied."""
    return lent(flatten_state(tensors, parts, samples))


def lent(state: FlatState) -> PackedState:
    """Convert the result of `flatten_state` to a `PackedState`; tensors of a device are copied, which waits."""
    raws = [*map(raw_bytes, state.tensors)]
    return PackedState(state.tree, raws, replicated=state.replicated, frozen=state.frozen)


def frozen_parts(tensors: Mapping[str, torch.Tensor], frozen: Collection[str]) -> dict[str, tuple[int, int]]:
    """Index in a state, and length in bytes, of the tensors that it may leave out; `frozen`: names of candidates."""
    large = {name: each.nbytes for name, each in tensors.items() if name in frozen and each.nbytes >= LEAST_BYTES}
    return {name: (number, large[name]) for number, name in enumerate(tensors) if name in large}


def frozen_digest(tensors: Mapping[str, torch.Tensor], frozen: Collection[str]) -> bytes:
    """Digest of the tensors that a state may leave out, as they are now. Reads each once; from a device one by one."""
    parts = frozen_parts(tensors, frozen)
    return digest_of([*parts.values()], (raw_bytes(tensors[name]) for name in parts))


def flatten_state(
    tensors: Mapping[str, torch.Tensor],
    parts: Sequence[Stateful],
    samples: object,
    parameters: Collection[str] = (),
    frozen: Collection[str] = (),
) -> FlatState:
    """Convert a state to a tree with slots.

    `parameters`, names among `tensors`, and states of optimizers are equal on all members of a numerics class; values
    that forward passes change, and other parts of the script, may differ. `frozen`: names of tensors not trained.
    """
    slots: list[torch.Tensor] = []
    lowered = _lower(dict(tensors), slots)
    replicated = [number for number, name in enumerate(tensors) if name in parameters]
    lowered_parts = []
    for part in parts:
        before = len(slots)
        lowered_parts.append(_lower(part.state_dict(), slots))
        if isinstance(part, torch.optim.Optimizer) or getattr(part, "is_replicated", False):
            replicated += range(before, len(slots))
    tree = {
        "tensors": lowered,
        "parts": lowered_parts,
        "samples": samples,
        "slots": [[list(tensor.shape), _dtype_name(tensor), dense_strides(tensor)] for tensor in slots],
    }
    return FlatState(
        pack_tree(tree), slots, replicated, [number for number, _ in frozen_parts(tensors, frozen).values()]
    )


def check_sendable(lower: Callable[[], FlatState], parts: Iterable[str]) -> FlatState:
    """Run `flatten_state` for `parts`, given by name.

    Raises:
        TypeError: a value cannot be sent or written; the message names its part.
    """
    try:
        return lower()
    except TypeError as error:
        what = str(error)
        for number, name in enumerate(parts):
            what = what.replace(f"parts[{number}].", f"the state_dict of {name}: ")
        raise TypeError(
            f"{what}: a joiner can only be sent plain values (numbers, text, lists, dicts) and tensors; make it one "
            "of these, or leave it out of param_groups and of the state_dict of objects in extra="
        ) from None


def samples_in(state: PackedState) -> Any:
    """The `samples` of `pack` or `flatten_state` in a state. Raises RemoteProtocolError if there are none."""
    tree = unpack_tree(state.tree)
    if not isinstance(tree, dict) or "samples" not in tree:
        raise RemoteProtocolError("received a state that does not say which samples are used up")
    return tree["samples"]


def part_in(state: PackedState, number: int) -> Any:
    """The state dict of the part with this index. Raises RemoteProtocolError if there is none."""
    try:
        return unpack_tree(state.tree)["parts"][number]
    except (KeyError, IndexError, TypeError) as error:
        raise RemoteProtocolError(f"received a state without part {number}: {error!r}") from None


def unpack_into(
    state: PackedState, tensors: Mapping[str, torch.Tensor], parts: Sequence[Stateful], frozen: Collection[str] = ()
) -> Any:
    """Load a state that was packed with the same layout. `frozen`: names of tensors that it may leave out.

    Raises:
        FrozenDiffer: it leaves out frozen parameters that differ here. No state was changed.
        JoinRefused: it is of another model: the members have changed theirs since this peer asked for a seat. Or a
            part refuses its state; parts may have changed, and no tensor.
        RemoteProtocolError: it does not fit for another reason. No tensor was changed.
    """
    if state.known and frozen_digest(tensors, frozen) != state.known:
        raise FrozenDiffer
    left_out = frozen_parts(tensors, frozen) if state.known else {}
    tree = unpack_tree(state.tree)
    try:
        slots = [*zip(state.tensors, tree["slots"], strict=True)]
        values: dict[str, torch.Tensor] = {
            name: tensors[name] if name in left_out else _unflatten(slot, slots, _lent)
            for name, slot in tree["tensors"].items()
        }
        states = [_unflatten(part, slots, bytearray) for part in tree["parts"]]
        samples = tree["samples"]
        theirs, ours = ([[*row[:3], None] for row in _rows(each)] for each in (values, tensors))  # in any order
        if theirs != ours:
            raise JoinRefused(f"{_difference(ours, theirs)}; {OTHER_MODEL}")
        if len(states) != len(parts):
            raise ValueError(f"{len(parts)} parts here, {len(states)} in the swarm")
        for part, part_state in zip(parts, states, strict=True):
            _check_groups(part, part_state)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise RemoteProtocolError(f"received a state that does not fit this replica: {error!r}") from None
    for part, part_state in zip(parts, states, strict=True):
        try:
            _load(part, part_state)
        except Exception as error:
            raise JoinRefused(REFUSES.format(type(part).__name__, error)) from error
    with torch.no_grad():
        for name, tensor in tensors.items():
            if name not in left_out:  # unseen by autograd: an earlier graph may still be differentiated, unused
                tensor.data.copy_(values[name])
    return samples


def _check_groups(part: Stateful, state: dict[str, Any]) -> None:
    """Raise JoinRefused if the number of groups differs, since one of the scripts has added a group after the wrap."""
    groups = state.get("param_groups")
    if not isinstance(part, torch.optim.Optimizer) or not isinstance(
        groups, list
    ):  # one within one may have its own form
        return
    ours, theirs = len(part.param_groups), len(groups)
    if ours != theirs:
        raise JoinRefused(
            f"{type(part).__name__} has {ours} parameter groups here, but {theirs} in this state: make all groups "
            "before the model is wrapped, on every peer, those that have to wait with lr=0; or plan the new group in "
            "`changes=` (`add_param_group` anywhere else after the wrap fits no joiner and no checkpoint)"
        )


def _load(part: Stateful, state: dict[str, Any]) -> None:
    """Load the state of a part. Groups and `state` of an optimizer stay the same objects: a script may refer to them.

    The flags that select the implementation of updates stay those of this peer.
    """
    if not isinstance(part, torch.optim.Optimizer):
        part.load_state_dict(_in_kinds_of(part.state_dict(), state))
        return
    groups, before, held = part.param_groups, [*part.param_groups], part.state
    flags = [{key: group[key] for key in FLAGS if key in group} for group in before]
    part.load_state_dict(_with_flags(state, flags))
    _restore_types(part.state_dict().get("state"), state.get("state"))
    for old, new, own in zip(before, part.param_groups, flags, strict=True):
        _fill(old, {**new, **own})
    _fill(held, part.state)
    groups[:] = before
    if "param_groups" in vars(part):  # not a property that returns those of an inner optimizer
        part.param_groups, part.state = groups, held


def _restore_types(held: Any, given: Any) -> None:
    """Replace tensors in `held` that torch has converted to the type of their parameter by those of `given`.

    Float32 moments of bfloat16 parameters, counters and masks would have lost bits. Only the implementation of an
    update determines the type of its `step`.
    """
    if type(held) is list and type(given) is list:
        pairs: list[tuple[Any, Any]] = [*zip(range(len(held)), given, strict=False)]
    elif isinstance(held, dict) and isinstance(given, dict):
        pairs = [(key, value) for key, value in given.items() if key in held]
    else:
        return
    for key, value in pairs:
        ours = held[key]
        if not (isinstance(value, torch.Tensor) and isinstance(ours, torch.Tensor)):
            _restore_types(ours, value)
        elif key != "step" and ours.dtype != value.dtype and ours.shape == value.shape:
            held[key] = value.to(ours.device)


def _in_kinds_of(own: Any, state: Any) -> Any:
    """`state` with the kinds of dict that `own` has, which are sent as plain ones.

    A schedule may count in one of its own, and what a module makes has the versions of its layers: without them these
    take it for a state of long ago, and convert it.
    """
    if isinstance(own, list) and isinstance(state, list):
        return [_in_kinds_of(mine, each) for mine, each in zip(own, state, strict=False)] + state[len(own) :]
    if not isinstance(own, dict) or not isinstance(state, dict):
        return state
    values = {key: _in_kinds_of(own.get(key), value) for key, value in state.items()}
    if type(own) is dict:
        return values
    made = copy.copy(own)
    made.clear()
    made.update(values)
    return made


def _with_flags(state: dict[str, Any], flags: Sequence[Mapping[Any, Any]]) -> dict[str, Any]:
    """`state` with this peer's flags, by which torch chooses the device of step counters."""
    groups = state.get("param_groups")
    if not isinstance(groups, list) or len(groups) != len(flags):  # an optimizer within one may have its own form
        return state
    return {**state, "param_groups": [{**group, **own} for group, own in zip(groups, flags, strict=True)]}


def _fill(old: Any, new: Mapping[Any, Any]) -> None:
    if old is not new:
        old.clear()
        old.update(new)


def _lower(node: Any, slots: list[torch.Tensor]) -> Any:
    """`node` with a slot for each tensor, which is appended to `slots`."""
    if isinstance(node, torch.Tensor):
        slots.append(node.detach())
        return Slot(len(slots) - 1)
    if isinstance(node, dict):
        return {key: _lower(value, slots) for key, value in node.items()}
    if isinstance(node, np.generic):
        return node.item()
    if type(node) in (list, tuple):  # `pack_tree` refuses their subclasses by name
        return type(node)(_lower(value, slots) for value in node)
    return node


def _unflatten(node: Any, slots: Sequence[tuple[Raw, list[Any]]], own: Callable[[Raw], Raw | bytearray]) -> Any:
    """`node` with a tensor for each slot; `own` converts memory of the state to memory that a tensor may own."""
    if isinstance(node, Slot):
        raw, row = slots[node.index]
        return _tensor(own(raw), *row)
    if isinstance(node, dict):
        return {key: _unflatten(value, slots, own) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return type(node)(_unflatten(value, slots, own) for value in node)
    return node


def _lent(raw: Raw) -> Raw | bytearray:
    """Memory for a tensor that is only read: a copy only if it is read-only, which torch does not support."""
    return bytearray(raw) if memoryview(raw).readonly else raw


def raw_bytes(tensor: torch.Tensor) -> memoryview:
    """The bytes of the elements in memory order; without a copy for a dense tensor on the host."""
    flat = in_memory_order(tensor).cpu()
    return flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")


def _tensor(raw: Raw | bytearray, shape: list[int], dtype_name: str, strides: list[int] | None) -> torch.Tensor:
    dtype = getattr(torch, dtype_name)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{dtype_name} is no dtype")
    flat = torch.frombuffer(raw, dtype=dtype) if len(raw) else torch.empty(0, dtype=dtype, device="cpu")
    if flat.numel() != math.prod(shape) or (strides is not None and not is_dense(shape, strides)):
        raise ValueError(f"{flat.numel()} elements for {shape} with strides {strides}")
    return laid_out(flat, shape, strides)


def _dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _in_words(row: list[Any]) -> str:
    name, shape, dtype, strides = row
    return f"{name} {dtype}{shape}" + (f" with strides {strides}" if strides is not None else "")
