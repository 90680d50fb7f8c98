"""Whether all peers train on the same samples, where no loader of ours hands them out: said once.

A script that was written for one process reads the same data in the same order on every peer. It trains as that one
process does, and as slowly. Found by what is then the same everywhere: the beginnings of all gradients of the first
steps (one alone may be the same for any samples, as that of a bias by an L1 loss), and what is sent in the first
rounds. Leaves out peers whose losses have noise of their own (dropout without a seed).
"""

import logging
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import torch
import xxhash

from collectives import Array
from gossip import View

from ...data.share import Share
from ...step.collective import AllGather
from ...step.operation import Operation
from ...step.receipts import Receipt
from ..beside import Beside
from ..state.replica_state import raw_bytes
from ..tensors.layouts import in_memory_order

logger = logging.getLogger("p2p")

NUM_LOOKS: Final = 2
"""Steps, or rounds, of the run."""
NUM_ELEMENTS: Final = 64
"""Of each gradient."""

SAME: Final = (
    "all %d members have %s of the run, so they train on the same samples: a step is worth that of one peer. Take "
    "peer.loader, which hands out each sample once, or give each peer a part of its own (a DistributedSampler with "
    "peer.rank and peer.world_size); this is said once"
)


class SameSamples(Beside):
    """Of one peer. One gather of 8 bytes in each of the first steps."""

    def __init__(self, share: Share) -> None:
        """`share`: what this peer adds to the open step."""
        self._share = share
        self._num_same = self._num_seen = 0
        self._digest, self._is_zero = xxhash.xxh3_64(), True
        row = np.zeros(1, np.int64)
        self._gather = Operation(AllGather(label="the beginnings of all gradients"), row, row, row.shape, "one-shot")
        self._has_shown = False

    @property
    def _looks(self) -> bool:
        return self._share.num_trained < NUM_LOOKS and not self._share.is_of_loader

    def note(self, gradient: torch.Tensor | None) -> None:
        """One is complete, before it is averaged."""
        if self._looks and gradient is not None and gradient.layout is torch.strided:
            raw = raw_bytes(in_memory_order(gradient.detach())[:NUM_ELEMENTS])
            self._is_zero = self._is_zero and not any(raw)
            self._digest.update(raw)

    def operations(self, step: int) -> Iterator[Operation]:
        """What to submit in `step`."""
        self._has_shown = self._looks
        if self._has_shown:
            self._gather.input[0] = 0 if self._is_zero else self._digest.intdigest() >> 1
            yield self._gather
            self._digest.reset()
            self._is_zero = True

    def renew(self, operations: Sequence[Operation], step: int, view: View | None) -> list[Operation]:
        """Those of the open step, which is `step` now: the run may be beyond its first ones."""
        self._has_shown = self._has_shown and self._looks
        return [each for each in operations if each is not self._gather or self._has_shown]

    def hand_out(self, receipt: Receipt) -> None:
        """A step is committed."""
        if not self._has_shown:
            return
        shown = self._gather.result.reshape(-1).tolist()
        self._num_seen += 1
        self._num_same += len(shown) > 1 and shown[0] != 0 and len({*shown}) == 1
        if self._num_same == self._num_seen == NUM_LOOKS:
            logger.warning(SAME, len(shown), f"computed the same gradients in the first {NUM_LOOKS} steps")


class SameDeltas:
    """The same in rounds, in which all have what each has sent."""

    def __init__(self) -> None:
        self._num_seen = self._num_same = 0

    def look(self, gathered: Sequence[Array], receipt: Receipt) -> None:
        """What members have sent in a round, a row each, of samples that no loader hands out."""
        if self._num_seen < NUM_LOOKS:
            self._num_seen += 1
            is_same = all((rows == rows[0]).all() for rows in gathered) and any(rows[0].any() for rows in gathered)
            all_train = len(receipt.contributions) > 1 and all(each.weight for each in receipt.contributions)
            self._num_same += is_same and all_train
            if self._num_same == NUM_LOOKS:
                what = f"sent the same changes in the first {NUM_LOOKS} rounds"
                logger.warning(SAME, len(receipt.contributions), what)
