"""The named scenarios: each passes with all rules, and fails without the one that it is about."""

import pytest

from tests.simulation import Failure

from .mutant import without
from .mutants import MUTANTS
from .scenarios import SCENARIOS

EXCLUDED = {
    "C1": ["R13: proof without a record", "R13: a later view on record is ignored"],
    "C2: what": ["R13: a vote on record is ignored", "R13: proof without a record"],
    "C2: the last": ["R13: the owner's shortcut, with `live`"],
    "C3": ["R10: the board is not looked at"],
    "C4: a member is excluded, and": ["R8: a JOIN of an older view counts"],
    "C4: a member is excluded before": ["R8: a JOIN of an older view counts"],
    "C5": ["R12, R5: who has no seat yet proposes, and its view begins without the state"],
    "C6": ["R3: the result is the user's before commit"],
    "C7": ["R9: an observer is fed with finished steps, and the chain does not say what they were"],
    "C9": ["R4: the board shows a finish before the core hears of it"],
    "C10": ["R13: neither promises nor decisions are on record"],
}
"""Prefixes of scenarios' names, with the missing rules that they show."""


@pytest.mark.parametrize("name", SCENARIOS)
def test_it_ends_well_with_all_rules_in(name: str) -> None:
    SCENARIOS[name]()


@pytest.mark.parametrize(("beginning", "rule"), [(name, rule) for name, rules in EXCLUDED.items() for rule in rules])
def test_a_counterexample_is_one_without_the_rule_that_excludes_it(beginning: str, rule: str) -> None:
    (play,) = [play for name, play in SCENARIOS.items() if name.startswith((f"{beginning}:", beginning + " "))]
    with without(MUTANTS[rule]), pytest.raises(Failure) as failure:
        play()
    assert failure.value.invariant in MUTANTS[rule].breaks


def test_every_scenario_shows_what_some_rule_is_for() -> None:
    shown = {mutant.scenario for mutant in MUTANTS.values()}
    named = {
        name for name in SCENARIOS for beginning in EXCLUDED if name.startswith((f"{beginning}:", beginning + " "))
    }
    assert set(SCENARIOS) == (shown - {""}) | named
