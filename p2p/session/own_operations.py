"""Operations that a script calls by itself, beside the training steps of its wrapper: where it is in its loop."""

from collections.abc import Sequence

import xxhash

from ..step.operation import Operation
from ..step.place import Place, call_site
from .history import History


class OwnOperations:
    """Of one peer, through all its incarnations."""

    def __init__(self, history: History) -> None:
        """Nothing was called."""
        self._history = history
        self._path = self._here = b""

    def ended(self, operations: Sequence[Operation]) -> bool:
        """A step of these is over. Returns whether its results are only for the script: no state is here behind it."""
        is_training = any(each.collective.is_counts for each in operations)
        self._path = b"" if is_training else self._here
        return self._history.lacks_state and not is_training

    @staticmethod
    def may_be_found(operations: Sequence[Operation]) -> bool:
        """Whether who is removed in a step of these may be given what others have from a later one."""
        return all(each.collective.is_common and not each.collective.is_counts for each in operations)

    def took_step_back(self) -> None:
        """A training step, behind which a state is loaded."""
        self._path, self._history.lacks_state = b"", True

    def place(self) -> Place:
        """Of the operation that is being called."""
        self._here = xxhash.xxh3_64_digest(self._path + call_site())
        return Place(self._here, self._history.lacks_state)
