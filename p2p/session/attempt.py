"""What the training thread has submitted for the open step, in this attempt at it.

A step is attempted anew after what was submitted for it was given up, or taken back. What is still on its way to the
loop then has the number of an older attempt, and is void.
"""

from enum import Enum
from typing import Final

from ..errors import ShoalError
from ..step.operation import Operation

MOST_EARLY: Final = 256
MOST_EARLY_BYTES: Final = 64 << 20
"""A step holds so many operations whose results were handed out, and so many bytes of their inputs."""


class OpenedBy(Enum):
    """What has opened a step, in the words for who opens another one before it is over."""

    BACKWARD = "a backward pass has begun a step: call no other operation before it ends"
    EXCHANGE = "an exchange is under way: call no other operation before it ends"
    BLOCK = "a `with peer.step()` block is open: its operations are committed at its end, so call this after it"
    ASYNCHRONOUS = "asynchronous operations are open: call `peer.wait()`, or `wait` of one of their handles, first"
    PARTS = "the parts of a long tensor wait for the others"
    ALONE = "an operation waits for the others"
    EARLY = "results were handed out before their commit"
    """It is nobody's in particular: whatever is called next belongs to the same step."""


class Attempt:
    """At the open step, if one is open.

    Attributes:
        number: of this attempt, at whichever step.
        opened_by: by what; None: none is open.
        operations: that were submitted.
    """

    def __init__(self) -> None:
        self.number = 0
        self.opened_by: OpenedBy | None = None
        self.operations: list[Operation] = []
        self._num_bytes = 0
        self._buckets: list[int] = []

    def begin(self, by: OpenedBy) -> None:
        """Open the step, or go on with one of which results were handed out.

        Raises:
            ShoalError: another one is open.
        """
        if self.opened_by not in (None, OpenedBy.EARLY):
            raise ShoalError(self.opened_by.value)
        self.opened_by = by

    def add(self, operation: Operation) -> None:
        """It is submitted."""
        self.operations.append(operation)
        self._num_bytes += operation.input.nbytes

    def takes(self, operation: Operation) -> bool:
        """Whether the result of one more operation may be handed out early: the same on every member."""
        return len(self.operations) < MOST_EARLY and self._num_bytes + operation.input.nbytes <= MOST_EARLY_BYTES

    def new_buckets(self) -> list[int]:
        """Bytes of the sums of a training step, all of which are submitted, if they are not those of the last one."""
        operations = self.operations
        if not any(each.collective.is_counts for each in operations):
            return []
        sums = [each for each in operations if each.collective.is_priced and not each.collective.is_of_one]
        before, self._buckets = self._buckets, [each.input.nbytes for each in sums]
        return self._buckets if self._buckets != before else []

    def end(self) -> list[Operation]:
        """Nothing more is submitted in this attempt. Returns what was."""
        operations = self.operations
        self.number, self.opened_by, self.operations, self._num_bytes = self.number + 1, None, [], 0
        return operations
