"""Planned changes of a model: each is made once, on every peer after the same step of training.

Every script starts with the initial model, however late it joins, and peers that ask for a seat are compared by that
model. Members agree on each change in a separate step. Before a peer loads a state, it makes the changes that the
writer of the state has made.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Final

import torch
import xxhash
from torch import nn

from ...errors import JoinRefused, RemovedFromView, ShoalError
from ...session.session import Session
from .comparison import settings_of
from .module_settings import plain_of
from .replica_state import Stateful, raw_bytes

logger = logging.getLogger("p2p")

Change = Callable[[], object]

MOST_STEPS: Final = 16
"""The most steps that a loop may have per call of the wrapper."""

NOTHING_PLANNED: Final[Mapping[int, Change]] = MappingProxyType({})

ALONE: Final = (
    "the planned change of the model after step %d (`changes=`) called its peer or the loader. A joiner makes this "
    "change alone, so it may only change the model and its optimizer"
)
FAILED: Final = (
    "the planned change of the model after step %d (`changes=`) raised an error. A joiner makes this change, too, "
    "with a model and an optimizer as they are at the wrap, before any step, where no parameter has moments"
)
NOTHING: Final = (
    "the planned change of the model after step %d (`changes=`) changed nothing: not its parameters, what needs a "
    "gradient, its layers, or the groups of its optimizers. If it changes the wrapper, whose parameters are called "
    "`module.`..., change the model itself"
)
NOT_CALLED: Final = (
    "a change of the model is due after step %d (`changes=`), but changes are made where the script asks peer.loader "
    "for a batch or calls the wrapper, and it does neither: call the wrapper instead of the model"
)
OTHERS: Final = (
    "this state is of a model that was changed after steps %s, but this peer changed its model after steps %s, out of "
    "planned steps %s (`changes=`): plan the changes that were made there, and start this peer again"
)


class ModelChanges:
    """The planned changes of one peer.

    Attributes:
        made: the training steps after which changes were made, in order. Part of the state.
        summed: returns the parameters whose gradients are summed.
        refresh: makes the wrapper take up the changed model, or raises.
        agree: makes all members agree on it, in a separate step.
    """

    def __init__(
        self, planned: Mapping[int, Change], module: nn.Module, parts: Mapping[str, Stateful], session: Session
    ) -> None:
        """Check the form of the plan; make no change yet.

        Args:
            planned: functions by the training step after which each is called.
            module: the model that they change.
            parts: optimizers and other parts, by name.
            session: of the peer.

        Raises:
            TypeError, ValueError: `planned` has another form.
        """
        if not isinstance(planned, Mapping):
            raise TypeError(f"`changes` must be a dict of functions by training step, is a {type(planned).__name__}")
        for step, change in planned.items():
            if type(step) is not int or step < 1:
                raise ValueError(f"the keys of `changes` must be training steps, counted from 1, got {step!r}")
            if not callable(change):
                raise TypeError(f"the values of `changes` must be functions, got {change!r} for step {step}")
        self._planned = dict(sorted(planned.items()))
        self._module, self._parts, self._session = module, parts, session
        self.made = [step for step in self._planned if step < session.share.num_trained]  # loaded by the script itself
        self.summed: Callable[[], Collection[nn.Parameter]] = tuple
        self.refresh: Callable[[], None] = lambda: None
        self.agree: Callable[[str], None] = lambda added: None
        self._added = ""

    @property
    def traits(self) -> dict[str, bytes]:
        """The traits of the plan, which must be equal on all peers."""
        steps = ", ".join(map(str, self._planned))
        return {"changes": f"a model that is changed after step {steps}".encode()} if steps else {}

    @property
    def due(self) -> list[int]:
        """The steps of the changes that are due now."""
        left = [*self._planned][len(self.made) :]
        return [step for step in left if step <= self._session.share.num_trained]

    def make_due(self) -> None:
        """Make the due changes. Called between two steps, on all members.

        Raises:
            ShoalError: a change has called the peer.
            OperationMismatch, QuorumLost, RegistryError, RemovedFromView, ReplicasDiverged, StepTimeout: as any step.
            Any error of a change, or of wrapping the changed model.
        """
        if due := self.due:
            self._session.membership.check_usable()  # a change that calls the wrapper gets here again
            self._make(due)
            try:
                self.agree(self._added)
            except RemovedFromView as error:  # the others have agreed without it
                self._session.membership.return_after(error)

    def are_like(self, theirs: Sequence[int]) -> bool:
        """Whether a state whose writer has made the changes `theirs` fits the current model."""
        return [*theirs] == self.made

    def follow(self, theirs: Sequence[int]) -> None:
        """Before a state is loaded: make the changes in `theirs`, those of its writer, that are missing here.

        Raises:
            JoinRefused: this peer has made, or plans, other changes.
            Any error of a change, or of wrapping the changed model.
        """
        steps, num_made = [*self._planned], len(self.made)
        if steps[: len(theirs)] != [*theirs] or len(theirs) < num_made:
            raise JoinRefused(OTHERS % ([*theirs] or "none", self.made or "none", steps or "none"))
        if left := steps[num_made : len(theirs)]:
            self._make(left)

    def check_is_called(self, *, has_been: bool) -> None:
        """Raise ShoalError if changes are due, and the script never makes a call in which they are made.

        `has_been`: the script has called the wrapper before, as in a loop of several steps that calls it once.
        """
        if (due := self.due) and (not has_been or self._session.share.num_trained >= due[0] + MOST_STEPS):
            raise ShoalError(NOT_CALLED % due[0])

    def _make(self, steps: Sequence[int]) -> None:
        frozen = [each for each in self.summed() if not each.requires_grad]
        before, known = self._look(), {*self._module.parameters()}
        for step in steps:
            try:
                with self._alone(step), self._seeded(step):
                    self._planned[step]()
            except Exception:
                logger.error(FAILED, step)
                raise
            self.made.append(step)
            logger.info("changed the model after step %d of training, as planned", step)
        if self._look() == before:
            logger.warning(NOTHING, steps[-1])
        self._added = _in_words(each for each in self._module.parameters() if each not in known)
        frozen = [each for each in frozen if not each.requires_grad]
        for each in frozen:  # parameters frozen for a while stay summed, and need a gradient when taken up
            each.requires_grad_(True)
        try:
            self.refresh()
        finally:
            for each in frozen:
                each.requires_grad_(False)

    def _look(self) -> object:
        """All that a change may affect: parameters, buffers, flags, plain attributes, groups of optimizers."""
        parameters = [(name, id(each), each.requires_grad) for name, each in self._module.named_parameters()]
        buffers = [(name, id(each)) for name, each in self._module.named_buffers()]
        layers = [(name, id(each), each.training) for name, each in self._module.named_modules()]
        return parameters, buffers, layers, dict(plain_of(self._module)), settings_of(self._parts)

    @contextmanager
    def _alone(self, step: int) -> Iterator[None]:
        """Make all calls of the peer in the block raise."""
        membership = self._session.membership
        before, refusal = membership.unusable, ShoalError(ALONE % step)
        membership.unusable = refusal
        try:
            yield
        finally:
            if membership.unusable is refusal:
                membership.unusable = before

    @contextmanager
    def _seeded(self, step: int) -> Iterator[None]:
        """Seed random numbers in the block, for equal new parameters on all peers; restore the generators after it."""
        used = {each.device for each in self._module.parameters() if each.is_cuda}
        with torch.random.fork_rng(used):
            torch.manual_seed(step)
            yield


def _in_words(added: Iterable[nn.Parameter]) -> str:
    """New parameters in words, with a digest of their initial values; those on a device are left out."""
    parameters = [each for each in added if each.is_cpu]
    digest = xxhash.xxh3_64()
    for each in parameters:
        digest.update(raw_bytes(each.detach()))
    return f", and {len(parameters)} new parameters (digest {digest.hexdigest()})" if parameters else ""
