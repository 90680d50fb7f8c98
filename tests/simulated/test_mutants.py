"""A missing rule is detected by its recorded seed or scenario. `make mutants` tries every rule."""

from functools import cache

import pytest

from tests.simulation import Failure, run

from .hunt import Catch, known
from .mutant import without
from .mutants import MUTANTS
from .pool import pool

CHOSEN = (
    "R2: commit at one's own finish",
    "R4: READY without the finished step",
    "R5: what was finished survives the redo",
    "R16: a barrier counts what was finished of a step that is given up",
    "operations that differ are summed",
    "R9: a joiner is counted before it is current",
    "R9: who lags is waited for",
    "R10: the board is not looked at",
    "R12: half counts without rank 0",
    "R13: silence is as good as proof",
    "R14: nobody notices its own pause",
    "SWIM: the end of a member is not final",
    "R20: who looks at its own class only",
    "R21: the source is fixed at submission",
    "R22: a view of the same members forgets its table",
    "R26: a chunk is what its sender says",
)
"""One of each kind of rule: of steps, barriers, seats, memory, votes, records, beliefs, classes, tables, shares. They
show that the simulation can fail; after a change of a rule, or of the simulation, run all mutants."""


@cache
def catches() -> dict[str, Catch]:
    """The catch of each chosen mutant; uses all cores."""
    with pool() as executor:
        return dict(zip(CHOSEN, executor.map(known, CHOSEN), strict=True))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", CHOSEN)
def test_a_missing_rule_is_noticed(name: str) -> None:
    assert catches()[name].invariant in MUTANTS[name].breaks, catches()[name]


def test_what_a_mutant_swaps_is_put_back() -> None:
    for mutant in MUTANTS.values():
        before = [vars(where).get(name) for where, name, _ in mutant.patches]
        with without(mutant):
            assert [vars(where)[name] for where, name, _ in mutant.patches] != before
        assert [vars(where).get(name) for where, name, _ in mutant.patches] == before


def test_a_failure_says_what_is_needed_to_look_into_it() -> None:
    with without(MUTANTS["R2: commit at one's own finish"]), pytest.raises(Failure) as failure:
        run(0)
    text = str(failure.value)
    assert text.startswith("seed=0 at ")
    assert "Violation S8: " in text.splitlines()[0]
    assert "last events" in text
    assert len(text.splitlines()) > 40
