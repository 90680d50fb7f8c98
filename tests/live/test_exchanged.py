"""Operations as they are drawn. `make exchanges DURATION_S=300 SEED=0` runs more of them."""

import pytest

from p2p.forking.zygote import Zygote
from tests.cases import some_of
from tests.live.exchanged import Exchanged

pytestmark = [pytest.mark.torch, pytest.mark.light]


@pytest.mark.parametrize("seed", some_of(range(12), 0, 4))
def test_results_are_those_of_plain_sums_wherever_tensors_lie_and_whoever_comes_and_goes(
    torch_zygote: Zygote, seed: int
) -> None:
    Exchanged(torch_zygote, seed).run()
