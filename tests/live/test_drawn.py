"""Drawn scripts with real peers. `make scripts DURATION_S=300 SEED=0` runs more of them."""

import pytest

from p2p.forking.zygote import Zygote
from tests.cases import some_of
from tests.live.drawn import Drawn

pytestmark = [pytest.mark.torch, pytest.mark.light]


@pytest.mark.parametrize("seed", some_of(range(12), 8))
def test_each_sample_counts_once_whatever_a_script_does_and_whoever_comes_and_goes(
    torch_zygote: Zygote, seed: int
) -> None:
    Drawn(torch_zygote, seed).run()
