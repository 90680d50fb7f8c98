"""Two runs take turns: their order, refused combinations, and a run that is alone."""

import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from p2p.benchmark import turns
from p2p.benchmark.plan import Plan
from p2p.benchmark.turns import Turns, meet
from p2p.errors import LaunchError, ShoalError

pytestmark = pytest.mark.light

PLAN = Plan(
    num_peers=2, algorithms=("ring",), baseline=None, sizes_bytes=(4096,), num_iters=5, num_warmup=1, turns="somewhere"
)


def both(path: Path, run: Callable[[Turns], Any], asked: tuple[dict[str, Any], dict[str, Any]]) -> list[Future[Any]]:
    """The results of two runs that meet at `path`."""

    def one(own: dict[str, Any]) -> Any:
        with meet(path, own) as met:
            return run(met)

    with ThreadPoolExecutor(2) as threads:
        return [threads.submit(one, own) for own in asked]


def test_batches_go_a_b_a_b_and_who_goes_on_longer_goes_on_alone(tmp_path: Path) -> None:
    order, lock = list[int](), threading.Lock()

    def run(met: Turns) -> dict[str, Any]:
        place = met.meeting["place"]
        for _ in range(5 + 4 * place):
            met.take()
            with lock:
                order.append(place)
            met.end()
        return dict(met.meeting)

    first, second = (each.result() for each in both(tmp_path / "turns", run, (PLAN.shared, PLAN.shared)))
    assert order == [*[0, 1] * 5, *[1] * 4]
    assert first["id"] == second["id"] and {first["place"], second["place"]} == {0, 1}
    assert list(tmp_path.iterdir()) == []


def test_who_ends_within_a_turn_leaves_the_rest_to_the_other(tmp_path: Path) -> None:
    def run(met: Turns) -> int:
        for _ in range(4 if met.meeting["place"] else 2):
            met.take()
            met.end()
        return 1

    assert [each.result() for each in both(tmp_path / "turns", run, (PLAN.shared, PLAN.shared))] == [1, 1]


def test_who_is_to_measure_something_else_is_refused_with_both_values(tmp_path: Path) -> None:
    other = PLAN.shared | {"sizes_bytes": [8192], "not here": 1}
    said = [each.exception() for each in both(tmp_path / "turns", lambda met: None, (PLAN.shared, other))]
    assert all(isinstance(error, ShoalError) for error in said)
    assert all("has sizes_bytes" in str(error) and "start both alike" in str(error) for error in said)
    assert {"[8192], and this one [4096]" in str(error) for error in said} == {True, False}


def test_what_only_one_version_knows_and_what_is_slowed_may_differ(tmp_path: Path) -> None:
    slowed = Plan.from_json(PLAN.to_json().replace('"slowed": {}', '"slowed": {"ring": 0.1}'))
    found = both(tmp_path / "turns", lambda met: met.meeting["id"], (PLAN.shared, slowed.shared | {"newer": 1}))
    assert found[0].result() == found[1].result()


def test_nobody_else_a_socket_that_is_left_and_a_path_that_cannot_be_are_one_line_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "PATIENCE_S", 0.01)
    with (
        pytest.raises(ShoalError, match=r"no other run takes turns at .*: start the other run"),
        meet(tmp_path / "a", {}),
    ):
        pass
    assert list(tmp_path.iterdir()) == []
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "left"))
    with pytest.raises(ShoalError, match=r"no run listens at .*left, .*: remove it"), meet(tmp_path / "left", {}):
        pass
    with pytest.raises(ShoalError, match="No such file or directory"), meet(tmp_path / "none" / "a", {}):
        pass
    with pytest.raises(ShoalError, match="80 bytes at most"), meet(Path("/tmp", "a" * 100), {}):
        pass


def test_who_comes_and_says_nothing_is_one_line(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as threads:
        met = threads.submit(lambda: meet(tmp_path / "turns", {}).__enter__())
        with socket.socket(socket.AF_UNIX) as stranger:
            while not met.done() and stranger.connect_ex(str(tmp_path / "turns")):
                pass
        with pytest.raises(ShoalError, match="did not say what it measures"):
            met.result()


def test_who_does_not_end_its_turn_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "PATIENCE_S", 5.0)
    waited = threading.Event()

    def run(met: Turns) -> None:
        met._connection.settimeout(0.01)
        met.take()
        if not met.meeting["place"]:
            assert waited.wait(60)

    def wait(met: Turns) -> None:
        try:
            run(met)
        finally:
            waited.set()

    said = [each.exception() for each in both(tmp_path / "turns", wait, (PLAN.shared, PLAN.shared))]
    (error,) = [each for each in said if each is not None]
    assert "has been measuring for" in str(error) and "take smaller" in str(error)


def test_a_swarm_of_other_machines_takes_no_turns() -> None:
    with pytest.raises(LaunchError, match="leave out --swarm"):
        Plan.from_json(PLAN.to_json().replace('"swarm": null', '"swarm": "lab"'))
