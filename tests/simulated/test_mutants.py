"""Each missing rule is noticed, by the seed or the scenario on record for it. `make mutants` tries from zero."""

import os
from concurrent.futures import ProcessPoolExecutor
from functools import cache

import pytest

from tests.simulation import Failure, run

from .hunt import Catch, known
from .mutant import without
from .mutants import MUTANTS


@cache
def catches() -> dict[str, Catch]:
    """What has caught each, found on all cores."""
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as executor:
        return dict(zip(MUTANTS, executor.map(known, MUTANTS), strict=True))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", MUTANTS)
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
