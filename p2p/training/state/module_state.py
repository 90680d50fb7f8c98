"""The state of a module apart from the tensors of its `state_dict`: extra states, other buffers, frozen flags."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import RemoteProtocolError
from ..side_operations import SideOperations
from ..tensors.layouts import DEVICES, is_overlapping
from .forward_state import EXTRA_STATE, ForwardState
from .initial_settings import InitialSettings
from .module_settings import ModuleSettings
from .replica_state import Stateful, frozen_digest
from .training_modes import TrainingModes


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """The tensors of the `state_dict` by name, which have the same shapes on every peer.

    Raises:
        TypeError: an entry is neither a tensor nor an extra state.
        ValueError: a tensor is on another device, or not dense.
    """
    found = {}
    for name, value in module.state_dict().items():
        if name.endswith(EXTRA_STATE):
            continue
        if not isinstance(value, Tensor):
            kind = type(value).__name__
            raise TypeError(f"{name} in the module's state_dict is {kind}, not a tensor: return it in get_extra_state")
        if value.device.type not in DEVICES or value.layout is not torch.strided:
            raise ValueError(
                f"{name} is {value.dtype} on {value.device}, {value.layout}: it must be dense, and on the CPU or a "
                "CUDA device"
            )
        found[name] = value
    return found


def parameters_of(module: nn.Module) -> set[str]:
    """Names of the parameters among `tensors_of`; tied ones have several."""
    return {name for name, _ in module.named_parameters(remove_duplicate=False)}


def frozen_of(module: nn.Module) -> set[str]:
    """Names of those among `tensors_of` that training rarely changes, so that a joiner may already have them.

    These are parameters that need no gradient, and integer buffers (quantised weights, masks).
    """
    parameters = module.named_parameters(remove_duplicate=False)
    buffers = module.named_buffers(remove_duplicate=False)
    whole = (name for name, each in buffers if not (each.is_floating_point() or each.is_complex()))
    return {name for name, each in parameters if not each.requires_grad}.union(whole)


def made_in(state: Any) -> list[int]:
    """The steps of the planned changes that were made, from the state dict of a `ModuleState`.

    Raises:
        RemoteProtocolError: `state` has another form.
    """
    made = state.get("made", []) if isinstance(state, dict) else None
    if not isinstance(made, list) or not all(type(each) is int for each in made):
        raise RemoteProtocolError(f"received a state that does not say how its model was changed: {made!r}")
    return made


class ModuleState:
    """A part of the state of a replica, like an optimizer.

    Attributes:
        begun: the initial settings of the script.
        settings: plain attributes of modules.
        ways: how the model was trained in the last steps.
        beside: the side operations that observe each step for it.
    """

    def __init__(
        self,
        module: nn.Module,
        edge: ForwardState,
        parts: Mapping[str, Stateful],
        how: Callable[[], str] = str,
        made: Sequence[int] = (),
    ) -> None:
        """The state of `module` and its submodules.

        Args:
            module: the model.
            edge: has copies of the values that forward passes change.
            parts: optimizers and other parts, by name.
            how: returns how the model is trained in the open step, in words.
            made: the steps of the planned changes that were made.
        """
        self._module, self._edge, self._made = module, edge, made
        self.begun, self.settings = InitialSettings(module, parts), ModuleSettings(module)
        self.ways = TrainingModes(how)
        self.beside: Sequence[SideOperations] = (self.settings, self.ways)
        self._theirs: tuple[Mapping[str, str], Sequence[str]] = {}, ()
        self._after: Any = ({}, {})

    def state_dict(self) -> dict[str, Any]:
        """The state as plain values and tensors."""
        kept, extra = self._edge.before_forward()
        live = {name: value for name, value in self._module.state_dict().items() if name.endswith(EXTRA_STATE)}
        return {
            "trained": {name: each.requires_grad for name, each in self._module.named_parameters()},
            "extra": {name: extra.get(name, value) for name, value in live.items()},
            "buffers": {
                name: kept.get(name, owner.get_buffer(key)) for name, owner, key in _not_persistent(self._module)
            },
            "after": self._edge.after_forward(),
            "made": [*self._made],
            "begun": self.begun.state_dict(),
            "changed": self.settings.changed(),
            "ways": self.ways.last(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the `state_dict` of another replica."""
        for name, parameter in self._module.named_parameters():
            if parameter.requires_grad != state["trained"][name]:
                parameter.requires_grad_(state["trained"][name])
        self._set_extra(state["extra"])
        self._after = state.get("after", ({}, {}))
        self.begun.load_state_dict(state.get("begun"))
        self._theirs = state.get("changed", {}), state.get("ways", ())
        ours = {name: (owner, key) for name, owner, key in _not_persistent(self._module)}
        for name, value in state["buffers"].items():
            if name in ours:
                _put(*ours[name], value)
            else:
                _make(self._module, name, value)

    def others(self) -> dict[str, Tensor]:
        """The buffers that no `state_dict` has, by name."""
        return {name: owner.get_buffer(key) for name, owner, key in _not_persistent(self._module)}

    def expect(self) -> None:
        """Expect this script to set attributes and modes as the script that wrote the loaded state did."""
        changed, ways = self._theirs
        self.settings.expect(changed)
        self.ways.expect(ways)

    def frozen(self) -> set[str]:
        """`frozen_of` the module."""
        return frozen_of(self._module)

    def digest_of_frozen(self) -> bytes:
        """Digest of the tensors that a state may leave out, as they are now."""
        return frozen_digest(tensors_of(self._module), self.frozen())

    def load_after_forward(self) -> None:
        """Load the values after the forward passes, for a peer that had made its own before it loaded the state."""
        (buffers, extra), self._after = self._after, ({}, {})
        for name, value in buffers.items():
            path, _, key = name.rpartition(".")
            _put(self._module.get_submodule(path), key, value)
        self._set_extra(extra)

    def _set_extra(self, values: Mapping[str, Any]) -> None:
        for name, module in self._module.named_modules():
            key = f"{name}.{EXTRA_STATE}" if name else EXTRA_STATE
            if key in values:
                module.set_extra_state(values[key])


def _not_persistent(module: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """Path, owner, and name in the owner, of each non-persistent buffer."""
    for path, owner in module.named_modules():
        for key in sorted(owner._non_persistent_buffers_set):
            buffer = owner._buffers.get(key)
            if buffer is not None and buffer.layout is torch.strided and not buffer.is_meta:
                yield f"{path}.{key}" if path else key, owner, key


def _make(module: nn.Module, name: str, value: Tensor) -> None:
    """Register a non-persistent buffer that forward passes have made where the state comes from."""
    path, _, key = name.rpartition(".")
    try:
        owner = module.get_submodule(path)
    except AttributeError:  # of a layer made for a while
        return
    if owner._buffers.get(key) is None and (key in owner._buffers or not hasattr(owner, key)):
        device = next((each.device for each in (*owner.parameters(), *module.parameters())), value.device)
        owner.register_buffer(key, value.to(device), persistent=False)


def _put(owner: nn.Module, key: str, value: Tensor) -> None:
    """Copy `value` in place if it fits, else replace the buffer: a computed table may differ in length per peer."""
    if key in owner._parameters:
        owner.get_parameter(key).data.copy_(value)
        return
    buffer = owner.get_buffer(key)
    if (buffer.shape, buffer.dtype) == (value.shape, value.dtype) and not is_overlapping(buffer):
        buffer.data.copy_(value)
    else:
        owner._buffers[key] = value
