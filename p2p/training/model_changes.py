"""Changes of a model that its script has planned: each is made once, on every peer behind the same step of training.

A script begins with the model that it wraps, whenever it comes, and that is what peers are compared by as they ask for
a seat. Members agree on each change in a step of its own. Who takes over a state makes first what its writer has made.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Final

import torch
from torch import nn

from ..errors import JoinRefused, RemovedFromView, ShoalError
from ..session.session import Session

logger = logging.getLogger("p2p")

Change = Callable[[], object]

NOTHING_PLANNED: Final[Mapping[int, Change]] = MappingProxyType({})

ALONE: Final = (
    "the change of the model behind step %d (`changes=`) has called its peer, or the loader of it: who joins later "
    "makes that change alone, so it changes the model and its optimizer, and nothing else"
)
FAILED: Final = (
    "raised by the change of the model behind step %d (`changes=`); who joins later makes it, too, with a model and an "
    "optimizer as they are at the wrap, which have seen no step: no parameter has moments there"
)
NOT_CALLED: Final = (
    "the model is to be changed behind step %d (`changes=`), which is done where the script asks for a batch of "
    "peer.loader, or calls the wrapper, and it does neither: call the wrapper in place of the model"
)
OTHERS: Final = (
    "this state is of a model that was changed behind steps %s, and this peer has changed its model behind %s of %s "
    "(`changes=`): plan the same changes where they were made, and start this peer again"
)


class ModelChanges:
    """Of one peer.

    Attributes:
        made: behind which steps of training changes were made, in order. Part of the state.
        take_up: the wrapper goes on with the model as it is now, or raises.
        agree: all members do, in a step of its own.
    """

    def __init__(self, planned: Mapping[int, Change], module: nn.Module, session: Session) -> None:
        """Nothing is changed yet.

        Args:
            planned: by the step of training that each comes behind.
            module: that they change.
            session: of the peer.

        Raises:
            TypeError, ValueError: it does not have that form.
        """
        for step, change in planned.items():
            if type(step) is not int or step < 1:
                raise ValueError(f"`changes` has functions by steps of training, which count from 1, got {step!r}")
            if not callable(change):
                raise TypeError(f"`changes` has functions by steps of training, got {change!r} for step {step}")
        self._planned = dict(sorted(planned.items()))
        self._module, self._session = module, session
        self.made: list[int] = []
        self.take_up: Callable[[], None] = lambda: None
        self.agree: Callable[[], None] = lambda: None

    @property
    def traits(self) -> dict[str, bytes]:
        """In what peers must not differ."""
        steps = ", ".join(map(str, self._planned))
        return {"changes": f"a model that is changed behind step {steps}".encode()} if steps else {}

    @property
    def due(self) -> list[int]:
        """Behind which steps those are that are to be made now."""
        left = [*self._planned][len(self.made) :]
        return [step for step in left if step <= self._session.share.num_trained]

    def make_due(self) -> None:
        """The script is between two steps, as those of all members are.

        Raises:
            ShoalError: a change has called the peer.
            OperationMismatch, QuorumLost, RegistryError, RemovedFromView, ReplicasDiverged, StepTimeout: as any step.
            Whatever a change raises, and the wrap of what it has made.
        """
        if due := self.due:
            self._make(due)
            try:
                self.agree()
            except RemovedFromView as error:  # the others have agreed without it
                self._session.membership.return_after(error)

    def are_like(self, theirs: Sequence[int]) -> bool:
        """Whether a state whose writer has made `theirs` is of the model as it is now."""
        return [*theirs] == self.made

    def follow(self, theirs: Sequence[int]) -> None:
        """A state is about to be loaded whose writer has made `theirs`.

        Raises:
            JoinRefused: this peer has made others, or plans others.
            Whatever a change raises, and the wrap of what it has made.
        """
        steps, num_made = [*self._planned], len(self.made)
        if steps[: len(theirs)] != [*theirs] or len(theirs) < num_made:
            raise JoinRefused(OTHERS % ([*theirs] or "none", self.made or "none", steps or "none"))
        if left := steps[num_made : len(theirs)]:
            self._make(left)

    def check_is_called(self) -> None:
        """Raise ShoalError if some are due, in a script that never comes to where they are made."""
        if due := self.due:
            raise ShoalError(NOT_CALLED % due[0])

    def _make(self, steps: Sequence[int]) -> None:
        for step in steps:
            try:
                with self._alone(step), self._seeded(step):
                    self._planned[step]()
            except Exception as error:
                error.add_note(FAILED % step)
                raise
            self.made.append(step)
            logger.info("the model was changed behind step %d of training", step)
        self.take_up()

    @contextmanager
    def _alone(self, step: int) -> Iterator[None]:
        """What is called of the peer in the block raises."""
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
        """New parameters are the same on all peers, and random numbers behind the block those without it."""
        used = {each.device for each in self._module.parameters() if each.is_cuda}
        with torch.random.fork_rng(used):
            torch.manual_seed(step)
            yield
