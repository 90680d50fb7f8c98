"""How long a peer that is removed repeatedly waits before it returns."""

import threading
from contextlib import suppress
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest

from p2p.config import PeerConfig
from p2p.errors import RemovedFromView, ShoalError
from p2p.session.incarnations import (
    FREE_REMOVALS,
    HALF_LIFE_S,
    MOST_WAIT_S,
    STALLED_S,
    WAIT_S,
    Incarnations,
    stalled_wait_s,
    waits_s,
)

FREE = int(FREE_REMOVALS)


def test_the_first_returns_are_at_once_and_then_each_takes_twice_as_long_up_to_a_limit() -> None:
    assert {waits_s([0.0] * number) for number in range(1, FREE + 1)} == {0.0}
    later = [waits_s([0.0] * (FREE + number)) for number in range(1, 8)]
    assert later == [WAIT_S * 2**number for number in range(1, 7)] + [MOST_WAIT_S]
    assert waits_s([0.0] * 10_000) == MOST_WAIT_S


def test_a_removal_counts_half_as_much_after_the_half_life() -> None:
    assert waits_s([HALF_LIFE_S] * 2 * (FREE + 1)) == waits_s([0.0] * (FREE + 1))


def test_who_is_removed_by_chance_once_a_minute_hardly_ever_waits_and_who_is_every_ten_seconds_does() -> None:
    def waits(interval_s: float, seed: int) -> list[float]:
        rng, ages_s, found = Random(seed), list[float](), []
        for _ in range(1000):
            passed_s = rng.expovariate(1 / interval_s)
            ages_s = [*(age_s + passed_s for age_s in ages_s if age_s + passed_s < 600), 0.0]
            found.append(waits_s(ages_s))
        return found

    assert sum(each > 4 * WAIT_S for each in waits(60, 0)) < 10
    assert sum(each > 4 * WAIT_S for each in waits(10, 0)) > 800


def test_who_holds_all_others_up_each_time_until_it_is_removed_stays_out_for_longer_each_time() -> None:
    waits = [stalled_wait_s(number) for number in range(1, 7)]
    assert waits == [0.0, STALLED_S, 2 * STALLED_S, 4 * STALLED_S, MOST_WAIT_S, MOST_WAIT_S]
    assert stalled_wait_s(10_000) == MOST_WAIT_S


@pytest.mark.parametrize(("has_stalled", "is_held"), [(True, True), (False, False)])
def test_g16_who_was_removed_twice_behind_a_step_that_stalled_waits_before_it_asks_again(
    monkeypatch: pytest.MonkeyPatch, has_stalled: bool, is_held: bool
) -> None:
    waits = list[float]()
    monkeypatch.setattr(Incarnations, "_replace", lambda self, wait_s: waits.append(wait_s))
    with TemporaryDirectory(prefix="shoal") as folder:  # tmp_path can be too long for a socket
        incarnations = Incarnations(PeerConfig(swarm="pond", home=Path(folder) / "home"))
        try:
            for _ in range(2):
                with suppress(RemovedFromView):  # it is alone
                    removed = RemovedFromView(
                        "the others have continued without this peer: view 3 consists of b",
                        has_stalled=has_stalled,
                    )
                    incarnations.begin_another(removed, is_wanted=True)
        finally:
            incarnations.loop.close()
    assert waits == [0.0, STALLED_S if is_held else 0.0]


def test_a_lineage_is_not_begun_with_a_loop_that_has_failed() -> None:
    with TemporaryDirectory(prefix="shoal") as folder:  # tmp_path can be too long for a socket
        incarnations = Incarnations(PeerConfig(swarm="pond", home=Path(folder) / "home"))
        loop = incarnations.loop
        try:
            loop.inbox.tell_crash(OSError(28, "No space left on device"))
            with pytest.raises(ShoalError, match=r"the loop of this peer failed: OSError.*No space"):
                incarnations.begin_lineage()
            assert incarnations.loop is loop
        finally:
            loop.close()


def test_nobody_comes_back_beside_a_loop_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with TemporaryDirectory(prefix="shoal") as folder:  # tmp_path can be too long for a socket
        incarnations = Incarnations(PeerConfig(swarm="pond", home=Path(folder) / "home"))
        loop, may_go_on = incarnations.loop, threading.Event()
        monkeypatch.setattr("p2p.loop.reactor.END_S", 0.01)
        loop.reactor.start()

        def stand_still() -> None:
            may_go_on.wait()

        loop.reactor.post(stand_still)
        try:
            with pytest.raises(ShoalError, match="has not ended within 10 s: it cannot come back"):
                incarnations.begin_another(RemovedFromView("it was stopped"), is_wanted=True)
            assert incarnations.loop is loop
        finally:
            monkeypatch.undo()
            may_go_on.set()
            assert loop.reactor.stop()


def test_who_was_removed_and_finds_nobody_any_more_reports_that_it_was_removed() -> None:
    with TemporaryDirectory(prefix="shoal") as folder:  # tmp_path can be too long for a socket
        incarnations = Incarnations(PeerConfig(swarm="pond", home=Path(folder) / "home"))
        incarnations.loop.reactor.start()
        removed = RemovedFromView("the others have continued without this peer: view 3 consists of b")
        try:
            with pytest.raises(RemovedFromView):
                incarnations.begin_another(removed, is_wanted=True)
            assert incarnations.loop.inbox.failure is removed
        finally:
            incarnations.loop.reactor.post(incarnations.loop.leave)
            incarnations.loop.reactor.stop()
