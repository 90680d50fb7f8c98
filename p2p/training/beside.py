"""What each step sends beside its gradients: the last operations of a step, on every peer."""

from collections.abc import Iterator
from typing import Protocol

from ..step.operation import Operation
from ..step.receipts import Receipt


class Beside(Protocol):
    """One kind of it."""

    def begin(self, step: int) -> None:
        """The passes of `step` are over, and its last gradients on their way: begin to read what it is made of."""
        return

    def operations(self, step: int) -> Iterator[Operation]:
        """What to submit in `step`."""

    def hand_out(self, receipt: Receipt) -> None:
        """A step is committed."""
