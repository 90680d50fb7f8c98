"""Warnings for scripts that read their data without a loader, when peers come and go.

The samples of such a script are not known, so it cannot be refused: its user is warned once about the consequences.
"""

import logging
import math
from collections.abc import Collection
from typing import Final

from ..step.call_path import call_site

logger = logging.getLogger("p2p")

WITHOUT: Final = "this script reads its data without peer.loader"
INSTEAD: Final = "use peer.loader, which hands out each sample once, whoever comes and goes"


NO_STATE: Final = (
    "this peer joined at step %d and adds up tensors with the others without p2p.DataParallel or peer.loader, so it "
    "received none of their state: it starts with the parameters, optimizers and counters of its own script. Fetch "
    "the state with an operation that all call in each iteration (examples/custom_loop.py averages models, with "
    "weight 0 for a joiner), or wrap the model (reported once)"
)

NO_PLACE: Final = (
    "this peer joined at step %d, and reduces tensors of one type and shape at several places of its loop, each in a "
    "step of its own. Its first call met whichever of these the others called then, so the results may be mixed up, "
    "on every peer, from then on. Make all operations of an iteration one step (`with peer.step():`, one tensor, or "
    "`peer.combine` with names), or read the data from a peer.loader (reported once)"
)
MOST_CALLS: Final = 100
"""First calls of a late peer that are looked at."""

UNUSED: Final = (
    "samples of its own, after a step with {0} forward pass{1} in training without a backward pass (to leave out a "
    "batch, call `model.skip_step()` instead of `continue`; run all other forward passes under torch.no_grad())"
)

AFTER_LOADER: Final = (
    "training step %d has samples of no loader, after steps of a loader's: its members weigh the same, however many "
    "samples each has, and receipts do not name these. A loader counts a batch once, and not again when the script has "
    "kept it (`itertools.cycle(loader)`, one batch for many steps after its loop): iterate the loader again, with "
    "epochs= for as long as you train, or take several steps within its loop. For other data call "
    "`model.num_samples(len(batch))` (reported once)"
)


class OwnData:
    """Warnings of one peer."""

    def __init__(self) -> None:
        self._members: tuple[str, ...] = ()
        self._num_before = 0
        self._has_said_change = self._has_said_rank = self._has_said_state = self._has_said_loader = False
        self._has_used_loader = False
        self._began_at = self._num_calls = 0
        self._places: dict[object, bytes] = {}

    def ask_rank(self, rank: int) -> None:
        """Called when the script of a peer without a seat reads its rank, without a loader."""
        if not self._has_said_rank:
            self._has_said_rank = True
            logger.warning(
                "this peer has just joined and is not a member yet, so its rank is %d of %d, after all members: a "
                "DistributedSampler refuses that; %s",
                rank,
                rank,
                INSTEAD,
            )

    def join(self, num_trained: int, step: int) -> None:
        """Called when this peer's script begins, after the swarm's `step` and `num_trained` training steps."""
        self._num_before, self._began_at = num_trained, step

    @property
    def is_late(self) -> bool:
        """Whether others had committed steps before this peer's script began, which has made few calls since."""
        return self._began_at > 0 and self._num_calls < MOST_CALLS

    def reduce(self, op: str, dtype: str, shape: tuple[int, ...], *, is_alone: bool) -> None:
        """Called when a late peer that receives no state reduces a tensor; `is_alone`: in a step of its own.

        Sums and means of several numbers may be gradients or parameters; counters are not.
        """
        self._num_calls += 1
        if op in ("sum", "mean") and math.prod(shape) > 1 and "float" in dtype and not self._has_said_state:
            self._has_said_state = True
            logger.warning(NO_STATE, self._began_at)
        place = call_site() if is_alone else b""
        if is_alone and self._places.setdefault((op, dtype, shape), place) != place:
            self._num_calls = MOST_CALLS
            logger.warning(NO_PLACE, self._began_at)

    def use_loader(self) -> None:
        """Called when a training step on samples of a loader is committed."""
        self._has_used_loader = True

    def weigh(self, weights: Collection[int], step: int) -> None:
        """Called when training step `step` is committed, on samples from no loader, which weigh this much by member."""
        if self._has_used_loader and not self._has_said_loader and len(weights) > 1 and {*weights} == {1}:
            self._has_said_loader = True
            logger.warning(AFTER_LOADER, step)

    def train(self, members: tuple[str, ...], step: int) -> None:
        """Called when training step `step` of these members is committed, on samples from no loader."""
        before, self._members = self._members, members
        if self._num_before:
            logger.warning(
                "%s, so its loop starts with its first batch although the swarm has trained %d steps, and ends by its "
                "own count: start with batch number `peer.done`, or %s",
                WITHOUT,
                self._num_before,
                INSTEAD,
            )
            self._num_before, self._has_said_change = 0, True
        elif len(members) == 1 < len(before):
            logger.warning(
                "%s, and since step %d this peer trains alone, after %d members before: if the loops of the others "
                "are over, end this one, too",
                WITHOUT,
                step,
                len(before),
            )
        elif before and members != before and not self._has_said_change:
            self._has_said_change = True
            logger.warning(
                "%s, and the members changed at step %d: its shards still follow the old rank and world_size, and "
                "samples that a lost peer had not read are left out; %s",
                WITHOUT,
                step,
                INSTEAD,
            )
