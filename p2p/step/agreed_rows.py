"""Which algorithm is taken where a call leaves it open: by a table of prices, once all know that all have it.

Each peer measures a *row*, of its links to the others. What that says is its host's business (p2p/loop/); here is
how rows become agreed, R22 of PROTOCOL.md. All that decides is in committed steps, so all decide alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from collectives import Array
from gossip import Member, View

from .collective import AllGather
from .operation import Operation
from .receipts import HAS, NUM_COLUMNS, NUM_COUNTED, WANTS

NO_STEP: Final = 0
"""In the column `HAS`: no table. Step 0 has no operation."""

GATHER: Final = AllGather(is_rows=True, label="what is measured of the links")


class Table(Protocol):
    """Prices of operations by one set of rows: the same at all members with these rows."""

    def choose(self, num_bytes: int, *, rounds_once: bool = False) -> str:
        """The algorithm for an all-reduce of so many bytes; `rounds_once`: one that rounds each result once."""

    def choose_broadcast(self, num_bytes: int, root: int) -> str | None:
        """The algorithm for a broadcast of so many bytes from that rank; None: sizes decide."""


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """The rows of all members, as gathered by `step` in a view, concatenated in rank order.

    Attributes:
        hosts: of each, by number, as the seats of that view say.
    """

    step: int
    members: tuple[Member, ...]
    raw: Array
    hosts: tuple[int, ...]


def hosts_of(view: View) -> tuple[int, ...]:
    """Of each rank its host, by number."""
    names = [seat.contact.host for seat in view.seats]
    return tuple(map(names.index, names))


class AgreedRows:
    """Of one peer, through all its steps.

    Attributes:
        row: what this peer has measured.
        wants: it differs from the one that is agreed on.
        is_due: a receipt says that somebody wants so, since the last training step that has gathered rows.
        took_us: what this peer has needed for its own part of the training step that it has submitted last.
        rows: gathered last; the table of them is to be made (`tabulated`), or is not used yet.
        used: whose table is used in views of their members.
    """

    def __init__(self, me: Member) -> None:
        self.row: Array = np.zeros(0, np.uint8)
        self.wants = self.is_due = False
        self.took_us = 0
        self.rows: Rows | None = None
        self.used: Rows | None = None
        self._me = me
        self._tables: dict[int, Table] = {}

    # What goes into a step.

    def append_columns(self, counts: Operation) -> None:
        """Say with the counts of a training step whether this peer wants rows, and has the table; and `took_us`."""
        has = self.rows.step if self.rows is not None and self.rows.step in self._tables else NO_STEP
        said = [*counts.input.tolist()[:NUM_COUNTED], int(self.wants), has, self.took_us]
        counts.input = np.array(said, np.int64)  # an array of its own: an earlier one may be on its way

    def gathering(self, operations: Sequence[Operation]) -> Operation | None:
        """The operation that gathers rows, the last one of the step of `operations`, if rows are due."""
        if not (self.is_due and any(each.collective.is_counts for each in operations)):
            return None
        row = self.row.copy()
        return Operation(GATHER, row, row, row.shape, "one-shot")

    # What is committed.

    def committed(self, step: int, view: View, operations: Sequence[Operation]) -> None:
        """A step was finished in `view`, with these results."""
        counts = next((each.result for each in operations if each.collective.is_counts), None)
        if counts is None:
            return
        said, rows = counts.tolist(), self.rows
        if rows is not None and rows.members == view.members and {*said[HAS::NUM_COLUMNS]} == {rows.step}:
            self.used, self.rows = rows, None
            self._tables = {rows.step: self._tables[rows.step]} if self._me in rows.members else {}
        gathered = next((each.result for each in operations if each.collective.is_rows), None)
        self.is_due = gathered is None and any(said[WANTS::NUM_COLUMNS])
        if gathered is not None:
            self._tables.pop(NO_STEP if self.rows is None else self.rows.step, None)
            self.rows = Rows(step, view.members, gathered, hosts_of(view))
            self.wants &= self._me not in view.members

    @property
    def untabulated(self) -> Rows | None:
        """Of these a table is to be made: this peer is among them, and has none yet."""
        rows = self.rows
        return rows if rows is not None and rows.step not in self._tables and self._me in rows.members else None

    def tabulated(self, rows: Rows, table: Table) -> None:
        """Here is the table of these rows. It is used when a receipt says that all members have it."""
        if self.rows is rows:
            self._tables[rows.step] = table

    def table(self, view: View) -> Table | None:
        """The one that is used in `view`; None: sizes decide."""
        return self._tables[self.used.step] if self.used is not None and self.used.members == view.members else None

    def choice(self, operation: Operation, view: View) -> str | None:
        """The algorithm for this one in `view`; None: its call says which, it has only one, or its size decides."""
        collective = operation.collective
        if operation.algorithm is not None or self.used is None or (table := self.table(view)) is None:
            return None
        if collective.is_broadcast:
            ranks = {member.peer_id: rank for rank, member in enumerate(view.members)}
            root = ranks.get(collective.root)
            return None if root is None else table.choose_broadcast(operation.input.nbytes, root)
        if not collective.is_priced:
            return None
        is_half = operation.input.itemsize == 2  # it would be rounded at each hop, as no call asks for
        return table.choose(operation.input.nbytes, rounds_once=is_half)

    def describe(self, operation: Operation, view: View) -> str:
        """In words, what all ranks must have in common in `view`."""
        choice = self.choice(operation, view)
        return operation.describe() if choice is None else f"{operation.describe()}, which is {choice}"
