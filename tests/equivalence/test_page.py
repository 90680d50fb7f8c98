"""docs/training-code.md says what the cases expect, and what was found."""

import pytest

from .compared import problems
from .elastic import elastic_problems
from .page import PAGE, render
from .registry import FAMILIES, load
from .results import read

pytestmark = pytest.mark.light

CASES, FOUND = load(), read()


def test_the_page_says_what_was_found() -> None:
    assert list(CASES) == list(FOUND), "run `make equivalence`, or `python -m tests.equivalence NAME` for new cases"
    assert PAGE.read_text(encoding="utf-8") == render(CASES, FOUND), "run `make equivalence`"


def test_what_was_found_is_what_the_cases_expect() -> None:
    wrong = [problem for name, case in CASES.items() for problem in problems(case, FOUND[name].outcome)]
    for name, case in CASES.items():
        replayed = FOUND[name].replayed
        assert (replayed is not None) == case.elastic, name
        wrong += elastic_problems(case, replayed) if replayed else []
    assert not wrong, "\n".join(wrong)


def test_every_case_has_a_family_and_one_expectation() -> None:
    assert {case.family for case in CASES.values()} == set(FAMILIES)
    for case in CASES.values():
        assert sum(map(bool, (case.refused, case.warned, case.as_ddp, case.wrong))) <= 1, case.name
        assert sum(map(bool, (case.joiner_refused, case.joiner_warned, case.joiner_wrong))) <= case.elastic, case.name
        assert (case.tolerance > 2e-6) <= bool(case.rounding[1]), f"{case.name}: say why its rounding is larger"
