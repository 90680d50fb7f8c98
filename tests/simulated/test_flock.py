"""Guarantees of discovery, in flocks small enough for every run of the tests; flock_figures.py has the large ones."""

import pytest

from gossip.swim_config import SwimConfig

from . import flock_figures as figures
from .flock import Flock, Weather


@pytest.mark.parametrize("size", [200, pytest.param(1000, marks=pytest.mark.long)])
def test_an_update_reaches_all_peers_in_two_seconds_although_a_tenth_is_lost(size: int) -> None:
    assert figures.spread(size, loss=0.1, seed=1).last_s < 2.0


def test_a_silent_crash_is_known_to_all_of_a_hundred_within_ten_seconds() -> None:
    for seed in (1, 2, 3):
        found = figures.detection(100, seed=seed)
        assert found.p50_s < 10.0
        assert found.p99_s < 20.0


def test_a_silent_crash_is_found_by_few_peers_as_well() -> None:
    for size in (2, 3, 5):
        assert figures.detection(size, seed=1).last_s < 30.0


@pytest.mark.long
def test_peers_that_do_not_hear_hurt_healthy_ones_fifty_times_less_than_in_plain_swim() -> None:
    alarms = figures.false_alarms(4, seed=1, config=SwimConfig(), is_deaf=True, for_s=26.0)
    plain = figures.false_alarms(4, seed=1, config=figures.PLAIN, is_deaf=True, for_s=26.0)
    assert plain.healthy_declared >= 50 * max(1, alarms.healthy_declared)
    assert plain.all_declared >= 10 * alarms.all_declared


@pytest.mark.long
def test_a_member_whose_link_loses_most_is_out_within_a_minute_and_stays_out() -> None:
    found = figures.lossy(50, 1, seed=1, for_s=90.0)
    assert found.removed_after_s < 60.0
    assert found.out_share > 0.99
    assert found.healthy_lost == 0


def test_a_member_whose_link_loses_most_stays_out_although_all_say_something_all_the_time() -> None:
    assert figures.lossy(8, 1, seed=1, for_s=90.0, beat_s=0.25).out_share > 0.95


def test_a_member_whose_link_is_mended_comes_back() -> None:
    flock = Flock(20, seed=1)
    flock.loss[0] = 0.8
    flock.run(60.0)
    assert not any(swim.is_alive(flock.members[0]) for swim in flock.swims[1:])
    flock.loss[0] = 0.0
    flock.run(60.0 + 660.0)
    assert all(swim.is_alive(flock.members[0]) for swim in flock.swims[1:])


def test_halves_of_a_partition_find_each_other_within_seconds() -> None:
    for seed in (1, 2):
        healed = figures.healing(20, seed=seed)
        assert healed.lost_across == 1.0
        assert healed.healed_after_s < 5.0
        assert healed.is_same


def test_peers_that_know_only_seeds_find_everybody() -> None:
    assert figures.assembly(50, seed=1).complete_after_s < 1.0
    assert figures.assembly(100, seed=1, loss=0.1).complete_after_s < 30.0


def test_a_restarted_peer_replaces_itself_everywhere() -> None:
    flock = Flock(30, seed=1)
    flock.run(1.0)
    old = flock.members[7]
    flock.crash(7)
    flock.run(2.0)
    flock.restart(7)
    flock.run(5.0)
    others = [swim for number, swim in enumerate(flock.swims) if number != 7]
    assert all(swim.is_alive(flock.members[7]) and swim.is_gone(old) for swim in others)
    assert len(flock.swims[7].alive()) == 29


def test_a_peer_that_was_stopped_for_long_finds_everybody_again_and_accuses_nobody() -> None:
    flock = Flock(20, seed=1)
    losses = figures.Losses(flock)
    flock.run(1.0)
    flock.stall(0, 100.0)
    flock.run(110.0)
    assert {number for number, _ in losses.declared} == {0}
    assert all(len(swim.alive()) == 19 for swim in flock.swims)


def test_nobody_who_died_while_another_was_stopped_comes_back() -> None:
    flock = Flock(10, seed=1)
    flock.run(1.0)
    flock.stall(0, 200.0)
    flock.crash(9)
    seen = set[float]()
    flock.run(160.0)
    for _ in range(600):
        flock.run(flock.now + 0.1)
        if any(swim.is_alive(flock.members[9]) for swim in flock.swims[1:9]):
            seen.add(flock.now)
    assert not seen
    assert flock.swims[0].neighbours() == flock.swims[0].alive()
    assert len(flock.swims[0].alive()) == 8


def test_an_idle_peer_sends_little_and_less_than_the_number_of_peers_would_suggest() -> None:
    small, large = figures.idle(16, seed=1, for_s=20.0), figures.idle(256, seed=1, for_s=20.0)
    assert small.sent_bytes_per_s < 200.0
    assert large.most_sent_bytes_per_s < 2 * small.most_sent_bytes_per_s


def test_a_thousand_known_peers_fit_into_a_megabyte() -> None:
    assert figures.memory(1000, seed=1).bytes_per_peer < 1024


def test_nobody_blames_itself_for_news_after_a_quiet_time() -> None:
    flock = Flock(20, seed=1)
    flock.run(30.0)
    flock.do(0, lambda swim: swim.set_status(30.0, swim.me.status))
    flock.run(31.0)
    assert {swim.health_multiplier() for swim in flock.swims} == {1}


def test_the_same_seed_is_the_same_run() -> None:
    def trace() -> list[tuple[int, int]]:
        flock = Flock(20, seed=5, weather=Weather(loss=0.3))
        flock.crash(3)
        flock.run(20.0)
        return list(zip(flock.sent_bytes, flock.received_bytes, strict=True))

    assert trace() == trace()
