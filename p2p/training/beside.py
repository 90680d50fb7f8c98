"""What each step sends beside its gradients: the last operations of a step, on every peer."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from collectives import Array
from gossip import View

from ..step.operation import Operation
from ..step.receipts import Receipt


class Beside(Protocol):
    """One kind of it. Steps are numbered as those of training."""

    def note_modes(self) -> None:
        """In rounds: modes of layers are those of the round, whose first update comes; at its end they may evaluate."""
        return

    def begin(self, step: int) -> None:
        """The passes of `step` are over, and its last gradients on their way: begin to read what it is made of."""
        return

    def operations(self, step: int) -> Iterator[Operation]:
        """What to submit in `step`."""
        return iter(())

    def renew(self, operations: Sequence[Operation], step: int, view: View | None) -> list[Operation]:
        """Those of the open step, which is `step` now: the state that `view` has committed was loaded meanwhile."""
        return [*operations]

    def hand_out(self, receipt: Receipt) -> None:
        """A step is committed."""


class Difference(NamedTuple):
    """Two members have other digests of what has this name in a step."""

    name: str
    one: str
    other: str
    step: int
    digest: int
    other_digest: int


def first_difference(names: Iterable[str], rows: Array, receipt: Receipt) -> Difference | None:
    """Of `rows`, one per member, in which each column is of a name, if that is not empty. None: there is none."""
    for name, column in zip(names, rows.T, strict=False):
        (others,) = (column != column[0]).nonzero()
        if name and len(others):
            one, other = (receipt.contributions[index].peer_id for index in (0, int(others[0])))
            return Difference(name, one, other, receipt.step, int(column[0]), int(column[others[0]]))
    return None
