"""The state of a model trained in rounds, as a joiner receives it: memory that does not change between two commits.

Inner steps change parameters and moments while the loop's thread copies a state. So the state has the anchor in place
of the parameters, and copies, made at the start of the round, of other parts. Moments of inner optimizers are left out;
they start from scratch at a joiner, and in a run that continues from a checkpoint, without a measurable loss (README,
limits).
"""

import copy
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from ...catchup.replica import MODEL, NO_COPIES, Copies, Replica
from ...device import HOST, Device
from ...errors import JoinRefused
from ...net.parcels import PackedState
from ...session.device_memory import is_on_device
from ...session.session import Session
from ..state.changes import OF_ROUNDS
from ..state.comparison import first_change, settings_of
from ..state.forward_state import ForwardState
from ..state.module_state import ModuleState, parameters_of, tensors_of
from ..state.replica_state import (
    FlatState,
    Stateful,
    check_sendable,
    compare,
    describe,
    flatten_state,
    lent,
    samples_in,
    unpack_into,
)
from ..state.state_copies import copies_of, lender_of
from ..tensors.layouts import is_overlapping
from .dense import DensePhase
from .outer import OuterOptimizer

logger = logging.getLogger("p2p")


class _Frozen:
    """A copy of a part of the state. Has no `__dict__`, so that `ModelCopies` does not report it."""

    __slots__ = ("_state",)

    def __init__(self, state: dict[str, Any]) -> None:
        self._state = state

    def state_dict(self) -> dict[str, Any]:
        return self._state

    def load_state_dict(self, state_dict: dict[str, Any]) -> object:
        raise NotImplementedError("the frozen part of a state cannot be loaded")


class _OuterState:
    """The outer vectors, without the anchor if the parameters of the state equal it.

    Attributes:
        is_replicated: they are equal on all members.
    """

    is_replicated = True

    def __init__(self, outer: OuterOptimizer, *, has_anchor: bool) -> None:
        self._outer, self._has_anchor = outer, has_anchor
        self.taken: dict[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        state = self._outer.state_dict()
        return state if self._has_anchor else {"anchor": None, "momentum": state["momentum"]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the vectors until the parameters are loaded."""
        self.taken = state_dict


class RoundReplica:
    """The replica of one model on one peer, with the anchor that all members share."""

    def __init__(
        self,
        module: nn.Module,
        outer: OuterOptimizer,
        parts: Mapping[str, Stateful],
        keeper: Stateful | None,
        session: Session,
        strategy: str,
        dense: DensePhase | None,
        device: Device,
        loaded: Callable[[], None],
    ) -> None:
        """Create the replica, with a copy of the current state.

        Args:
            module: the model, on one device.
            outer: of its parameters.
            parts: optimizers and the other parts that a joiner needs, by name.
            keeper: of checkpoints.
            session: of the peer.
            strategy: the settings of training, in words: equal on all peers.
            dense: the phase before the rounds.
            device: of the parameters.
            loaded: is called after a state was loaded.
        """
        self._module, self._outer, self._session = module, outer, session
        self._parts = parts
        self._dense = dense
        self._edge = (
            ForwardState(module, lambda: session.done, partial(is_on_device, session)) if dense is None else dense.edge
        )
        self._state = ModuleState(module, self._edge, parts, lambda: session.share.how)
        self.settings, self.beside = self._state.settings, self._state.beside
        self._trained = {name: each for name, each in module.named_parameters() if each.requires_grad}
        every = module.named_parameters(remove_duplicate=False)  # tied parameters under each of their names
        self._names_of_trained = {name for name, each in every if each.requires_grad}
        is_exact = all(each.dtype == torch.float32 for each in self._trained.values())
        self._outer_state = _OuterState(outer, has_anchor=not is_exact)
        self._keeper = [] if keeper is None else [keeper]
        self._tensors: dict[str, torch.Tensor] = {}
        self._strategy = strategy
        self.freeze()
        self._device, self._loaded = device, loaded
        self._copies: Copies = NO_COPIES

    def offered(self) -> Replica:
        """The interface through which the state is sent and received.

        Raises:
            TypeError, ValueError: the state cannot be described, or sent.
        """
        layout = describe(tensors_of(self._module))
        sent = self._lower()
        if self._copies is NO_COPIES:
            self._copies = copies_of(self._session, self._device, sent.tensors)
        lender = lender_of(self._session, self._device, self._copies, self._lower)
        codec = f"deltas of rounds, {self._outer.config}"
        traits = {MODEL: layout, "codec": codec.encode(), "strategy": self._strategy.encode()}
        replica = Replica(
            traits=traits,
            pack=self._pack,
            load=self._load,
            compare=partial(compare, layout),
            make_packer=lender,
            copies=self._copies,
            lends=self._device is HOST,
            sizes=sent.sizes,
            frozen=self._state.digest_of_frozen,
            samples=samples_in,
        )
        if self._dense is None:
            return replica
        traits |= self._dense.traits
        return replace(replica, traits=traits, keep=self._edge.snapshot, numerics=self._dense.numerics)

    def freeze(self) -> None:
        """Copy all state except the anchor, at the start of a round."""
        self._frozen = [_Frozen(_without_moments(part)) for part in self._parts.values()]
        self._frozen.append(_Frozen(copy.deepcopy(self._state.state_dict())))
        pieces, before, kept = self._outer.tensors(), self._tensors, dict[str, torch.Tensor]()
        for name, tensor in tensors_of(self._module).items():
            known = before.get(name)
            if name in pieces:
                kept[name] = pieces[name]
            elif known is not None and self._edge.are_same(known, tensor):
                kept[name] = known
            else:
                kept[name] = tensor.detach().clone()
        self._tensors = kept

    def put_buffers(self, values: Mapping[str, torch.Tensor] | None = None) -> dict[str, torch.Tensor]:
        """Set buffers to `values`, or to those at the start of the round, and then return copies of the old values."""
        named = {name: each for name, each in tensors_of(self._module).items() if name not in self._names_of_trained}
        others = self._state.others()
        before = {name: each.detach().clone() for name, each in (named | others).items()} if values is None else {}
        values = self._tensors | self._frozen[-1].state_dict()["buffers"] if values is None else values
        with torch.no_grad():
            for name, value in values.items():
                if name in named:
                    named[name].copy_(value)
                elif name in others and _is_other_value(value, others[name]):
                    others[name].data.copy_(value)
        return before

    def _pack(self) -> PackedState:
        return lent(self._lower())

    def _lower(self) -> FlatState:
        """The state; a value that cannot be sent or written is named."""
        return check_sendable(self._flatten, self._parts)

    def _flatten(self) -> FlatState:
        named, at_rest = parameters_of(self._module), self._state.frozen()
        if self._session.share.is_dense:
            tensors = tensors_of(self._module)
            buffers, _ = self._edge.before_forward()
            tensors |= {name: buffers[name] for name in tensors.keys() & buffers.keys()}
            none = _Frozen({"anchor": None, "momentum": None})
            live = [*self._parts.values(), self._state, none, *self._keeper]
            return flatten_state(tensors, live, self._session.share.pack(), named, at_rest)
        state = _Frozen(
            self._frozen[-1].state_dict() | {"changed": self.settings.changed(), "ways": self._state.ways.last()}
        )
        frozen: list[Stateful] = [*self._frozen[:-1], state, self._outer_state, *self._keeper]
        return flatten_state(self._tensors, frozen, self._session.share.pack(), named, at_rest)

    def _load(self, state: PackedState) -> None:
        before = settings_of(self._parts)
        self._copies.order_after_copies()
        taken = [*self._parts.values(), self._state, self._outer_state, *self._keeper]
        self._session.share.load(unpack_into(state, tensors_of(self._module), taken, self._state.frozen()))
        if self._session.share.is_resuming and (changed := self._state.begun.resume()):
            if not self._session.share.is_dense:
                raise JoinRefused(f"{changed}, so {OF_ROUNDS}")
            logger.warning("%s; the choice of this script applies", changed)
        if self._session.share.is_dense:
            assert self._dense is not None
            self._dense.loaded()
        else:
            is_resuming = self._session.share.is_resuming
            if is_resuming and not any(value is not None for value in self._outer_state.taken.values()):
                self._outer.reset_anchor()  # the checkpoint is from a dense phase that was to be longer
            else:
                self._take_anchor()
            if is_resuming and self._outer.residual is not None:
                logger.warning(
                    "a checkpoint has no residuals, which belong to each peer alone: what %s left out of the last "
                    "rounds is lost, and the run continues without it",
                    self._outer.config.codec,
                )
        if self._session.share.num_trained:
            self._state.expect()
        elif found := first_change(before, settings_of(self._parts)):
            logger.warning(
                "%s was %s in this script, but is now %s, as in the founder's: set the same value on every peer", *found
            )
        self.freeze()
        self._loaded()

    def _take_anchor(self) -> None:
        vectors = self._outer_state.taken
        if vectors["anchor"] is None:
            flat = [each.detach().reshape(-1) for each in self._trained.values()]
            vectors = {**vectors, "anchor": torch.cat(flat)}
        try:
            self._outer.load_state_dict(vectors)
        except ValueError as error:
            raise JoinRefused(
                f"the state is of rounds with another outer step ({error}): `momentum` must be 0 here if it was 0 "
                "there, and above 0 otherwise"
            ) from None


def _without_moments(part: Stateful) -> dict[str, Any]:
    """A copy of the state dict of a part; of an optimizer, only its groups."""
    state: Mapping[str, Any] = part.state_dict()
    if isinstance(part, torch.optim.Optimizer):
        state = {"state": {}, "param_groups": state["param_groups"]}
    return copy.deepcopy(dict(state))


def _is_other_value(value: torch.Tensor, buffer: torch.Tensor) -> bool:
    """Whether a buffer has changed; not in size, as a table that is computed as far as it is needed."""
    if (value.shape, value.dtype) != (buffer.shape, buffer.dtype) or is_overlapping(buffer):
        return False
    return not torch.equal(value, buffer)
