"""This peer's share of the samples: what it adds to the open step, and which batches it is given."""

from collections.abc import Callable, Iterator
from dataclasses import astuple
from typing import Any

import numpy as np

from collectives import Array

from ..errors import ShoalError
from ..net.parcels import PackedState
from ..net.trees import pack_tree, unpack_tree
from ..step.receipts import UNKNOWN_SAMPLE, Receipt
from .sampler import ElasticSampler, SamplerState, fold, take

NOTHING = (UNKNOWN_SAMPLE, 0)
"""The slice of who adds nothing to a step."""


class Share:
    """The sampler's state after the last committed step, and what this peer adds to the next.

    That is a slice of the stream of `batches`, in one backward pass or in several micro-batches; for a script with a
    loader of its own a number of samples per backward pass. A slice weighs its samples, or what the script says.

    Attributes:
        state: after the last committed step.
        fraction: of this peer's weight in the micro-batches so far, or of all of them, which the current one has.
        keep: what the micro-batches before it are multiplied by.
        is_last: no further micro-batch of the step follows.
    """

    def __init__(self, peer_id: str) -> None:
        self._peer_id = peer_id
        self.state = SamplerState()
        self.fraction = self.keep = 1.0
        self.is_last = True
        self._number = 1
        self._accumulated = self._joined = 0
        self._is_weighed = self._is_skipped = False
        self._planned: tuple[int, int] | None = None
        self._is_spent = False
        self._is_void = False
        self._is_used = False
        self._micro_batches_of = object()

    @property
    def slice(self) -> tuple[int, int]:
        """First sample of the stream and number of samples that this peer adds to the open step.

        Raises:
            ShoalError: the batch of `batches` is on a receipt already.
        """
        if self._is_void:
            return NOTHING
        if self._planned is None:
            return UNKNOWN_SAMPLE, 0 if self._is_skipped else self._accumulated + self._number
        if self._is_spent:
            raise ShoalError(
                "this batch is counted already: call backward once per batch, "
                "all but the last of several passes under `no_sync`"
            )
        return self._planned

    @property
    def weight(self) -> int:
        """What this peer's gradients count in the mean, beside those of others."""
        _, number = self.slice
        if not number or self._is_skipped:
            return 0
        return self._accumulated + self._number if self._is_weighed else number

    @property
    def counts(self) -> tuple[int, int, int]:
        """The slice and its weight, as operation 0 of a step has them."""
        return *self.slice, self.weight

    def set_number(self, number: int) -> None:
        """Add `number` samples of the script's own in each further backward pass; a slice of `batches` weighs so much.

        Raises:
            ShoalError: a pass of the batch has come before, with another weight.
        """
        if number < 0:
            raise ValueError(f"the number of samples must be at least 0, is {number}")
        if self._planned is not None and self._accumulated and not self._is_weighed:
            raise ShoalError("num_samples was called after a backward pass of this batch: call it before the first one")
        self._number, self._is_weighed = number, True

    def accumulate(self, *, is_joined: bool = False) -> None:
        """A backward pass adds to the step, and does not end it; `is_joined`: to the micro-batches, not to `grad`."""
        self._accumulated += self._number
        self._is_used = True
        if is_joined:
            self._join(self._accumulated)

    def end(self) -> None:
        """A backward pass ends the step."""
        self._join(self._accumulated + self._number)

    def _join(self, total: int) -> None:
        """What has come since the micro-batch before joins it: a mean of the two, by the script's weights."""
        if self._is_weighed and self._planned is not None and total:
            self.fraction, self.keep = 1 - self._joined / total, self._joined / total
            self._joined = total

    def skip(self) -> None:
        """This peer adds nothing to the open step, whose samples are used up all the same."""
        self._is_skipped = True

    def void(self) -> None:
        """This peer adds nothing to the open step: a pass of it was interrupted, or its gradients are of no use."""
        self._is_void = True

    def spend(self) -> None:
        """The step that this peer has added to is committed."""
        self._accumulated = self._joined = 0
        self._is_void, self._is_skipped, self._is_spent = False, False, True

    def pack(self) -> PackedState:
        """The state of a peer that trains no model."""
        return PackedState(pack_tree(astuple(self.state)), ())

    def load(self, packed: PackedState) -> None:
        """Take over what `pack` made."""
        self.state = SamplerState(*unpack_tree(packed.tree))

    def count(self, receipt: Receipt) -> None:
        """A step is committed."""
        self.state = fold(self.state, receipt)

    def batches(
        self, dataset: Any, sampler: ElasticSampler, begin: Callable[[], int], max_local_batch: int | None = None
    ) -> Iterator[Any]:
        """The batches of `Peer.batches`; `begin` is called before each slice, and returns the last committed step."""
        done = None
        self._micro_batches_of = me = object()
        try:
            while not sampler.is_exhausted(self.state):
                if done == (done := begin()) and not self._is_void:
                    raise ShoalError(
                        "no step was committed between two batches: call backward once per batch; "
                        "to accumulate gradients, pass `max_local_batch` to `batches`"
                    )
                plan = sampler.plan(self.state)
                self._planned = NOTHING if self._is_void else plan.get(self._peer_id, NOTHING)
                self._is_spent = self._is_weighed = False
                self._accumulated = self._joined = 0
                counts = self._planned != NOTHING
                indices = sampler.indices(plan, self._peer_id if counts else "")
                size = max_local_batch if max_local_batch and counts else len(indices)
                yield from self._micro_batches(dataset, indices, size)
        finally:
            if self._micro_batches_of is me:  # and nobody has begun anew
                self.fraction, self.keep, self.is_last = 1.0, 1.0, True
                if self._is_spent:
                    self._planned = None  # what comes now is the script's own

    def _micro_batches(self, dataset: Any, indices: Array, size: int) -> Iterator[Any]:
        """The samples at `indices`, at most `size` at a time, and about equally many."""
        parts = np.array_split(indices, -(-len(indices) // size))
        for number, part in enumerate(parts, start=1):
            self.fraction, self.keep, self.is_last = len(part) / len(indices), 1.0, number == len(parts)
            self._is_used = False
            yield take(dataset, part)
            if not (self.is_last or self._is_used or self._is_void):
                raise ShoalError("a micro-batch had no backward pass: call backward once per batch")
