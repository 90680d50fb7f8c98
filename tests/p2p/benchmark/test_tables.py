"""bench.tables, the parts without real steps (tests/live/test_benchmark.py has the others)."""

import numpy as np
import pytest

from bench.recorder import BLOCKS, order
from bench.tables import MOST, missed, of_times, rows_of_hosts
from collectives.pricing import run_to_end
from p2p.loop.link_rows import known_slices

FINE = {"p50_ratio": [1.0, 0.99, 1.01], "p99_ratio": [1.1, 0.9, 1.3], "share_of_steps": 0.7, "are_right": [True, True]}


def test_of_steps_that_take_a_tenth_longer_meanwhile_both_percentiles_do() -> None:
    is_on = order(40)
    times_us = np.random.default_rng(2).lognormal(7, 0.05, (40, BLOCKS, 10))
    as_they_are = of_times(times_us, is_on)
    assert as_they_are["p50_ratio"][1] < 1 < as_they_are["p50_ratio"][2]
    assert missed(FINE | as_they_are) == []
    slower = of_times(times_us * np.where(is_on, 1.1, 1.0)[:, :, None], is_on)
    assert slower["p50_ratio"][0] / as_they_are["p50_ratio"][0] == pytest.approx(1.1, rel=1e-3)
    assert slower["p50_ratio"][1] > MOST
    assert [each[:3] for each in missed(FINE | slower)][:1] == ["p50"]


def test_what_is_not_as_it_should_be_is_said() -> None:
    assert missed(FINE) == [], "an interval that is too wide is no verdict"
    (said,) = missed(FINE | {"p99_ratio": [1.2, 1.06, 1.3]})
    assert said == "p99 is 1.200 times as long (1.060 to 1.300), not 1.05 at most"
    (said,) = missed(FINE | {"share_of_steps": 0.02})
    assert said == "a part of the table was made in 2% of the steps meanwhile alone"
    (said,) = missed(FINE | {"are_right": [True, False]})
    assert said == "a table has other prices than one that is made at once: [True, False]"


def test_the_rows_of_hosts_are_those_of_links_that_are_all_measured() -> None:
    links, took = run_to_end(known_slices(rows_of_hosts(8), 1 << 16))
    assert links is not None and not took
    assert (links.world_size, links.up[0], links.delay_ns[0][1]) == (8, 25_000_000, 20_000_000)
