"""The state of a replica as plain values and raw tensors, and back. Never pickle.

State(D) is everything that the next step depends on: parameters, buffers, optimizer, the sampler's state, and what
the script adds (`extra`), after `optimizer.step` of step D. Knows torch; `import p2p` does not import this.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
import xxhash

from ..errors import RemoteProtocolError
from ..net.parcels import PackedState
from ..net.trees import Slot, pack_tree, unpack_tree


class Stateful(Protocol):
    """What has a state of its own: an optimizer, a scheduler, a scaler."""

    def state_dict(self) -> dict[str, Any]:
        """Plain values and tensors."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> object:
        """Take over what `state_dict` of another replica returned."""
        ...


def describe(tensors: Mapping[str, torch.Tensor]) -> tuple[str, bytes]:
    """Hash and description of a layout: name, shape and dtype of every tensor, in order."""
    rows = [[name, list(tensor.shape), _dtype_name(tensor)] for name, tensor in tensors.items()]
    description = pack_tree(rows)
    return xxhash.xxh3_128_hexdigest(description), description


def compare(ours: bytes, theirs: bytes) -> str:
    """The first tensor in which two descriptions differ, in words."""
    if not theirs:
        return "the swarm's members have no model, and this peer has one: start it in a swarm of its own"
    mine, other = unpack_tree(ours), unpack_tree(theirs)
    for index in range(max(len(mine), len(other))):
        here = _in_words(mine[index]) if index < len(mine) else "missing"
        there = _in_words(other[index]) if index < len(other) else "missing"
        if here != there:
            return f"this model is not the swarm's: tensor {index} is {here} here, {there} in the swarm"
    return "this model is not the swarm's, though every tensor is"


def pack(tensors: Mapping[str, torch.Tensor], parts: Sequence[Stateful], samples: object) -> PackedState:
    """Everything as a tree with slots; the tensors' memory is lent, not copied, where it is contiguous."""
    slots: list[torch.Tensor] = []
    tree = {
        "tensors": _lower(dict(tensors), slots),
        "parts": [_lower(part.state_dict(), slots) for part in parts],
        "samples": samples,
        "slots": [[list(tensor.shape), _dtype_name(tensor)] for tensor in slots],
    }
    return PackedState(pack_tree(tree), [raw_bytes(tensor) for tensor in slots])


def unpack_into(state: PackedState, tensors: Mapping[str, torch.Tensor], parts: Sequence[Stateful]) -> Any:
    """Take over a state that `pack` made of the same layout.

    Raises:
        RemoteProtocolError: it is of another layout, or one of `parts` refuses its own; no tensor was changed.
    """
    tree = unpack_tree(state.tree)
    try:
        slots = [_tensor(raw, *row) for raw, row in zip(state.tensors, tree["slots"], strict=True)]
        values: dict[str, torch.Tensor] = _raise_slots(tree["tensors"], slots)
        states = [_raise_slots(part, slots) for part in tree["parts"]]
        samples = tree["samples"]
        if describe(values) != describe(tensors) or len(states) != len(parts):
            raise ValueError("other tensors, or other parts, than here")
        for part, part_state in zip(parts, states, strict=True):
            part.load_state_dict(part_state)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise RemoteProtocolError(f"a state that does not fit this replica: {error!r}") from None
    with torch.no_grad():
        for name, tensor in tensors.items():
            tensor.copy_(values[name])
    return samples


def _lower(node: Any, slots: list[torch.Tensor]) -> Any:
    """`node` with a slot for each tensor, which goes to `slots`."""
    if isinstance(node, torch.Tensor):
        slots.append(node.detach())
        return Slot(len(slots) - 1)
    if isinstance(node, dict):
        return {key: _lower(value, slots) for key, value in node.items()}
    if type(node) in (list, tuple):  # `pack_tree` refuses their subclasses by name
        return type(node)(_lower(value, slots) for value in node)
    return node


def _raise_slots(node: Any, slots: Sequence[torch.Tensor]) -> Any:
    if isinstance(node, Slot):
        return slots[node.index]
    if isinstance(node, dict):
        return {key: _raise_slots(value, slots) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return type(node)(_raise_slots(value, slots) for value in node)
    return node


def raw_bytes(tensor: torch.Tensor) -> memoryview:
    """The elements in order; the tensor's own memory, where it is contiguous."""
    flat = tensor.contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")


def _tensor(raw: bytes | memoryview, shape: list[int], dtype_name: str) -> torch.Tensor:
    dtype = getattr(torch, dtype_name)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{dtype_name} is no dtype")
    if not len(raw):
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(raw), dtype=dtype).reshape(shape)


def _dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _in_words(row: list[Any]) -> str:
    name, shape, dtype = row
    return f"{name} {dtype}{shape}"
