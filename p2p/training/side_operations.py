"""Side operations: the operations that each step sends after its gradients, on every peer."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from collectives import Array
from gossip import View

from ..step.operation import Operation
from ..step.receipts import Receipt


class SideOperations(Protocol):
    """One source of side operations. Steps are numbered as those of training."""

    def note_modes(self) -> None:
        """In rounds: note the modes of layers before the first update; at the end of the round they may differ."""
        return

    def begin(self, step: int) -> None:
        """Begin to read the inputs of `operations`: the passes of `step` are over, its last gradients in flight."""
        return

    def operations(self, step: int) -> Iterator[Operation]:
        """The operations to submit in `step`."""
        return iter(())

    def rebuild_operations(self, operations: Sequence[Operation], step: int, view: View | None) -> list[Operation]:
        """The operations of the open step, now `step`, after the state that `view` has committed was loaded."""
        return [*operations]

    def on_commit(self, receipt: Receipt) -> None:
        """Process the results of a committed step."""


class Difference(NamedTuple):
    """Two members whose digests of the object `name` differ in a step."""

    name: str
    one: str
    other: str
    step: int
    digest: int
    other_digest: int


def first_difference(names: Iterable[str], rows: Array, receipt: Receipt) -> Difference | None:
    """The first difference between `rows`, one per member, with a column per name; empty names are skipped."""
    for name, column in zip(names, rows.T, strict=False):
        (others,) = (column != column[0]).nonzero()
        if name and len(others):
            one, other = (receipt.contributions[index].peer_id for index in (0, int(others[0])))
            return Difference(name, one, other, receipt.step, int(column[0]), int(column[others[0]]))
    return None
