"""When a dead peer is replaced, and when not."""

import dataclasses
import math
import signal

import pytest

from p2p import RemovedFromView, TooSlow
from p2p.launch.peer_slots import AT_START_S, MOST_BACK_OFF_S, PeerSlot
from p2p.telemetry.snapshot import Counted
from tests.p2p.launch.standings import standing


def die(place: PeerSlot, *, step: int | None, lived_s: float, allowed: int = 9, code: int = 1) -> str:
    """Let the next process in `place` reach `step` and end; then another one is started."""
    start = place.started_s + 1000.0
    if place.restart_at < math.inf:
        place.num_restarts += 1
    place.started_s, place.restart_at, place.snapshot = start, math.inf, None
    if step is not None:
        place.snapshot = dataclasses.replace(standing(), step=step, has_begun=True)
    return place.end(code, start + lived_s, allowed)


def test_who_completes_or_was_asked_to_leave_is_not_replaced() -> None:
    for code in (0, 143):
        place = PeerSlot(0, "0")
        assert die(place, step=5, lived_s=1.0, code=code) == ""
        assert place.restart_at == math.inf


def test_who_has_left_since_it_was_slow_is_not_replaced_and_who_ends_with_that_code_by_itself_is() -> None:
    place, told = PeerSlot(0, "0"), dataclasses.replace(standing(), step=5, has_begun=True)
    slow = dataclasses.replace(told, slowest=f"peer {told.identity.peer_id} is the slowest: its compute is")
    place.snapshot = dataclasses.replace(slow, error="this peer is the slowest")
    assert place.end(TooSlow.exit_code, 1.0, 9) == "" and place.exit_outcome is not None
    assert (place.exit_outcome.exit_code, place.exit_outcome.words) == (
        0,
        "left, since it was much slower than the others (slow_peers)",
    )
    other = dataclasses.replace(told, slowest=f"peer {'b' * 16} is the slowest: its compute is")
    for standing_now in (other, slow):  # slow, and only named
        place.snapshot = standing_now
        assert "started again" in place.end(TooSlow.exit_code, 1.0, 9)


def test_who_had_left_when_sigterm_came_has_not_failed() -> None:
    place, told = PeerSlot(0, "0"), dataclasses.replace(standing(), step=5, has_begun=True)
    for is_through, exit_code in ((True, 0), (False, 1)):
        place.snapshot = dataclasses.replace(told, left_cleanly=is_through)
        place.end(-signal.SIGTERM, 1.0, 0)
        assert place.exit_outcome is not None and place.exit_outcome.exit_code == exit_code


@pytest.mark.parametrize(
    ("error", "steps", "num_restarts", "exit_code", "words"),
    [
        ("the run is over", 0, 1, 1, "came after the run was over and took no part"),
        ("the run is over", 0, 0, 0, "completed"),  # like a peer that only joins; no peer has failed
        ("the run is over", 7, 1, 0, "completed"),  # an earlier process of this place was counted
        ("", 0, 1, 0, "completed"),  # its script reached its end
    ],
)
def test_who_comes_when_the_run_is_over_makes_no_refusal_good(
    error: str, steps: int, num_restarts: int, exit_code: int, words: str
) -> None:
    place = PeerSlot(0, "0", num_restarts=num_restarts, steps=steps)
    place.snapshot = dataclasses.replace(standing(), error=error)
    assert place.end(0, 1.0, 9) == "" and place.restart_at == math.inf and place.exit_outcome is not None
    assert (place.exit_outcome.exit_code, place.exit_outcome.words) == (exit_code, words)


def test_who_ends_in_the_middle_of_its_run_has_failed_whatever_its_code() -> None:
    place = PeerSlot(0, "0", snapshot=dataclasses.replace(standing(), step=5, has_begun=True))
    assert place.end(0, 1.0, 9, has_left=False) == "" and place.exit_outcome is not None
    assert place.exit_outcome.exit_code == 1 and not place.exit_outcome.has_completed


def test_who_was_removed_is_told_from_who_ends_with_that_code_by_itself() -> None:
    place, told = PeerSlot(0, "0"), dataclasses.replace(standing(), step=5, has_begun=True)
    for is_removed, exit_code, words in (
        (True, 3, "was removed: the others continued without it"),
        (False, 1, "ended with exit code 3"),
    ):
        place.snapshot = dataclasses.replace(told, is_removed=is_removed)
        place.end(RemovedFromView.exit_code, 1.0, 0)
        assert place.exit_outcome is not None and (place.exit_outcome.exit_code, place.exit_outcome.words) == (
            exit_code,
            words,
        )


def test_what_a_place_has_contributed_is_that_of_each_peer_once_and_of_no_other_swarm() -> None:
    place = PeerSlot(0, "0")
    reports = [
        dataclasses.replace(standing(peer_id * 16), counted=Counted(steps=steps, samples=2 * steps))
        for peer_id, steps in (("a", 3), ("b", 1), ("a", 3), ("b", 5))
    ]
    other = dataclasses.replace(reports[0], identity=dataclasses.replace(standing("c" * 16).identity, swarm="other"))
    for each in (other, *reports):
        place.take(each)
    place.end(0, 1.0, 0)
    assert (place.steps, place.samples) == (8, 16)


def test_each_time_it_takes_longer_until_another_one_is_started() -> None:
    place = PeerSlot(0, "0")
    waits = []
    for step in range(8):
        assert "started again" in die(place, step=step, lived_s=1.0)
        waits.append(place.restart_at - place.started_s - 1.0)
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, *[MOST_BACK_OFF_S] * 3]


def test_after_as_many_as_are_allowed_there_is_no_other() -> None:
    place = PeerSlot(0, "0")
    assert die(place, step=1, lived_s=1.0, allowed=1) == "started again in 1 s (1 of 1)"
    assert die(place, step=2, lived_s=1.0, allowed=1) == "not started again: it was restarted once (--restarts)"
    assert place.restart_at == math.inf


def test_three_deaths_at_one_step_are_enough() -> None:
    place = PeerSlot(0, "0")
    for _ in range(2):
        assert "started again in" in die(place, step=137, lived_s=1e4)
    assert die(place, step=137, lived_s=1e4) == "not started again: this was its death number 3 at step 137"
    assert place.restart_at == math.inf


def test_three_deaths_at_the_start_are_enough_and_others_do_not_count() -> None:
    place = PeerSlot(0, "0")
    die(place, step=None, lived_s=1.0)
    die(place, step=None, lived_s=1.0)
    assert "started again in" in die(place, step=None, lived_s=AT_START_S + 1.0)
    die(place, step=None, lived_s=1.0)
    assert "started again in" in die(place, step=None, lived_s=1.0)
    assert die(place, step=None, lived_s=1.0) == (
        "not started again: this was its death number 3 within 10 s of its start"
    )
