"""Mutants of broadcasts: one rule is removed (R23 of PROTOCOL.md)."""

from p2p.step.collective import Collective
from p2p.step.run import Run

from .mutant import Mutant, mutant

COME_AND_GO = "ROOTS: roots die in the middle of a step, and others join"


def _or_the_first(self: Run, collective: Collective) -> int | None:
    return self._ranks.get(collective.root, 0)


def _as_it_was_founded(self: Run, collective: Collective) -> int | None:
    rank = int(collective.root[1:]) - 1
    return rank if rank < len(self._ranks) else None


ROOTS: dict[str, Mutant] = {
    "R23: the oldest member takes the place of a root that is gone": mutant(
        (Run, "_root_of", _or_the_first), breaks="S25", scenario=COME_AND_GO
    ),
    "R23: a root is a rank, whoever has it by then": mutant(
        (Run, "_root_of", _as_it_was_founded), breaks="S25", scenario=COME_AND_GO
    ),
}
