"""The cost of a restart of all workers, from the lines that they write."""

from bench.torchrun import Done, cost

MS = 10**6


def worker(rank: int, first: int, last: int, begins_ms: int, digest: str = "") -> list[Done]:
    """A step takes 10 ms; ranks are 1 ms apart."""
    steps = range(first, last + 1)
    return [Done(rank, step, (begins_ms + rank + 10 * (step - first)) * MS, digest or str(step)) for step in steps]


def test_steps_since_the_checkpoint_are_lost_and_done_again() -> None:
    before = {1: worker(0, 1, 57, 0), 2: worker(1, 1, 56, 0)}  # the second worker is killed in its step 57
    after = {3: worker(0, 51, 80, 5000), 4: worker(1, 51, 80, 5000)}
    found = cost(570 * MS, before, after)
    assert found.peers == 2 and found.step_ms == 10.0
    assert found.steps_lost == 6  # 51 to 56
    assert found.again_ms == 5001 - 570 - 10
    assert found.resume_ms == 5001 + 60 - 570 - 10
    assert found.replicas_equal


def test_a_kill_right_after_a_checkpoint_loses_nothing_and_other_replicas_are_seen() -> None:
    before = {1: worker(0, 1, 50, 0), 2: worker(1, 1, 50, 0)}
    after = {3: worker(0, 51, 60, 5000), 4: worker(1, 51, 60, 5000, "other")}
    found = cost(505 * MS, before, after)
    assert (found.steps_lost, found.replicas_equal) == (0, False)
    assert found.resume_ms == found.again_ms
