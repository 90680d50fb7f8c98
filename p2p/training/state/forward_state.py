"""The part of a model's state that forward passes change: as the next step starts with it, and after its passes.

These are buffers, results of `get_extra_state`, and parameters that need no gradient (a momentum encoder). Other
parameters, and optimizers, do not change from the start of a step to its commit; these do, and a state is copied at any
time in between.
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
import xxhash
from torch import Tensor, nn

from ...session.history import NEVER
from ..tensors.layouts import in_memory_order
from .replica_state import raw_bytes

EXTRA_STATE: Final = "_extra_state"
"""The end of the names of extra states in a `state_dict`."""

LARGE_BYTES: Final = 1 << 16
"""A larger buffer is mostly a constant table: it is copied only once it was seen to change."""

NUM_TURNS: Final = 16
"""Steps between two reads of a large buffer: `_version` does not count changes through `data` or numpy."""

WINDOW_BYTES: Final = 1 << 10
"""Bytes read of a parameter without a gradient: an average changes all of it, a frozen backbone does not change."""


class ForwardState:
    """The copies of this part of one model's state.

    Attributes:
        changes: whether forward passes change the state, as far as seen.
        is_over: the forward passes of the open step are over.
    """

    def __init__(
        self, module: nn.Module, done: Callable[[], int], is_on_device: Callable[[Tensor], bool] = lambda buffer: False
    ) -> None:
        """Start without copies.

        Args:
            module: the model.
            done: returns the last committed step.
            is_on_device: whether reading a buffer waits for a device; such a buffer counts as changed, and is copied
                on the device.
        """
        self._done, self._is_on_device = done, is_on_device
        self.refresh(module)

    def refresh(self, module: nn.Module) -> None:
        """Take up a changed module, without copies."""
        self._step, self._num_kept = NEVER, 0
        named = [(f"{path}." if path else "", each) for path, each in module.named_modules(remove_duplicate=False)]
        self._owners = named  # a forward pass may make a buffer
        self._with_parameters = [(prefix, each) for prefix, each in named if each._parameters]
        self._with_extra = [
            (prefix + EXTRA_STATE, each)
            for prefix, each in named
            if type(each).get_extra_state is not nn.Module.get_extra_state
        ]
        self._buffers: dict[str, Tensor] = {}
        self._constant: dict[str, tuple[int, int, int]] = {}
        self._extra: dict[str, Any] = {}
        self.changes = bool(self._with_extra) or any(each._buffers for _, each in named)
        self._have_changed = bool(self._with_extra)
        self.is_over = False

    def snapshot(self) -> None:
        """Before the forward passes of the next step: copy the values that have changed since the last call."""
        before, done = self._buffers, self._done()
        self._num_kept += 1
        self._buffers = {
            name: before[name] if name in before and self.are_same(before[name], buffer) else buffer.detach().clone()
            for turn, (name, buffer) in enumerate(self._live(), start=self._num_kept)
            if not self._is_constant(name, buffer, is_read=turn % NUM_TURNS == 0)
        }
        if self._step != NEVER:
            self._have_changed |= any(self._buffers[name] is not before.get(name) for name in self._buffers)
            self.changes = self._have_changed
        self._extra = {name: copy.deepcopy(each.get_extra_state()) for name, each in self._with_extra}
        self._step, self.is_over = done, False

    def before_forward(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Buffers and extra states by name, as at the start of the next step; empty if `snapshot` was not called."""
        return (self._buffers, self._extra) if self._step == self._done() else ({}, {})

    def after_forward(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Values that the forward passes have changed, without a copy; empty before these are over.

        For a receiver that has already made its own forward passes of the step.
        """
        buffers, _ = self.before_forward()
        if not self.is_over or self._step != self._done():
            return {}, {}
        live = {name: each for name, each in self._live() if name in buffers}
        changed = {name: each for name, each in live.items() if not self.are_same(buffers[name], each)}
        return changed, {name: each.get_extra_state() for name, each in self._with_extra}

    def _is_constant(self, name: str, buffer: Tensor, *, is_read: bool) -> bool:
        """Whether a large buffer, or a parameter, was never seen to change."""
        is_parameter = isinstance(buffer, nn.Parameter)
        if name in self._buffers or not (is_parameter or buffer.nbytes > LARGE_BYTES):
            return False
        known = self._constant.get(name)
        version = 0 if buffer.is_inference() else buffer._version
        digest = known[2] if known else 0
        if not self._is_on_device(buffer) and (is_read or not known):
            digest = xxhash.xxh3_64_intdigest(raw_bytes(buffer.detach())[: WINDOW_BYTES if is_parameter else None])
        self._constant[name] = buffer.data_ptr(), version, digest
        return known in (None, self._constant[name])

    def are_same(self, kept: Tensor, live: Tensor) -> bool:
        """Whether a buffer has the bits of its copy (-0 is not 0, NaN equals itself); False on a device."""
        if self._is_on_device(live) or (kept.shape, kept.dtype) != (live.shape, live.dtype):
            return False
        return torch.equal(*(in_memory_order(each.detach()).view(torch.uint8) for each in (kept, live)))

    def _live(self) -> Iterator[tuple[str, Tensor]]:
        for prefix, owner in self._owners:
            for key, buffer in owner._buffers.items():
                if buffer is not None and _has_elements(buffer):
                    yield prefix + key, buffer
        for prefix, owner in self._with_parameters:
            for key, parameter in owner._parameters.items():
                if parameter is not None and not parameter.requires_grad and _has_elements(parameter):
                    yield prefix + key, parameter


def _has_elements(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_meta
