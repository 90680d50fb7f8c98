"""This peer's share of the samples: what it adds to the next step, and which batches it is given."""

from collections.abc import Callable, Iterator
from dataclasses import astuple
from typing import Any

from .errors import ShoalError
from .handover import PackedState
from .receipts import UNKNOWN_SAMPLE, Receipt
from .sampler import ElasticSampler, SamplerState, fold, take
from .wire import pack_tree, unpack_tree

SPENT = (-2, 0)
"""The slice of a batch that is on a receipt."""


class Share:
    """The sampler's state after the last committed step, and this peer's slice of the next."""

    def __init__(self, peer_id: str) -> None:
        self._peer_id = peer_id
        self._slice = (UNKNOWN_SAMPLE, 1)
        self.state = SamplerState()

    @property
    def slice(self) -> tuple[int, int]:
        """First sample of the stream and number of samples that this peer adds to the next step.

        Raises:
            ShoalError: the batch of `batches` is on a receipt already.
        """
        if self._slice == SPENT:
            raise ShoalError("this batch is counted already: call backward once per batch")
        return self._slice

    def set_number(self, number: int) -> None:
        """Add `number` samples of the script's own to each further step."""
        if number < 0:
            raise ValueError(f"the number of samples must be at least 0, is {number}")
        self._slice = UNKNOWN_SAMPLE, number

    def pack(self) -> PackedState:
        """The state of a peer that trains no model."""
        return PackedState(pack_tree(astuple(self.state)), ())

    def load(self, packed: PackedState) -> None:
        """Take over what `pack` made."""
        self.state = SamplerState(*unpack_tree(packed.tree))

    def count(self, receipt: Receipt) -> None:
        """A step is committed."""
        self.state = fold(self.state, receipt)
        mine = (entry for entry in receipt.contributions if entry.peer_id == self._peer_id)
        if any(entry.first_sample == self._slice[0] >= 0 for entry in mine):
            self._slice = SPENT

    def batches(self, dataset: Any, sampler: ElasticSampler, begin: Callable[[], int]) -> Iterator[Any]:
        """The batches of `Peer.batches`; `begin` is called before each, and returns the last committed step."""
        done = None
        while not sampler.is_exhausted(self.state):
            if done == (done := begin()):
                raise ShoalError("no step was committed between two batches: call backward once per batch")
            plan = sampler.plan(self.state)
            self._slice = plan.get(self._peer_id, (UNKNOWN_SAMPLE, 0))
            yield take(dataset, sampler.indices(plan, self._peer_id))
