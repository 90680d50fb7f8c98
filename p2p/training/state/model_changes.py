"""Changes of a model that its script has planned: each is made once, on every peer behind the same step of training.

A script begins with the model that it wraps, whenever it comes, and that is what peers are compared by as they ask for
a seat. Members agree on each change in a step of its own. Who takes over a state makes first what its writer has made.
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
"""A loop has so many steps of one call of the wrapper at most."""

NOTHING_PLANNED: Final[Mapping[int, Change]] = MappingProxyType({})

ALONE: Final = (
    "the change of the model behind step %d (`changes=`) has called its peer, or the loader of it: who joins later "
    "makes that change alone, so it changes the model and its optimizer, and nothing else"
)
FAILED: Final = (
    "the change of the model behind step %d (`changes=`) has raised; who joins later makes it, too, with a model and "
    "an optimizer as they are at the wrap, which have seen no step: no parameter has moments there"
)
NOTHING: Final = (
    "the change of the model behind step %d (`changes=`) has left it as it was: its parameters, what needs a gradient, "
    "its layers, and the groups of its optimizers. Is it the wrapper that it changes? That calls parameters "
    "`module.`..., so change the model itself"
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
        summed: parameters whose gradients are.
        take_up: the wrapper goes on with the model as it is now, or raises.
        agree: all members do, in a step of its own.
    """

    def __init__(
        self, planned: Mapping[int, Change], module: nn.Module, parts: Mapping[str, Stateful], session: Session
    ) -> None:
        """Nothing is changed yet.

        Args:
            planned: by the step of training that each comes behind.
            module: that they change.
            parts: optimizers among them.
            session: of the peer.

        Raises:
            TypeError, ValueError: it does not have that form.
        """
        if not isinstance(planned, Mapping):
            raise TypeError(f"`changes` is a dict of functions by steps of training, is a {type(planned).__name__}")
        for step, change in planned.items():
            if type(step) is not int or step < 1:
                raise ValueError(f"`changes` has functions by steps of training, which count from 1, got {step!r}")
            if not callable(change):
                raise TypeError(f"`changes` has functions by steps of training, got {change!r} for step {step}")
        self._planned = dict(sorted(planned.items()))
        self._module, self._parts, self._session = module, parts, session
        self.made = [step for step in self._planned if step < session.share.num_trained]  # loaded by the script itself
        self.summed: Callable[[], Collection[nn.Parameter]] = tuple
        self.take_up: Callable[[], None] = lambda: None
        self.agree: Callable[[str], None] = lambda added: None
        self._added = ""

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
            self._session.membership.check_usable()  # a change that calls the wrapper comes here again
            self._make(due)
            try:
                self.agree(self._added)
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

    def check_is_called(self, *, has_been: bool) -> None:
        """Raise ShoalError if some are due, in a script that never comes to where they are made.

        `has_been`: it has called the wrapper before, as in a loop of several steps that calls it once.
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
            logger.info("the model was changed behind step %d of training", step)
        if self._look() == before:
            logger.warning(NOTHING, steps[-1])
        self._added = _in_words(each for each in self._module.parameters() if each not in known)
        frozen = [each for each in frozen if not each.requires_grad]
        for each in frozen:  # what the script has frozen in passing is trained by all, and who joins has it so
            each.requires_grad_(True)
        try:
            self.take_up()
        finally:
            for each in frozen:
                each.requires_grad_(False)

    def _look(self) -> object:
        """What a change is about: parameters, buffers, flags, plain attributes, groups of optimizers."""
        parameters = [(name, id(each), each.requires_grad) for name, each in self._module.named_parameters()]
        buffers = [(name, id(each)) for name, each in self._module.named_buffers()]
        layers = [(name, id(each), each.training) for name, each in self._module.named_modules()]
        return parameters, buffers, layers, dict(plain_of(self._module)), settings_of(self._parts)

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


def _in_words(added: Iterable[nn.Parameter]) -> str:
    """Parameters that are new, with a digest of what they begin with; those of a device are not fetched."""
    parameters = [each for each in added if each.is_cpu]
    digest = xxhash.xxh3_64()
    for each in parameters:
        digest.update(raw_bytes(each.detach()))
    return f", and {len(parameters)} new parameters (digest {digest.hexdigest()})" if parameters else ""
