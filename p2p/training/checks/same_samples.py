"""Check for peers that all train on the same samples, without `peer.loader`; logged once.

A script that was written for one process reads the same data in the same order on every peer. It then trains no faster
than that process. The check compares the first elements of all gradients in the first steps (a single gradient may be
the same for any samples, as that of a bias under an L1 loss), and the deltas of the first rounds. Leaves out peers
whose losses have local noise (dropout without a seed).
"""

import logging
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import torch
import xxhash

from collectives import Array
from gossip import View

from ...data.sample_tracker import SampleTracker
from ...step.collective import AllGather
from ...step.operation import Operation
from ...step.receipts import Receipt
from ..side_operations import SideOperations
from ..state.replica_state import raw_bytes
from ..tensors.layouts import in_memory_order

logger = logging.getLogger("p2p")

NUM_LOOKS: Final = 2
"""The first steps, or rounds, of the run that are compared."""
NUM_ELEMENTS: Final = 64
"""Elements of each gradient that are compared."""

SAME: Final = (
    "all %d members %s of the run, so they train on the same samples, and a step is worth that of one peer. Use "
    "peer.loader, which hands out each sample once, or give each peer a part of its own (a DistributedSampler with "
    "peer.rank and peer.world_size); this is reported once"
)


class SameSamples(SideOperations):
    """The check of one peer: a gather of 8 bytes in each of the first steps."""

    def __init__(self, share: SampleTracker) -> None:
        """`share`: the samples that this peer adds to the open step."""
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
        """Add a complete gradient to the digest, before it is averaged."""
        if self._looks and gradient is not None and gradient.layout is torch.strided:
            raw = raw_bytes(in_memory_order(gradient.detach())[:NUM_ELEMENTS])
            self._is_zero = self._is_zero and not any(raw)
            self._digest.update(raw)

    def operations(self, step: int) -> Iterator[Operation]:
        """The gather to submit in `step`."""
        self._has_shown = self._looks
        if self._has_shown:
            self._gather.input[0] = 0 if self._is_zero else self._digest.intdigest() >> 1
            yield self._gather
            self._digest.reset()
            self._is_zero = True

    def rebuild_operations(self, operations: Sequence[Operation], step: int, view: View | None) -> list[Operation]:
        """The operations of the open step, without the gather if the loaded state is past the first steps."""
        self._has_shown = self._has_shown and self._looks
        return [each for each in operations if each is not self._gather or self._has_shown]

    def on_commit(self, receipt: Receipt) -> None:
        """Compare the digests of a committed step."""
        if not self._has_shown:
            return
        shown = self._gather.result.reshape(-1).tolist()
        self._num_seen += 1
        self._num_same += len(shown) > 1 and shown[0] != 0 and len({*shown}) == 1
        if self._num_same == self._num_seen == NUM_LOOKS:
            logger.warning(SAME, len(shown), f"computed the same gradients in the first {NUM_LOOKS} steps")


class SameDeltas:
    """The check in rounds, where every member has the payloads of all members."""

    def __init__(self) -> None:
        self._num_seen = self._num_same = 0

    def check(self, gathered: Sequence[Array], receipt: Receipt) -> None:
        """Compare the payloads of a round, a row per member, in a script without `peer.loader`."""
        if self._num_seen < NUM_LOOKS:
            self._num_seen += 1
            is_same = all((rows == rows[0]).all() for rows in gathered) and any(rows[0].any() for rows in gathered)
            all_train = len(receipt.contributions) > 1 and all(each.weight for each in receipt.contributions)
            self._num_same += is_same and all_train
            if self._num_same == NUM_LOOKS:
                what = f"sent the same changes in the first {NUM_LOOKS} rounds"
                logger.warning(SAME, len(receipt.contributions), what)
