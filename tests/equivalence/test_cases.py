"""A thirty-second of the cases (a quarter with the long tests), in one process, with 2 or 3 peers, and with DDP.

`make equivalence` runs all of them.
"""

from pathlib import Path

import pytest

from p2p.forking.zygote import Zygote
from tests.cases import some_of

from .compared import problems
from .harness import SIZES, new_swarm, run
from .registry import load
from .results import read

pytestmark = [pytest.mark.light, pytest.mark.torch]

QUICK = [case.name for case in load().values() if case.quick]


@pytest.mark.timeout(240)  # ten cases each
@pytest.mark.parametrize("part", some_of(range(8), 0))
def test_what_people_write_trains_as_in_one_process(part: int, torch_zygote: Zygote, tmp_path: Path) -> None:
    wrong: list[str] = []
    recorded, size = read(), SIZES[part % 2]
    with new_swarm(torch_zygote) as swarm:
        for case, outcome in run(swarm, tmp_path, QUICK[part::8], [size]):
            wrong += problems(case, outcome)
            if outcome.ddp != (before := recorded[case.name].outcome.ddp):
                wrong.append(f"DDP with {case.name}: {outcome.ddp} ({outcome.ddp_text}), was {before}")
    assert not wrong, "\n".join(wrong)


def test_a_quarter_of_the_cases_is_quick() -> None:
    assert 4 * len(QUICK) >= len(load()) >= 120 and sum(case.elastic for case in load().values()) >= 40
