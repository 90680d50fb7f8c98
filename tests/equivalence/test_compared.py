"""The judge of the cases sees what is wrong: made-up results of one process, of peers and of DDP."""

import math
from typing import Any

import pytest

from .compared import judge, problems
from .registry import Case, Verdict

pytestmark = pytest.mark.light


def nothing(run: Any) -> None:
    pass


def case(**expected: Any) -> Case:
    return Case(name="a_case", family="control", script=nothing, **expected)


def result(weight: float = 1.0, *, mean: float = 0.0, loss: float = 2.0, frozen: bool = False) -> dict[str, Any]:
    state = {"parameter.0": [weight, 0.5], "buffer.0": [mean], "mask.0": not frozen}
    return {"rows": [[1, loss, 6]], "state": state}


ERROR = {"error": "ShoalError: no step was committed at 0123456789abcdef\nand more"}
EQUAL = [result(), result()]


@pytest.mark.parametrize(
    ("peers", "verdict", "text"),
    [
        (EQUAL, Verdict.EQUAL, ""),
        ([result(1 + 1e-6)] * 2, Verdict.EQUAL, ""),
        ([result(1.001)] * 2, Verdict.WRONG, "parameter.0 differs by 1e-03"),
        ([result(math.nan)] * 2, Verdict.WRONG, "parameter.0 differs by inf"),
        ([result(mean=0.1)] * 2, Verdict.WRONG, "buffer.0 differs by 1e-01"),
        ([result(loss=2.1), result(loss=2.3)], Verdict.WRONG, "loss of step 1 differs by 1e-01"),
        ([result(loss=1.9), result(loss=2.1)], Verdict.EQUAL, ""),
        ([result(frozen=True)] * 2, Verdict.WRONG, "mask.0 differs by inf"),
        ([result(), result(1 + 1e-9)], Verdict.WRONG, "replicas: parameter.0 differs by 1e-09"),
        ([ERROR, ERROR], Verdict.REFUSED, "ShoalError: no step was committed at ..."),
        ([ERROR, result()], Verdict.WRONG, "1 of 2 peers end with ShoalError: no step was committed at ..."),
    ],
)
def test_whoever_differs_is_wrong(peers: Any, verdict: Verdict, text: str) -> None:
    for swarms in ([peers], [EQUAL, peers], [peers, EQUAL]):
        outcome = judge(case(), result(), swarms, EQUAL)
        assert (outcome.verdict, outcome.text) == (verdict, text)
        assert len(list(problems(case(), outcome))) == (verdict is not Verdict.EQUAL)


def test_an_expectation_is_strict() -> None:
    right = judge(case(), result(), [EQUAL], EQUAL)
    assert "instead of wrong (not averaged): take" in next(problems(case(wrong="not averaged"), right))
    assert "instead of refused" in next(problems(case(refused="no step"), right))
    refused = judge(case(refused="no step"), result(), [[ERROR, ERROR]], EQUAL)
    assert not list(problems(case(refused="no step"), refused))
    assert "another text" in next(problems(case(refused="two steps"), refused))
    some = judge(case(refused="no step"), result(), [[ERROR, result()]], EQUAL)
    assert some.verdict is Verdict.REFUSED and some.text.endswith("(1 of 2 peers; the others go on)")


def test_what_each_log_says_is_warned_of() -> None:
    said, silent = (
        {**result(mean=mean), "warnings": lines} for mean, lines in ((0.1, ["buffer 0 differs"]), (0.2, []))
    )
    warned = case(warned="buffer 0")
    outcome = judge(warned, result(), [EQUAL, [said, {**said, **result(mean=0.2)}]], EQUAL)
    assert (outcome.verdict, outcome.text) == (Verdict.WARNED, "buffer 0 differs") and not list(
        problems(warned, outcome)
    )
    for peers in ([said, silent], [said, {**said, **ERROR}]):
        assert judge(warned, result(), [peers], EQUAL).verdict is Verdict.WRONG
    assert judge(case(), result(), [[said, said]], EQUAL).verdict is Verdict.WRONG, "of what nobody expects to read"
    assert "instead of warned" in next(problems(warned, judge(warned, result(), [EQUAL], EQUAL)))


def test_as_ddp_is_what_ddp_computes() -> None:
    local = [result(1.1, mean=0.2)] * 2
    assert judge(case(as_ddp="its part"), result(), [local], [result(1.1), result(1.1)]).verdict is Verdict.AS_DDP
    assert judge(case(as_ddp="its part"), result(), [local], EQUAL).verdict is Verdict.WRONG


@pytest.mark.parametrize(
    ("processes", "word"),
    [
        (EQUAL, "equal"),
        ([result(1.1)] * 2, "differs"),
        ([result(), result(1.1)], "diverges"),
        ([result(), result(mean=0.1)], "equal"),
        ([ERROR, ERROR], "fails"),
        ([{"error": "NotThere: nothing like skip_step"}] * 2, "-"),
    ],
)
def test_how_ddp_went(processes: Any, word: str) -> None:
    assert judge(case(), result(), [EQUAL], processes).ddp == word
