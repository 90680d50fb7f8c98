"""Flapping members: rule G12 of PROTOCOL.md."""

import math
from collections.abc import Sequence

import pytest

from gossip import Claim, State
from gossip.effects import Send
from gossip.messages import NoAck, Report, ReportKind
from gossip.signs import Gap, Signs
from gossip.swim_config import SwimConfig
from gossip.view import NOWHERE

from .cores import say, seated
from .members import B, C

CONFIG = SwimConfig(gap_s=1.0, gaps_window_s=10.0, steady_s=3.0, mute_s=30.0)
FLAPS: Sequence[Gap] = ((1.0, 3.0), (4.0, 6.0), (7.0, 9.0))
BUSY = 0.5
"""Interval between frames if none is missing."""


def watching() -> Signs:
    """Signs of life, with B in a seat."""
    signs = Signs(CONFIG, 0.0)
    signs.watch("b")
    return signs


def heard(signs: Signs, until: float, gaps: Sequence[Gap] = (), *, since: float = 0.0) -> Signs:
    """Frames of B, except in these gaps."""
    for tick in range(int(since / BUSY), int(until / BUSY) + 1):
        now = tick * BUSY
        if not any(begin < now < end for begin, end in gaps):
            signs.frame_received(now, "b")
    return signs


def flapping() -> Signs:
    """Signs of life by which B flaps at 9 s."""
    signs = heard(watching(), 9.0, FLAPS)
    assert signs.flaps(9.0, "b")
    return signs


def test_who_is_silent_for_most_of_the_time_in_several_gaps_flaps() -> None:
    signs = heard(watching(), 6.0, FLAPS)
    assert not signs.flaps(6.0, "b")
    heard(signs, 9.0, FLAPS, since=6.5)
    assert signs.flaps(9.0, "b")


def test_the_gap_that_is_not_over_counts() -> None:
    signs = heard(watching(), 7.0, FLAPS)
    assert not signs.flaps(7.9, "b")
    assert not signs.flaps(8.0, "b")
    assert signs.flaps(8.1, "b")


@pytest.mark.parametrize(
    "gaps",
    [
        ((1.0, 9.0),),
        ((1.0, 5.0), (5.5, 9.5)),
        ((1.0, 2.5), (4.0, 5.5), (7.0, 8.5)),
    ],
    ids=["one-long", "two-long", "half-of-the-time"],
)
def test_who_is_silent_once_or_seldom_does_not_flap(gaps: Sequence[Gap]) -> None:
    signs = heard(watching(), 10.0, gaps)
    assert not signs.flaps(10.0, "b")


def test_who_is_heard_often_enough_does_not_flap() -> None:
    signs = watching()
    for tick in range(12):
        signs.frame_received(0.9 * tick, "b")
    assert not signs.flaps(10.0, "b")


def test_what_was_before_a_quiet_time_does_not_count() -> None:
    signs = heard(watching(), 6.0, FLAPS[:2])
    heard(signs, 11.5, ((9.0, 11.5),), since=6.5)
    assert not signs.flaps(11.5, "b")
    assert signs._gaps == {"b": [(9.0, 11.5)]}
    heard(signs, 14.5, since=12.0)
    assert not signs.flaps(14.5, "b")
    assert signs._gaps == {}


def test_gaps_are_forgotten_when_they_are_out_of_the_window() -> None:
    gaps = tuple((2.0 * turn, 2.0 * turn + 1.0) for turn in range(1, 20))
    signs = heard(watching(), 40.0, gaps)
    assert not signs.flaps(40.0, "b")
    assert len(signs._gaps["b"]) == 5


def test_who_flaps_does_so_until_it_has_been_quiet_and_then_begins_anew() -> None:
    signs = heard(flapping(), 11.5, since=9.5)
    assert signs.flaps(11.9, "b")
    heard(signs, 12.0, since=12.0)
    assert not signs.flaps(12.0, "b")
    heard(signs, 15.0, ((12.0, 14.0),), since=12.5)
    assert not signs.flaps(15.0, "b")


def test_who_flaps_is_not_quiet_while_nothing_comes() -> None:
    assert flapping().flaps(20.0, "b")


def test_who_has_a_seat_again_begins_anew() -> None:
    signs = flapping()
    signs.watch("b")
    assert not signs.flaps(9.0, "b")


def test_who_has_gaps_one_after_the_other_is_not_quiet() -> None:
    signs = heard(watching(), 5.5, FLAPS)
    assert signs.is_steady(5.5, "b")
    heard(signs, 6.0, since=6.0)
    assert not signs.is_steady(6.0, "b")
    heard(signs, 9.0, since=6.5)
    assert signs.is_steady(9.0, "b")


def test_who_flaps_is_not_quiet() -> None:
    assert not flapping().is_steady(9.0, "b")


def test_a_restart_clears_nothing() -> None:
    signs = flapping()
    signs.frame_received(11.0, "b")
    assert signs.flaps(13.0, "b")


def test_who_has_no_seat_and_had_none_owes_no_frames() -> None:
    signs = Signs(CONFIG, 0.0)
    for now in (0.0, 2.0, 4.0, 6.0, 8.0):
        signs.frame_received(now, "b")
    assert not signs.flaps(8.0, "b")
    assert signs._gaps == {}


def test_who_was_late_or_stopped_itself_missed_frames_that_were_there() -> None:
    late, stopped = watching(), watching()
    for now in (2.0, 4.0, 6.0, 8.0):
        late.excuse(now)
        stopped.resume(now)
        heard(late, now, since=now)
        heard(stopped, now, since=now)
    assert not late.flaps(8.5, "b")
    assert not stopped.flaps(8.5, "b")


def test_who_is_busy_and_whose_link_answers_does_not_flap() -> None:
    signs = watching()
    for tick in range(181):
        now = tick * BUSY / 10
        if not any(begin < now < end for begin, end in FLAPS):
            signs.frame_received(now, "b")
        assert signs.link_answered(now, "b")
        assert not signs.flaps(now, "b")


def test_a_link_that_broke_meanwhile_carried_nothing() -> None:
    signs = watching()
    for tick in range(181):
        now = tick * BUSY / 10
        if not any(begin < now < end for begin, end in FLAPS):
            signs.frame_received(now, "b")
        if any(now == begin + 1.0 for begin, _ in FLAPS):
            signs.broke(now, "b")
        signs.link_answered(now, "b")
    assert signs.flaps(9.0, "b")


def test_frames_are_steady_from_the_last_gap_on() -> None:
    signs = Signs(CONFIG, 0.0)
    assert signs.steady_since("b") == math.inf
    heard(signs, 4.0)
    assert signs.steady_since("b") == 0.0
    signs.frame_received(5.0, "b")
    assert signs.steady_since("b") == 5.0
    signs.frame_received(5.9, "b")
    signs.excuse(8.0)
    signs.frame_received(8.1, "b")
    assert signs.steady_since("b") == 5.0


def test_nothing_is_steady_to_who_was_stopped() -> None:
    signs = heard(Signs(CONFIG, 0.0), 4.0)
    signs.resume(5.0)
    assert signs.steady_since("b") == math.inf
    signs.frame_received(5.5, "b")
    assert signs.steady_since("b") == 5.5


def test_who_is_forgotten_leaves_nothing() -> None:
    signs = flapping()
    signs.broke(9.0, "b")
    signs.forget("b")
    records = "_heard", "_frames", "_gaps", "_broke", "_flapping", "_watched", "_steady"
    assert not any(vars(signs)[name] for name in records)


def test_a_member_that_flaps_is_reported_to_all() -> None:
    peer = seated(B, C)
    peer.meet(0.0, Claim(B, State.ALIVE, NOWHERE))
    said: list[Report] = []
    for tick in range(1, 41):
        now = tick / 4
        peer.broke(now, B)
        if tick % 5 == 0:
            say(peer, B, NoAck(0), now=now)
        for effect in peer.tick(now):
            if isinstance(effect, Send) and isinstance(effect.body, Report):
                said.append(effect.body)
    assert Report(ReportKind.FLAPPING, B) in said
