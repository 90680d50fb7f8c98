"""Rows of measured links in a simulated swarm: rows are random bytes, tables are names; and S24."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Final

import numpy as np

from collectives import Array
from gossip import Member, View
from p2p.step.agreed_rows import Rows, hosts_of
from p2p.step.collective import AllGather
from p2p.step.operation import Operation, Task
from p2p.step.receipts import HAS, NO_SAMPLES, NUM_COLUMNS, TOOK, WANTS
from p2p.step.stragglers import Straggler, StragglerDetector

if TYPE_CHECKING:
    from tests.simulation import Simulation

    from .peer import Peer

ROW_BYTES: Final = 8
SPEED_WINDOW: Final = 3
"""Training steps that a verdict covers."""
TABULATED_S: Final = (0.0, 1.0)
"""Range of the time to compute a table."""


def counts() -> Operation:
    """The operation that marks a step as a training step; it counts no samples here."""
    row = np.array(NO_SAMPLES, np.int64)
    return Operation(AllGather(is_counts=True), row, row, row.shape, "one-shot")


def token_of(task: Task) -> str:
    """A peer's input of an all-gather, as text."""
    return task.input.tobytes().hex()


def gathered(tokens: Sequence[str], like: Array) -> Array:
    """The inputs of all ranks."""
    return np.frombuffer(bytes.fromhex("".join(tokens)), like.dtype)


@dataclass(frozen=True, slots=True)
class Named:
    """A table whose algorithms contain the name of its rows, so that peers with other rows take other algorithms."""

    name: str

    @classmethod
    def of(cls, rows: Rows) -> "Named":
        return cls(f"{rows.step} {rows.hosts} {rows.raw.tobytes().hex()}")

    def choose(self, num_bytes: int, *, rounds_once: bool = False) -> str:
        """An algorithm for this size."""
        return f"{self.name}, {num_bytes}"

    def choose_broadcast(self, num_bytes: int, root: int) -> str:
        """An algorithm for this size and root."""
        return f"{self.name}, {num_bytes} from {root}"


class Measuring:
    """Measurements of one peer: its row changes at intervals, and its tables take time."""

    def __init__(self, peer: "Peer", world: "Simulation") -> None:
        self.speeds = StragglerDetector(2.0, SPEED_WINDOW)
        self._own_us = Random(f"{world.seed}/{peer.member.peer_id}/speed").choice((30_000, 40_000, 100_000))
        self._peer = peer
        self._world = world
        self._rng = Random(f"{world.seed}/{peer.member.peer_id}/{peer.member.incarnation}/rows")
        self._begun: Rows | None = None
        peer.training.open_step.agreed.row = np.zeros(ROW_BYTES, np.uint8)
        if world.plan.measured_s:
            self._wait()

    def _wait(self) -> None:
        self._world.clock.after(
            self._rng.uniform(0.2, 1.8) * self._world.plan.measured_s, self._peer, "measures", self.measure
        )

    def measure(self) -> None:
        """Draw another row."""
        agreed = self._peer.training.open_step.agreed
        agreed.row = np.frombuffer(self._rng.randbytes(ROW_BYTES), np.uint8)
        agreed.wants = True
        self._wait()

    def took_us(self, step: int) -> int:
        """Time of the script's own part of `step`."""
        return self._own_us * (1 + step % 3)

    def judge(self, view: View, step: int, operations: Sequence[Operation]) -> Straggler | None:
        """The verdict about the slowest peer after a training step."""
        said = next((each.result.tolist() for each in operations if each.collective.is_counts), None)
        if said is not None:
            members = tuple((member.peer_id, member.incarnation) for member in view.members)
            self.speeds.committed(step, members, said[TOOK::NUM_COLUMNS])
        return self.speeds.slowest

    def look(self) -> None:
        """Begin a table after a commit, if there are new rows."""
        rows = self._peer.training.open_step.agreed.untabulated
        if rows is not None and rows is not self._begun:
            self._begun = rows
            after_s = self._rng.uniform(*TABULATED_S)
            self._world.clock.after(after_s, self._peer, "tabulates", self._tabulate, rows)

    def _tabulate(self, rows: Rows) -> None:
        self._peer.training.open_step.agreed.tabulated(rows, Named.of(rows))


@dataclass(frozen=True, slots=True)
class Standing:
    """Consequences of the receipts up to a step: whether rows are due, the gathered rows, the table in use."""

    is_due: bool = False
    rows: tuple[str, int, tuple[Member, ...]] = "", 0, ()
    used: tuple[str, int, tuple[Member, ...]] = "", 0, ()

    def after(self, step: int, view: View, operations: Sequence[Operation]) -> "Standing":
        """The standing after the next step, with these results."""
        said = [each.result.reshape(len(view.members), -1) for each in operations if each.collective.is_counts]
        rows = [each.result for each in operations if each.collective.is_rows]
        if not said:
            return self
        now = self
        if self.rows[2] == view.members and set(said[0][:, HAS].tolist()) == {self.rows[1]}:
            now = replace(now, used=self.rows, rows=("", 0, ()))
        if rows:
            name = Named.of(Rows(step, view.members, rows[0], hosts_of(view))).name
            now = replace(now, rows=(name, step, view.members))
        return replace(now, is_due=not rows and any(said[0][:, WANTS].tolist()))


class Agreed:
    """Observations of all members' rows and tables, for S24."""

    def __init__(self) -> None:
        self._standings: dict[tuple[bytes, int], Standing] = {}
        self._verdicts: dict[tuple[bytes, int], Straggler | None] = {}

    def _before(self, view: View, step: int) -> Standing:
        return self._standings.get((view.lineage, step - 1), Standing())

    def committed(self, view: View, step: int, operations: Sequence[Operation]) -> str:
        """The error in these operations; empty: none."""
        before = self._before(view, step)
        is_training = any(each.collective.is_counts for each in operations)
        gathers = any(each.collective.is_rows for each in operations)
        if gathers != (before.is_due and is_training):
            return (
                f"rows are {'' if before.is_due else 'not '}due in step {step}, and {'' if gathers else 'not '}gathered"
            )
        after = before.after(step, view, operations)
        first = self._standings.setdefault((view.lineage, step), after)
        return "" if first == after else f"{after} follows from step {step}, and others had {first}"

    def judged(self, view: View, step: int, slowest: Straggler | None) -> str:
        """The error in a member's verdict after `step`; empty: none."""
        first = self._verdicts.setdefault((view.lineage, step), slowest)
        return "" if first == slowest else f"after step {step} {slowest} is the slowest, and {first} for others"

    def chosen(self, view: View, step: int, operation: Operation) -> str:
        """The error in the algorithm that `operation` takes in `view`; empty: none."""
        name, _, members = self._before(view, step).used
        taken = operation.ran
        root, names = operation.collective.root, [member.peer_id for member in view.members]
        expected, num_bytes = "one-shot", operation.input.nbytes
        if name and members == view.members and not root:
            expected = Named(name).choose(num_bytes)
        elif name and members == view.members and root in names:
            expected = Named(name).choose_broadcast(num_bytes, names.index(root))
        return "" if taken == expected else f"step {step} takes {taken!r}, and the receipts say {expected!r}"
