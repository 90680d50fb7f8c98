"""Mutants of tables of measured links: one rule is removed (R22 of PROTOCOL.md)."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from gossip import View
from p2p.step.agreed_rows import GATHER, AgreedRows, Rows, Table
from p2p.step.effects import StepEffect
from p2p.step.open_step import OpenStep
from p2p.step.operation import Operation
from p2p.step.stragglers import Named, Straggler, StragglerDetector

from .mutant import Mutant, mutant

AGREE = "ROWS: a table is agreed on, kept in a view of the same members, and replaced in one of others"
HOSTS = "ROWS: two hosts of several peers have one table"
BROADCASTS = "ROWS: broadcasts go by the table of the view, from the rank that their root has in it"
JOIN = "ROWS: a peer joins when rows are due"


def _use_at_once(self: AgreedRows, rows: Rows, table: Table) -> None:
    self._tables[rows.step], self.used = table, rows


def _gather_what_it_has_measured(self: AgreedRows, operations: Sequence[Operation]) -> Operation | None:
    if not (self.wants and any(each.collective.is_counts for each in operations)):
        return None
    return Operation(GATHER, self.row, self.row, self.row.shape, "one-shot")


def _forget(original: Callable[[OpenStep, View], list[StepEffect]]) -> Callable[..., list[StepEffect]]:
    def installed(self: OpenStep, view: View) -> list[StepEffect]:
        self.agreed.used = None
        return original(self, view)

    return installed


def _whoever_is_in_it(self: AgreedRows, view: View) -> Table | None:
    return None if self.used is None else self._tables[self.used.step]


def _ask_nobody(original: Callable[..., None]) -> Callable[..., None]:
    def committed(self: AgreedRows, step: int, view: View, operations: Sequence[Operation]) -> None:
        original(self, step, view, operations)
        if self.rows is not None and self.rows.step in self._tables:
            self.used, self.rows = self.rows, None

    return committed


def _count_from_own(original: Callable[..., None]) -> Callable[..., None]:
    def committed(self: AgreedRows, step: int, view: View, operations: Sequence[Operation]) -> None:
        before = self.rows
        original(self, step, view, operations)
        if self.rows is not None and self.rows is not before and self._me in view.members:
            own = self.rows.hosts[view.members.index(self._me)]
            self.rows = replace(self.rows, hosts=tuple(int(host != own) for host in self.rows.hosts))

    return committed


def _know_better(original: Callable[..., None]) -> Callable[..., None]:
    def committed(self: AgreedRows, step: int, view: View, operations: Sequence[Operation]) -> None:
        before = self.rows
        original(self, step, view, operations)
        if self.rows is not None and self.rows is not before and self._me in view.members:
            said = self.rows.raw.reshape(len(view.members), -1).copy()
            said[view.members.index(self._me)] = self.row
            self.rows = replace(self.rows, raw=said.reshape(-1))

    return committed


def _price_from_own(original: Callable[..., str | None]) -> Callable[..., str | None]:
    def choice(self: AgreedRows, operation: Operation, view: View) -> str | None:
        table = self.table(view)
        if table is None or operation.algorithm is not None or not operation.collective.is_broadcast:
            return original(self, operation, view)
        return table.choose_broadcast(operation.input.nbytes, view.members.index(self._me))

    return choice


def _know_nothing(original: Callable[..., None]) -> Callable[..., None]:
    def loaded(self: OpenStep, step: int, state_digest: bytes | None, *given: object, is_due: bool = False) -> None:
        original(self, step, state_digest, *given)

    return loaded


def _keep_verdict(original: Callable[..., Straggler | None]) -> Callable[..., Straggler | None]:
    def committed(
        self: StragglerDetector, number: int, members: tuple[Named, ...], took_us: Sequence[int]
    ) -> Straggler | None:
        before = self.slowest
        found = original(self, number, members, took_us)
        self.slowest = self.slowest or before
        return found

    return committed


def _judge_at_any_step(original: Callable[..., Straggler | None]) -> Callable[..., Straggler | None]:
    def committed(
        self: StragglerDetector, number: int, members: tuple[Named, ...], took_us: Sequence[int]
    ) -> Straggler | None:
        return original(self, number - number % self._window, members, took_us)

    return committed


ROWS: dict[str, Mutant] = {
    "R24: who was slow among other members is slow": mutant(
        (StragglerDetector, "committed", _keep_verdict(StragglerDetector.committed)), breaks="S24", seed=20000003
    ),
    "R24: each judges when it has heard enough": mutant(
        (StragglerDetector, "committed", _judge_at_any_step(StragglerDetector.committed)), breaks="S24", seed=20000098
    ),
    "R22: a table is used when it is made": mutant(
        (AgreedRows, "tabulated", _use_at_once), breaks="S24", scenario=AGREE
    ),
    "R22: a table is used from the next commit on": mutant(
        (AgreedRows, "committed", _ask_nobody(AgreedRows.committed)), breaks="S24", scenario=AGREE
    ),
    "R22: who has measured something else gathers rows": mutant(
        (AgreedRows, "gathering", _gather_what_it_has_measured), breaks="L1 S19 S24", scenario=AGREE
    ),
    "R22: a view of the same members forgets its table": mutant(
        (OpenStep, "installed", _forget(OpenStep.installed)), breaks="S24", scenario=AGREE
    ),
    "R22: a view of other members keeps its table": mutant(
        (AgreedRows, "table", _whoever_is_in_it), breaks="S24", scenario=AGREE
    ),
    "R22: each counts hosts from its own one on": mutant(
        (AgreedRows, "committed", _count_from_own(AgreedRows.committed)), breaks="S24", scenario=HOSTS
    ),
    "R22: what a peer knows by now of its own line counts for it": mutant(
        (AgreedRows, "committed", _know_better(AgreedRows.committed)), breaks="S24", scenario=JOIN
    ),
    "R22: each prices a broadcast as if it came from itself": mutant(
        (AgreedRows, "choice", _price_from_own(AgreedRows.choice)), breaks="S24", scenario=BROADCASTS
    ),
    "R22: a state does not say that rows are due": mutant(
        (OpenStep, "loaded", _know_nothing(OpenStep.loaded)), breaks="L1 S19 S24", scenario=JOIN
    ),
}
