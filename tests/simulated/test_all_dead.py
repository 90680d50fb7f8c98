"""Drawn runs in which all members die on two or three hosts: at most one lineage continues."""

from collections import Counter

import pytest

from tests.cases import some_of

from .all_dead import attempt
from .pool import pool

SEEDS = range(12)
MORE = range(12, 110)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seeds", some_of([SEEDS, MORE], 0), ids=["some", "more"])
def test_one_goes_on_or_nobody(seeds: range) -> None:
    with pool() as executor:
        outcomes = list(executor.map(attempt, seeds, chunksize=2))
    failures = [outcome for outcome in outcomes if isinstance(outcome, str)]
    assert not failures, "\n\n".join(failures)
    seen = sum((Counter(outcome) for outcome in outcomes if not isinstance(outcome, str)), Counter[str]())
    assert len(seeds) / 2 < seen["went on"] < len(seeds), seen
