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
    loader of its own a number of samples per backward pass.

    Attributes:
        state: after the last committed step.
        fraction: of this peer's samples of the step, which the current micro-batch has.
        is_last: no further micro-batch of the step follows.
    """

    def __init__(self, peer_id: str) -> None:
        self._peer_id = peer_id
        self.state = SamplerState()
        self.fraction = 1.0
        self.is_last = True
        self._number = 1
        self._accumulated = 0
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
            return UNKNOWN_SAMPLE, self._accumulated + self._number
        if self._is_spent:
            raise ShoalError(
                "this batch is counted already: call backward once per batch, "
                "all but the last of several passes under `no_sync`"
            )
        return self._planned

    def set_number(self, number: int) -> None:
        """Add `number` samples of the script's own in each further backward pass."""
        if number < 0:
            raise ValueError(f"the number of samples must be at least 0, is {number}")
        self._number, self._planned = number, None

    def accumulate(self) -> None:
        """A backward pass adds to the step, and does not end it."""
        self._accumulated += self._number
        self._is_used = True

    def void(self) -> None:
        """This peer adds nothing to the open step: a pass of it was interrupted, or its gradients are of no use."""
        self._is_void = True

    def spend(self) -> None:
        """The step that this peer has added to is committed."""
        self._accumulated, self._is_void, self._is_spent = 0, False, True

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
                self._is_spent = False
                counts = self._planned != NOTHING
                indices = sampler.indices(plan, self._peer_id if counts else "")
                size = max_local_batch if max_local_batch and counts else len(indices)
                yield from self._micro_batches(dataset, indices, size)
        finally:
            if self._micro_batches_of is me:  # and nobody has begun anew
                self.fraction, self.is_last = 1.0, True

    def _micro_batches(self, dataset: Any, indices: Array, size: int) -> Iterator[Any]:
        """The samples at `indices`, at most `size` at a time, and about equally many."""
        parts = np.array_split(indices, -(-len(indices) // size))
        for number, part in enumerate(parts, start=1):
            self.fraction, self.is_last = len(part) / len(indices), number == len(parts)
            self._is_used = False
            yield take(dataset, part)
            if not (self.is_last or self._is_used or self._is_void):
                raise ShoalError("a micro-batch had no backward pass: call backward once per batch")
