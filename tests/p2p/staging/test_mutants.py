"""A removed wait is detected by its recorded seed. `make mutants` tries every wait."""

from collections.abc import Iterator

import pytest
import torch

from tests.cases import some_of
from tests.p2p.staging.mutants import MUTANTS, shows

NAMES = [*MUTANTS]
QUICK = (
    "a fetch comes after nothing",
    "the last result is not waited for",
    "a piece of a state is not waited for",
    "a payload is added before it is stored",
    "gradients of several streams are written on the last one",
    "a verdict lies where no device copies by itself",
)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", some_of(NAMES, *map(NAMES.index, QUICK)))
def test_a_wait_that_is_left_out_is_seen(name: str) -> None:
    assert any(shows(MUTANTS[name], seed) for seed in MUTANTS[name].seeds)
