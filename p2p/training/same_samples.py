"""Whether all peers train on the same samples, where no loader of ours hands them out: said once.

A script that was written for one process reads the same data in the same order on every peer. It trains as that one
process does, and as slowly. Found by the first gradient of each of the first steps, which is then the same everywhere.
"""

import logging
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import torch
import xxhash

from gossip import View

from ..data.share import Share
from ..step.collective import AllGather
from ..step.operation import Operation
from ..step.receipts import Receipt
from .beside import Beside
from .replica_state import raw_bytes

logger = logging.getLogger("p2p")

NUM_LOOKS: Final = 2
"""Steps of the run."""

SAME: Final = (
    "all %d members have computed the same gradients in the first %d steps, so they train on the same samples: a step "
    "is worth that of one peer. Take peer.loader, which hands out each sample once, or give each peer a part of its "
    "own (a DistributedSampler with peer.rank and peer.world_size); this is said once"
)


class SameSamples(Beside):
    """Of one peer. One gather of 8 bytes in each of the first steps."""

    def __init__(self, share: Share) -> None:
        """`share`: what this peer adds to the open step."""
        self._share = share
        self._digest = self._num_same = self._num_seen = 0
        row = np.zeros(1, np.int64)
        self._gather = Operation(AllGather(label="the first gradient"), row, row, row.shape, "one-shot")
        self._has_shown = False

    @property
    def _looks(self) -> bool:
        return self._share.num_trained < NUM_LOOKS and not self._share.is_of_loader

    def note(self, gradient: torch.Tensor | None) -> None:
        """One is complete, before it is averaged."""
        if self._digest or not self._looks or gradient is None or gradient.layout is not torch.strided:
            return
        if gradient.count_nonzero():
            self._digest = xxhash.xxh3_64_intdigest(raw_bytes(gradient.detach())) >> 1

    def operations(self, step: int) -> Iterator[Operation]:
        """What to submit in `step`."""
        self._has_shown = self._looks
        if self._has_shown:
            self._gather.input[0] = self._digest
            yield self._gather
        self._digest = 0

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
            logger.warning(SAME, len(shown), NUM_LOOKS)
