"""Ends of peers: in words, as a table, and as the exit code of the run."""

import signal

import pytest

from p2p.launch.peer_slots import ExitOutcome, PeerSlot
from p2p.launch.report import run_exit_code, table, what_became_of


@pytest.mark.parametrize(
    ("return_codes", "ended_by", "expected"),
    [
        ([0, 0], None, 0),
        ([0, -9], None, 1),
        ([0, -11], None, 1),
        ([0, 4], None, 1),
        ([0, 2], None, 1),
        ([-2, 0], None, 1),
        ([0, 143], None, 0),
        ([143, 143], signal.SIGTERM, 0),
        ([143, -9], signal.SIGTERM, 1),
        ([0, 3], None, 3),
        ([1, 3], None, 1),
        ([0, 0], signal.SIGINT, 130),
        ([-9, 1], signal.SIGHUP, 129),
        ([], signal.SIGINT, 130),
    ],
)
def test_one_event_is_one_exit_code(return_codes: list[int], ended_by: int | None, expected: int) -> None:
    endings = [ExitOutcome.of(code, has_begun=True, is_removed=True) for code in return_codes]
    assert run_exit_code(endings, ended_by) == expected


@pytest.mark.parametrize(("code", "has_begun", "expected"), [(-15, False, 0), (-15, True, 1), (3, True, 1)])
def test_what_a_code_means_depends_on_whether_the_peer_had_a_seat(code: int, has_begun: bool, expected: int) -> None:
    assert ExitOutcome.of(code, has_begun=has_begun).exit_code == expected


@pytest.mark.parametrize(
    ("codes", "what_next", "expected"),
    [
        ((2, None), "", "ended with exit code 2; 1 left here"),
        ((-9, 1), "", "was killed by SIGKILL; none left here"),
        ((-9, 0), "", "was killed by SIGKILL; none left here, 1 completed"),
        ((143, 0), "", "left on SIGTERM; none left here, 1 completed"),
        ((-signal.SIGRTMIN - 1, 1), "gone", f"was killed by signal {signal.SIGRTMIN + 1}; none left here; gone"),
    ],
)
def test_a_peer_that_has_ended_is_named_with_how_and_how_many_are_left(
    codes: tuple[int, int | None], what_next: str, expected: str
) -> None:
    places = [PeerSlot(0, "3"), PeerSlot(1, "4")]
    for place, code in zip(places, codes, strict=True):
        if code is None:
            place.child = object()  # type: ignore[assignment]  # one that runs
        else:
            place.end(code, 0.0, 0)
    assert what_became_of(places[0], 77, places[1:], what_next) == f"peer 3 (pid 77) {expected}"


def test_the_table_has_a_row_for_each_place() -> None:
    places = [PeerSlot(0, "0", steps=12, samples=96), PeerSlot(1, "1")]
    places[0].end(0, 0.0, 0)
    places[1].end(-9, 0.0, 0)
    assert [line.split() for line in table(places).splitlines()] == [
        ["peer", "how", "it", "ended", "steps", "samples"],
        ["0", "completed", "12", "96"],
        ["1", "was", "killed", "by", "SIGKILL", "0", "0"],
    ]
