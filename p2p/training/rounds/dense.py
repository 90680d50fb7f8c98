"""The dense phase of training in rounds: gradients are averaged in each step, as in `DataParallel`, until step N.

The last dense step fixes the anchor: the parameters with which it was computed, which are equal on all members; with
several numerics classes, each member overwrites its own with those of one class. The update with the gradients of that
step belongs to the first round.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from torch import nn

from ...catchup.replica import BUCKETS
from ...errors import ShoalError
from ...session.device_memory import is_on_device
from ...session.session import Session
from ...step.receipts import Receipt
from ..checks.by_hand import Matched
from ..checks.same_extra import SameExtra
from ..side_operations import SideOperations
from ..state.changes import Watch
from ..state.forward_state import ForwardState
from ..state.numerics import class_of, describe_numerics, trait_of
from ..state.replica_state import Stateful
from ..steps.models import collect_models
from ..steps.passes import Passes
from ..steps.reducer import GradientReducer, NonFinite
from ..steps.resync import Resynchronisation
from ..steps.updates import Updates
from ..tensors.buckets import BUCKET_BYTES


class _Anchor(SideOperations):
    """Takes the parameters as the anchor when the last dense step is committed; sends no operation."""

    def __init__(self, session: Session, take: Callable[[], None]) -> None:
        self._share, self._take = session.share, take

    def on_commit(self, receipt: Receipt) -> None:
        if self._share.num_trained == self._share.dense_steps:
            self._take()


class DensePhase:
    """The dense phase of one model.

    Attributes:
        passes: its backward passes and steps.
        edge: the state of the model that forward passes change.
    """

    def __init__(
        self,
        session: Session,
        module: nn.Module,
        parts: Mapping[str, Stateful],
        watch: Watch,
        beside: Sequence[SideOperations],
        take_anchor: Callable[[], None],
        *,
        nonfinite: NonFinite,
        is_digested_whole: bool,
    ) -> None:
        """Follow each backward pass from now on.

        Args:
            session: of the peer.
            module: the model.
            parts: its optimizer first, then the other parts that a joiner needs, by name.
            watch: of the model.
            beside: side operations of each step and of each round.
            take_anchor: is called at the commit that ends the phase, before the update.
            nonfinite: the policy for gradients that are not finite, as in `DataParallel`.
            is_digested_whole: compare all parameters in each step, not a sixteenth.
        """
        self._session, self._module = session, module
        models = collect_models(module, next(iter(parts.values())))
        self._gradients = GradientReducer(models, session, nonfinite, BUCKET_BYTES, None)
        self._gradients.watch = watch
        if is_digested_whole:
            self._gradients.num_turns = 1
        self.edge = ForwardState(module, lambda: session.done, partial(is_on_device, session))
        resync = Resynchronisation(session, self._gradients, [*parts.values()], is_whole=self._is_last)
        every = resync, _Anchor(session, self._end_last_step), *beside, SameExtra(parts)
        self._take_anchor = take_anchor
        self.passes = Passes(
            session,
            self._gradients,
            lambda: every,
            partial(Updates, parts, self._gradients, num_models=1, allow_local=False),
            self._gradients.digest_of_step,
            self.edge,
            commit=self._exchange,
        )
        self._has_begun = False
        self._numerics = describe_numerics(self._gradients.device, [*parts.values()])

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run a forward pass of the wrapper."""
        self._has_begun = True
        return self.passes.forward("", self._module, *args, **kwargs)

    def no_sync(self) -> AbstractContextManager[None]:
        """As `DataParallel.no_sync`."""
        return self.passes.no_sync()

    def skip(self) -> None:
        """As `DataParallel.skip_step`."""
        self.passes.skip(())

    def take(self, matched: Matched) -> None:
        """As `DataParallel.reduce_gradients`."""
        self.passes.take([""], matched.values())

    def _exchange(self, digest: Callable[[], bytes]) -> bool:
        if not self._session.share.is_of_loader and not self._has_begun:
            raise ShoalError(
                "a dense step must begin with a forward pass of the wrapper, `model(batch)`, or with a batch of "
                "`peer.loader`, where a joiner takes over the state; this step began with neither"
            )
        self._has_begun = False
        return self._session.commit(digest, is_round=True)

    def _is_last(self) -> bool:
        """Whether the open step ends the phase."""
        return self._session.share.num_trained + 1 == self._session.share.dense_steps

    @property
    def traits(self) -> dict[str, bytes]:
        """How the steps are computed, in words, by name. Equal on all peers."""
        numerics = trait_of(self._numerics, self._session.mixed)
        return {BUCKETS: self._gradients.traits("")[BUCKETS], "numerics": numerics}

    @property
    def numerics(self) -> bytes:
        """The numerics class of this peer."""
        return class_of(self._numerics)

    def loaded(self) -> None:
        """Note that the state of a member was loaded."""
        self.passes.updates.loaded()
        self.passes.has_committed = self._session.share.num_trained > 0

    def _end_last_step(self) -> None:
        """Take the anchor and stop following passes: the script's next backward pass may come without the wrapper."""
        self._take_anchor()
        self.passes.end_following()
