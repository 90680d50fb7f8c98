"""Operations that a script calls by itself, beside the training steps of its wrapper: where it is in its loop."""

from collections.abc import Sequence

import xxhash

from ..step.operation import Operation
from ..step.place import Place, call_site
from .history import History


class OwnOperations:
    """Of one peer, through all its incarnations."""

    def __init__(self, history: History) -> None:
        """Nothing was called. `history` counts the states that are loaded."""
        self._history = history
        self._path = self._here = b""
        self._awaits_since = -1

    @property
    def awaits_state(self) -> bool:
        """This peer was removed, or has taken a step back, and has loaded no state since."""
        return self._awaits_since == self._history.num_loads

    def ended(self, operations: Sequence[Operation]) -> bool:
        """A step of these is over. Returns whether its results are only for the script: no state is here behind it."""
        is_training = any(each.collective.is_counts for each in operations)
        self._path = b"" if is_training else self._here
        return self.awaits_state and not is_training

    @staticmethod
    def may_be_found(operations: Sequence[Operation]) -> bool:
        """Whether who is removed in a step of these may be given what others have from a later one."""
        return all(each.collective.is_common and not each.collective.is_counts for each in operations)

    def await_state(self) -> None:
        """What the script calls from now on is no step of this peer, until it has loaded a state."""
        self._awaits_since = self._history.num_loads

    def took_step_back(self) -> None:
        """A training step, behind which a state is loaded."""
        self._path = b""
        self.await_state()

    def begin_lineage(self) -> None:
        """The state that is here is that of the swarm."""
        self._awaits_since = -1

    def place(self) -> Place:
        """Of the operation that is being called."""
        self._here = xxhash.xxh3_64_digest(self._path + call_site())
        return Place(self._here, self.awaits_state)
