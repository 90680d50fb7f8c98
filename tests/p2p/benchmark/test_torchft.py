"""The cost of a kill for torchft's workers, from the lines that they write; and possible comparisons."""

from importlib.util import find_spec

import pytest

from bench.elastic import parse
from bench.torchft_kills import cost
from bench.torchrun import Done

MS = 10**6


def worker(rank: int, *spans: tuple[int, int, int], digest: str = "") -> list[Done]:
    """A worker's steps; a span is its first and last step, and the ms at which the first ends; a step takes 10 ms."""
    return [
        Done(rank, step, (at_ms + 10 * (step - first)) * MS, digest or str(step))
        for first, last, at_ms in spans
        for step in range(first, last + 1)
    ]


def test_the_longest_wait_after_a_kill_is_what_it_costs() -> None:
    done = {
        1: worker(0, (1, 58, 10), (59, 90, 5500)),  # step 58 commits with data that the victim had sent
        2: worker(1, (1, 58, 11), (59, 90, 5503)),
        3: worker(2, (1, 57, 10)),
    }
    found = cost(575 * MS, done, [1, 2])
    assert (found.peers, found.step_ms, found.steps_lost, found.replicas_equal) == (3, 10.0, 0, True)
    assert found.resume_ms == found.again_ms == 5503 - 575 - 10


def test_steps_that_are_done_again_and_other_replicas_are_seen() -> None:
    done = {1: worker(0, (1, 57, 10), (56, 90, 5000)), 2: worker(1, (1, 57, 10), (58, 90, 5000), digest="other")}
    found = cost(575 * MS, {**done, 3: []}, [1, 2])
    assert (found.steps_lost, found.replicas_equal) == (2, False)


@pytest.mark.parametrize(
    ("against", "says"),
    [
        ("hivemind", "hivemind is not built"),
        ("deepspeed", "invalid choice: 'deepspeed'"),
        pytest.param(
            *("torchft", "needs torchft, which is not installed: pip install torchft-nightly"),
            marks=pytest.mark.skipif(find_spec("torchft") is not None, reason="it is installed"),
        ),
    ],
)
def test_what_cannot_be_compared_with_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], against: str, says: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(["--against", against])
    assert ended.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert says in last
