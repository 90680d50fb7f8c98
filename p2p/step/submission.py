"""Operations that a script has submitted for the open step, in one attempt at it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from collectives import Array
from gossip import View
from gossip.progress import NOT_CALLED

from ..errors import OperationMismatch
from ..net.parcels import StepRecord
from .agreed_rows import AgreedRows
from .call_path import CallPath
from .operation import Operation
from .receipts import NO_SAMPLES, NUM_COUNTED

NOTHING: Final = "nothing"
"""In the place of the algorithm of an operation whose root was gone."""


@dataclass(slots=True, eq=False)
class Submission:
    """The operations of one attempt, in order.

    Attributes:
        step: which they are for.
        attempt: number of the attempt, at whichever step; only grows.
        agreed: on measured links, which may add an operation.
        operations: with their inputs untouched until the step commits.
        fingerprints: of them.
        state_digest: of the parameters that the step is computed with; None until the last operation was submitted.
        counts: `Counts` per rank, of the view in which the step was finished last.
        num_delivered_early: of the operations, from the first on, those whose results the script has before the commit.
        is_wanted_early: there is such an operation.
        is_training: it counts samples.
        place: where the script has called it, if the operations are its own.
    """

    step: int
    attempt: int
    agreed: AgreedRows
    operations: list[Operation] = field(default_factory=list)
    fingerprints: list[bytes] = field(default_factory=list)
    state_digest: bytes | None = None
    counts: Array | None = None
    num_delivered_early: int = 0
    is_wanted_early: bool = False
    is_training: bool = False
    place: CallPath | None = None

    def add(self, operation: Operation, segment_bytes: int) -> None:
        """Add an operation, before `close`."""
        if operation.collective.is_counts:
            self.is_training = True
            self.agreed.append_columns(operation)
        self._append(operation, segment_bytes)

    def why_damaged(self, state_digest: bytes) -> str:
        """How these, of the parameters now, differ from those that the step was computed with; empty: they do not."""
        if not self.state_digest or self.state_digest == state_digest:
            return ""
        return (
            f"the parameters have changed since step {self.step} was computed with them ({self.state_digest.hex()} "
            f"then, {state_digest.hex()} now): the memory of this peer is damaged, or its script writes to them before "
            "an update"
        )

    def close(self, state_digest: bytes, segment_bytes: int) -> None:
        """Close the submission; the parameters of the script have this digest."""
        self.state_digest = state_digest
        if (gathering := self.agreed.gathering(self.operations)) is not None:
            self._append(gathering, segment_bytes)

    def _append(self, operation: Operation, segment_bytes: int) -> None:
        self.fingerprints.append(operation.fingerprint(segment_bytes, len(self.operations), self.step))
        self.operations.append(operation)
        self.is_wanted_early |= operation.is_uncommitted

    def renumber(
        self, step: int, state_digest: bytes, segment_bytes: int, operations: Sequence[Operation] | None = None
    ) -> None:
        """Make this the submission of `step`, without samples: the state before that step was loaded meanwhile.

        `operations`: its operations; None: those that were submitted.
        """
        operations = self.operations if operations is None else operations
        kept = [each for each in operations if not each.collective.is_rows]
        self.operations, self.fingerprints, self.is_training = [], [], False
        self.step = step
        for operation in kept:
            self.add(operation, segment_bytes)
            if operation.collective.is_counts:
                operation.input[:NUM_COUNTED] = NO_SAMPLES
        self.close(state_digest, segment_bytes)

    def is_like(self, record: StepRecord, segment_bytes: int) -> bool:
        """Whether others have called in that step, whichever it is, what is submitted here, but for the counts."""
        step, given = record.finish.step, record.fingerprints
        if len(record.algorithms) != len(self.algorithms):
            return False
        ours = [(index, each) for index, each in enumerate(self.operations) if not each.collective.is_counts]
        return len(self.operations) <= len(given) and all(
            each.fingerprint(segment_bytes, index, step) == given[index] for index, each in ours
        )

    def adopt(self, record: StepRecord, results: Sequence[bytes | memoryview]) -> None:
        """The members have committed the step with these results: put them in the place of those here.

        Raises:
            OperationMismatch: it is another step at the members, or a result has another size.
        """
        try:
            if tuple(self.fingerprints) != record.fingerprints:
                ours = ", ".join(operation.describe() for operation in self.operations)
                raise ValueError(f"step {self.step} is {ours} here, and differs at the members")
            members = [member.peer_id for member in record.view.members]
            for operation, result in zip(self.operations, results, strict=True):
                operation.adopt(result, members)
            self.counts = np.array(record.counts, np.int64)
        except (ValueError, OverflowError) as error:
            raise OperationMismatch(str(error), is_alone=True) from None

    def called(self, index: int, view: View) -> str | None:
        """Operation `index` in words, as it runs in `view`; None: not called yet."""
        if index < len(self.operations):
            return self.agreed.describe(self.operations[index], view)
        return NOT_CALLED if self.state_digest is not None else None

    @property
    def algorithms(self) -> tuple[str, ...]:
        """Of each operation of the script, as it ran last: without the counts, and the rows."""
        ran = []
        for each in self.operations:
            if not (each.collective.is_counts or each.collective.is_rows):
                ran.append(NOTHING if each.is_root_missing else each.ran)
        return tuple(ran)
