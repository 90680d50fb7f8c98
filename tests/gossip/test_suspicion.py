import pytest

from gossip.suspicion import begin_suspicion
from gossip.swim_config import SwimConfig

CONFIG = SwimConfig(suspicion_mult=4.0, suspicion_max_ratio=6.0, num_confirmations=2)


def test_each_independent_accuser_shortens_a_suspicion_down_to_the_least() -> None:
    suspicion = begin_suspicion(10.0, "b", 100, CONFIG)
    assert suspicion.deadline == 10.0 + 48.0
    assert not suspicion.confirm("b")
    assert suspicion.deadline == 58.0
    assert suspicion.confirm("c")
    assert suspicion.deadline == pytest.approx(58.0 - 40.0 * 0.6309, abs=0.01)  # log(2) / log(3)
    assert suspicion.confirm("d")
    assert suspicion.deadline == 18.0
    assert not suspicion.confirm("e")


def test_among_few_there_is_nobody_to_wait_for() -> None:
    assert begin_suspicion(0.0, "b", 3, CONFIG).deadline == 4.0
    assert begin_suspicion(0.0, "b", 4, CONFIG).deadline == 24.0


def test_plain_swim_waits_equally_long_for_all() -> None:
    plain = SwimConfig(suspicion_mult=4.0, lifeguard=False)
    assert begin_suspicion(0.0, "b", 1000, plain).deadline == 12.0
