"""Own operations of a script, besides the training steps of its wrapper, and its position in its loop."""

from collections.abc import Sequence

import xxhash

from ..step.call_path import CallPath, call_site
from ..step.operation import Operation
from .history import History


class OwnOperations:
    """Own operations of one peer, through all its incarnations."""

    def __init__(self, history: History) -> None:
        """Without calls."""
        self._history = history
        self._path = self._here = b""

    def ended(self, operations: Sequence[Operation]) -> bool:
        """Record the end of a step of `operations`. Returns whether only results are known, not the state after it."""
        is_training = any(each.collective.is_counts for each in operations)
        self._path = b"" if is_training else self._here
        return self._history.lacks_state and not is_training

    @staticmethod
    def may_be_found(operations: Sequence[Operation]) -> bool:
        """Whether a peer removed in such a step may be given the results that others get in a later one."""
        return all(each.collective.is_common and not each.collective.is_counts for each in operations)

    def took_step_back(self) -> None:
        """Record a withdrawn training step, after which a state is loaded."""
        self._path, self._history.lacks_state = b"", True

    def place(self) -> CallPath:
        """The position of the current call."""
        self._here = xxhash.xxh3_64_digest(self._path + call_site())
        return CallPath(self._here, self._history.lacks_state)
