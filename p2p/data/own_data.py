"""Warnings for scripts that read their data without a loader, when peers come and go.

The samples of such a script are not known, so it cannot be refused: its user is warned once about the consequences.
"""

import logging
from typing import Final

logger = logging.getLogger("p2p")

WITHOUT: Final = "this script reads its data without peer.loader"
INSTEAD: Final = "take peer.loader, which hands out each sample once, whoever comes and goes"


NO_STATE: Final = (
    "this peer has joined at step %d, and adds up tensors with the others without p2p.DataParallel or peer.loader, so "
    "it was given nothing of theirs: parameters, optimizers and counters are those that its script begins with. Take "
    "them from an operation that all call in each turn (examples/custom_loop.py averages models, in which a joiner's "
    "weighs 0), or wrap the model; this is said once"
)

UNUSED: Final = (
    "samples of its own, behind one in which {0} forward pass{1} in training had no backward pass (leave a batch out "
    "with `model.skip_step()`, not `continue`; what is not to be trained on belongs under torch.no_grad())"
)


class OwnData:
    """Warnings of one peer."""

    def __init__(self) -> None:
        self._members: tuple[str, ...] = ()
        self._num_before = 0
        self._has_said_change = self._has_said_rank = self._has_said_state = False
        self._began_at = 0

    def ask_rank(self, rank: int) -> None:
        """Called when the script of a peer without a seat reads its rank, without a loader."""
        if not self._has_said_rank:
            self._has_said_rank = True
            logger.warning(
                "this peer has only just joined, and is no member yet, so its rank is %d of %d, behind all: a "
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
        """Whether others had committed steps before this peer's script began, and it was not warned yet."""
        return self._began_at > 0 and not self._has_said_state

    def add_up(self) -> None:
        """Called when the script of a late peer that receives no state reduces numbers to a sum or mean."""
        self._has_said_state = True
        logger.warning(NO_STATE, self._began_at)

    def train(self, members: tuple[str, ...], step: int) -> None:
        """Called when training step `step` of these members is committed, on samples from no loader."""
        before, self._members = self._members, members
        if self._num_before:
            logger.warning(
                "%s, so its loop begins with its first batch, where the swarm has trained %d steps, and ends by its "
                "own count: begin with batch number `peer.done`, or %s",
                WITHOUT,
                self._num_before,
                INSTEAD,
            )
            self._num_before, self._has_said_change = 0, True
        elif len(members) == 1 < len(before):
            logger.warning(
                "%s, and from step %d on this peer trains alone, where %d were: if the loops of the others are "
                "through, end this one, too",
                WITHOUT,
                step,
                len(before),
            )
        elif before and members != before and not self._has_said_change:
            self._has_said_change = True
            logger.warning(
                "%s, and the members have changed at step %d: shards by rank and world_size are those of before, and "
                "what a peer that is gone had not read yet is left out; %s",
                WITHOUT,
                step,
                INSTEAD,
            )
