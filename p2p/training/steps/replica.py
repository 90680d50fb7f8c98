"""The replica of a `DataParallel` model: the state that a joiner receives, and its comparison while it observes."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np
import xxhash
from torch import nn

from gossip import View

from ...catchup.replica import BUCKETS, MODEL, NO_COPIES, Copies, Replica
from ...device import HOST
from ...errors import ShoalError
from ...net.parcels import PackedState
from ...session.device_memory import is_on_device
from ...session.session import Session
from ...step.collective import AllGather
from ...step.operation import Operation
from ..state.comparison import are_at, check, first_change, settings_of, show, unlike_settings
from ..state.forward_state import ForwardState
from ..state.initial_settings import has_moments, say_what_is_lost
from ..state.model_changes import ModelChanges
from ..state.module_state import ModuleState, made_in, parameters_of, tensors_of
from ..state.numerics import class_of, describe_numerics, trait_of
from ..state.replica_state import (
    FlatState,
    Stateful,
    check_sendable,
    compare,
    describe,
    flatten_state,
    lent,
    part_in,
    samples_in,
    unpack_into,
)
from ..state.state_copies import copies_of, lender_of
from .reducer import GradientReducer
from .scaling import LrScaling
from .updates import Updates

logger = logging.getLogger("p2p")

UNLIKE_SETTINGS: Final = (
    "attributes of modules are not part of a state, and in step %d those that a script changed differ from those of "
    "the members: %s. If training depends on them (a temperature, a dropout rate), a joiner trains differently: "
    "compute them from peer.done or the number of the epoch, or make them buffers (reported once)"
)

Renew = Callable[[Sequence[Operation], int, View | None], list[Operation]]


class ModelReplica:
    """The replica of one model on one peer, with the parts that change it.

    Attributes:
        updates: of its optimizers; None during construction.
        edge: the state that forward passes change.
        settings: plain attributes of its modules.
        beside: side operations that observe each step for its state.
        renew: returns the operations of the open step after a state was loaded in the middle of it (`Replica`).
    """

    def __init__(
        self,
        module: nn.Module,
        parts: Mapping[str, Stateful],
        keeper: Stateful | None,
        session: Session,
        gradients: GradientReducer,
        changes: ModelChanges,
        *,
        is_digested_whole: bool,
        scaling: LrScaling,
    ) -> None:
        """Create the replica of `module`.

        Args:
            module: the model, on one device.
            parts: the optimizer and the other parts that a joiner needs, by name.
            keeper: of checkpoints. A joiner receives its state, but is not compared by it: the writer's is ahead.
            session: of the peer.
            gradients: of the module's parameters.
            changes: planned changes of the module.
            scaling: of learning rates, equal on all peers.
            is_digested_whole: compare all parameters in each step, not a sixteenth.
        """
        self._module = module
        self._parts = parts
        self.edge = ForwardState(module, lambda: session.done, partial(is_on_device, session))
        self._changes, changes.summed = changes, lambda: gradients.watch.summed
        self._state = ModuleState(module, self.edge, parts, lambda: session.share.how, changes.made)
        self._given: tuple[Stateful, ...] = (*parts.values(), self._state, *([] if keeper is None else [keeper]))
        self._session = session
        self._gradients = gradients
        self.renew: Renew = lambda operations, step, view: [*operations]
        self._is_digested_whole = is_digested_whole
        self._scaling = scaling
        if is_digested_whole:
            gradients.num_turns = 1
        self._numerics = describe_numerics(gradients.device, [*parts.values()])
        self.updates: Updates | None = None
        self._copies: Copies = NO_COPIES
        self.settings, self.beside, self._has_told = self._state.settings, self._state.beside, False

    def offered(self) -> Replica:
        """The interface through which the state is sent and received.

        Raises:
            TypeError, ValueError: the state cannot be described, or sent.
        """
        tensors = tensors_of(self._module)
        layout = describe(tensors)
        sent = self._lower()
        if self._copies is NO_COPIES:
            self._copies = copies_of(self._session, self._gradients.device, sent.tensors)
        how = self._gradients.traits("all" if self._is_digested_whole else "part")
        return Replica(
            traits={
                MODEL: layout,
                **how,
                "numerics": trait_of(self._numerics, self._session.mixed),
                "learning rates": str(self._scaling).encode(),
                **self._changes.traits,
            },
            pack=self._pack,
            load=self._load,
            compare=partial(compare, layout),
            show=self._show,
            check=self._check,
            keep=self.edge.snapshot,
            renew=lambda *opened: self.renew(*opened),
            numerics=class_of(self._numerics),
            make_packer=lender_of(self._session, self._gradients.device, self._copies, self._lower),
            copies=self._copies,
            digest=self.digest if self._gradients.device is HOST else None,
            lends=self._gradients.device is HOST,
            sizes=sent.sizes,
            frozen=self._state.digest_of_frozen,
            is_at=self._is_at,
            is_of_other_model=lambda state: not self._changes.are_like(self._made_in(state)),
            samples=samples_in,
        )

    def refresh(self) -> None:
        """Take up the changed module."""
        self.edge.refresh(self._module)
        self.settings.refresh()
        self._state.begun.refresh()

    def agree(self, added: str = "", *, is_planned: bool = False) -> None:
        """Make all members take up the module as it is now, in a step whose operation describes it.

        Peers that ask for a seat later must have this module; if `is_planned`, still the initial one. `added`: the new
        parameters, in words.
        """
        offered, before = self.offered(), self._session.membership.replica
        layout = xxhash.xxh3_64_hexdigest(offered.traits[MODEL])
        what = f"refresh to {offered.traits[BUCKETS].decode()} and a state of layout {layout}{added}"
        row = np.zeros(1, np.uint8)
        if is_planned:
            offered = replace(offered, traits=before.traits, compare=before.compare)
        self._session.replace_replica(offered, Operation(AllGather(label=what), row, row, row.shape, "one-shot"))

    def digest(self) -> bytes:
        """Digest of the parameters that the open step compares, with the values that it was computed with."""
        return self._gradients.digest_of_step()

    # The state.

    def _pack(self) -> PackedState:
        return lent(self._lower())

    def _lower(self) -> FlatState:
        """The state; a value that cannot be sent or written is named."""
        return check_sendable(self._flatten, self._parts)

    def _flatten(self) -> FlatState:
        tensors = tensors_of(self._module)
        buffers, _ = self.edge.before_forward()
        tensors |= {name: buffers[name] for name in tensors.keys() & buffers.keys()}
        samples, parameters = self._session.share.pack(), parameters_of(self._module)
        return flatten_state(tensors, self._given, samples, parameters, self._state.frozen())

    def _load(self, state: PackedState) -> None:
        self._copies.order_after_copies()
        self._changes.follow(self._made_in(state))
        self._gradients.cancel_digest()
        share, before = self._session.share, settings_of(self._parts)
        own = share.num_trained, has_moments(self._parts)
        share.load(unpack_into(state, tensors_of(self._module), self._given, self._state.frozen()))
        if share.is_resuming and (changed := self._state.begun.resume()):
            logger.warning("%s; the choice of this script applies", changed)
        if share.is_resuming:  # a joiner is compared while it observes
            self._state.expect()
        if not share.num_trained and (found := first_change(before, settings_of(self._parts))):
            logger.warning(
                "%s was %s in this script, but is now %s, as in the founder's: set the same value on every peer", *found
            )
        if not (share.num_trained or has_moments(self._parts)):
            say_what_is_lost(own[0], had_moments=own[1])
        if self.updates is not None:
            if self.updates.is_amid_step:
                self._state.load_after_forward()
            self.updates.loaded()

    def _made_in(self, state: PackedState) -> Sequence[int]:
        """The steps of the planned changes that the writer of this state has made; empty if none are planned."""
        return made_in(part_in(state, len(self._parts))) if self._changes.traits else ()

    # The comparison, in the loop's thread while the training thread waits for a commit.

    def _place(self) -> tuple[str | None, str]:
        """The script's place in its loop: the optimizers that have made an update, and the models of the open step."""
        updated = None if self.updates is None else self.updates.since_commit()
        return updated, " and ".join(self._gradients.reached)

    def _is_at(self, steps: Sequence[bytes]) -> bool:
        """As `are_at`; False in the middle of a batch, where no state can be loaded."""
        return not self._session.share.is_amid_batch and are_at(steps, self._named(), *self._place())

    def _named(self) -> dict[str, nn.Parameter]:
        return dict(self._module.named_parameters())

    def _show(self) -> bytes:
        return show(self._parts, self._named(), *self._place(), self.settings.changed())

    def _check(self, step: int, theirs: bytes, is_akin: bool) -> ShoalError | None:
        ours = self._show()
        unlike = check(step, ours, theirs, list(self._named()), is_akin=is_akin)
        if unlike is None and not self._has_told and (words := unlike_settings(ours, theirs)):
            self._has_told = True
            logger.warning(UNLIKE_SETTINGS, step, words)
        return unlike
