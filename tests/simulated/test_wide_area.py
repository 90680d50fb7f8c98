"""`--network wan` on links with a one-way delay of 150 to 250 ms; `make figures` has more figures."""

import pytest

from gossip import WAN, CoreConfig

from . import wide_area


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("stall_s", [0.0, 4.0])
def test_nobody_healthy_is_removed_on_slow_links_that_stall(size: int, stall_s: float) -> None:
    assert wide_area.removed(size, WAN, seed=1, stall_s=stall_s, for_s=120.0) == 0


def test_with_the_timers_of_a_lan_somebody_is_when_they_stall() -> None:
    assert wide_area.removed(2, CoreConfig(), seed=1, stall_s=4.0, for_s=60.0) > 0
