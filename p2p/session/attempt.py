"""Operations that the training thread has submitted for the open step, in the current attempt at it.

A new attempt begins after the submitted operations were given up or withdrawn. Commands still on their way to the loop
then carry the number of an older attempt, and are void.
"""

from enum import Enum
from typing import Final

from ..errors import ShoalError
from ..step.operation import Operation

MOST_EARLY: Final = 256
MOST_EARLY_BYTES: Final = 64 << 20
"""Limits per step on operations whose results were returned before the commit, and on the bytes of their inputs."""


class OpenedBy(Enum):
    """Opener of a step; the value is the error message for an attempt to open another step before its end."""

    BACKWARD = "a backward pass has begun a step: call no other operation before it ends"
    EXCHANGE = "an exchange is under way: call no other operation before it ends"
    BLOCK = "a `with peer.step()` block is open: its operations are committed at its end, so call this after it"
    ASYNCHRONOUS = "asynchronous operations are open: call `peer.wait()`, or `wait` of one of their handles, first"
    PARTS = "the parts of a long tensor wait for the others"
    ALONE = "an operation waits for the others"
    EARLY = "results were handed out before their commit"
    """Has no particular owner: the next call joins the same step."""


class Attempt:
    """Attempt at the open step, if one is open.

    Attributes:
        number: of this attempt, over all steps.
        opened_by: None: no step is open.
        operations: submitted so far.
    """

    def __init__(self) -> None:
        self.number = 0
        self.opened_by: OpenedBy | None = None
        self.operations: list[Operation] = []
        self._num_bytes = 0
        self._buckets: list[int] = []

    def begin(self, by: OpenedBy) -> None:
        """Open the step, or continue one with results returned early.

        Raises:
            ShoalError: another one is open.
        """
        if self.opened_by not in (None, OpenedBy.EARLY):
            raise ShoalError(self.opened_by.value)
        self.opened_by = by

    def add(self, operation: Operation) -> None:
        """Record a submitted operation."""
        self.operations.append(operation)
        self._num_bytes += operation.input.nbytes

    def takes(self, operation: Operation) -> bool:
        """Whether the result of one more operation may be returned early; the same on every member."""
        return len(self.operations) < MOST_EARLY and self._num_bytes + operation.input.nbytes <= MOST_EARLY_BYTES

    def new_buckets(self) -> list[int]:
        """Sizes in bytes of the sums of a fully submitted training step, if they differ from those of the last one."""
        operations = self.operations
        if not any(each.collective.is_counts for each in operations):
            return []
        sums = [each for each in operations if each.collective.is_priced and not each.collective.is_of_one]
        before, self._buckets = self._buckets, [each.input.nbytes for each in sums]
        return self._buckets if self._buckets != before else []

    def end(self) -> list[Operation]:
        """End this attempt. Returns its operations."""
        operations = self.operations
        self.number, self.opened_by, self.operations, self._num_bytes = self.number + 1, None, [], 0
        return operations
