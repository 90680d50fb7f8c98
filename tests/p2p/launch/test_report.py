"""How peers have ended: in words, and as the exit code of the run."""

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from p2p.launch.children import Child
from p2p.launch.report import run_exit_code, what_became_of


@pytest.mark.parametrize(
    ("return_codes", "ended_by", "expected"),
    [
        ([0, 0], None, 0),
        ([-9, 0, -11], None, 0),
        ([0, 3, 1], None, 3),
        ([-9, 1], None, 1),
        ([-9, -15], None, 137),
        ([0, 0], signal.SIGINT, 130),
        ([-9, 1], signal.SIGTERM, 143),
    ],
)
def test_the_exit_code_of_a_run_follows_from_its_peers(
    return_codes: list[int], ended_by: int | None, expected: int
) -> None:
    assert run_exit_code(return_codes, ended_by) == expected


@pytest.fixture
def child() -> Iterator[Child]:
    """Peer 3, which has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with process:
        yield Child(3, process)


@pytest.mark.parametrize(
    ("return_code", "num_left", "expected"),
    [
        (2, 1, "ended with exit code 2; 1 left"),
        (-9, 0, "was killed by SIGKILL; none left"),
        (-signal.SIGRTMIN - 1, 2, f"was killed by signal {signal.SIGRTMIN + 1}; 2 left"),
    ],
)
def test_a_peer_that_has_failed_is_named_with_how_and_how_many_are_left(
    child: Child, return_code: int, num_left: int, expected: str
) -> None:
    assert what_became_of(child, return_code, num_left) == f"peer 3 (pid {child.pid}) {expected}"
