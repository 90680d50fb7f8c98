"""When a launcher restarts a peer, and how it ends its peers after an internal failure."""

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from p2p.launch.children import Child
from p2p.launch.config import LaunchConfig
from p2p.launch.launcher import Launcher
from p2p.launch.peer_slots import PeerSlot
from p2p.launch.target import Target
from p2p.telemetry.snapshot import Change
from tests.p2p.launch.standings import standing

PEER_ID = "a" * 16


class Hears(Child):
    """A child that records its signals."""

    def signal(self, number: int, joined: int | None) -> None:
        vars(self).setdefault("heard", []).append(number)
        super().signal(number, joined)


@pytest.fixture(params=[""])
def launcher(request: pytest.FixtureRequest) -> Iterator[Launcher]:
    """A launcher of three peers, none of which is started; the parameter restricts them. Its output is not read."""
    reader, writer = os.pipe()
    os.close(reader)
    with TemporaryDirectory(prefix="shoal-") as home:
        target = Target.of_command(["sleep", "100"])
        config = LaunchConfig(target=target, num_peers=3, swarm="pond", home=Path(home), gpus=(), only=request.param)
        made = Launcher(config, environ=os.environ, stdout=writer, stderr=writer)
        yield made
        made._kill_all()
        made._selector.close()
        os.close(made._held)
    os.close(writer)


def begin(launcher: Launcher, index: int) -> Hears:
    """Start a peer without the launcher's further actions."""
    child = Hears.start(launcher._config, index, dict(os.environ))
    for output in child.outputs:
        output.close()
    launcher._places[index].begin(child, 0.0)
    return child


@pytest.mark.parametrize(
    ("launcher", "expected"), [("join", "join"), ("new", None)], indirect=["launcher"], ids=["join", "new"]
)
def test_who_takes_the_place_of_a_peer_that_only_joins_founds_nothing_either(
    launcher: Launcher, expected: str | None
) -> None:
    place = launcher._places[0]
    place.end(1, 0.0, 1)
    launcher._start_again(place.restart_at)
    given = environment_of(place)
    assert given.get("SHOAL_ONLY") == expected and int(given["SHOAL_SINCE_NS"]) > 0


@pytest.mark.parametrize("launcher", [""], indirect=True)
def test_who_takes_a_place_is_told_which_other_hosts_had_members_of_the_run(launcher: Launcher) -> None:
    launcher._death_notices.remote_hosts = {"ab": "tcp://10.0.0.2:7700"}
    first, second = launcher._places[:2]
    first.end(1, 0.0, 1)
    launcher._start(second)
    launcher._start_again(first.restart_at)
    given = [environment_of(place) for place in (first, second)]
    assert [each.get("SHOAL_ELSEWHERE") for each in given] == ["ab@tcp://10.0.0.2:7700", None]


def environment_of(place: PeerSlot) -> dict[str, str]:
    assert place.child is not None
    environ = Path(f"/proc/{place.child.pid}/environ").read_text().split("\0")
    return dict(variable.split("=", 1) for variable in environ if variable)


@pytest.mark.parametrize("is_through", [False, True])
def test_a_peer_is_replaced_though_another_one_has_completed_as_long_as_a_third_goes_on(
    launcher: Launcher, *, is_through: bool
) -> None:
    completed, living, failed = launcher._places
    completed.end(0, 0.0, 0)
    begin(launcher, 1)
    living.snapshot = replace(standing(), left_cleanly=is_through)
    failed.end(-9, 0.0, 1)
    launcher._start_again(failed.restart_at)
    assert (failed.child is None) == is_through


def test_a_peer_of_whose_start_the_second_half_has_failed_is_killed_too(launcher: Launcher) -> None:
    begin(launcher, 1)
    launcher._kill_all()
    ending = launcher._places[1].exit_outcome
    assert ending is not None and ending.code == -signal.SIGKILL


def test_peers_are_asked_to_leave_once_though_the_last_news_cannot_be_written(launcher: Launcher) -> None:
    first, child = launcher._places[0], begin(launcher, 1)
    seat = replace(standing(PEER_ID), has_begun=True, step=1, members=((PEER_ID, 1),), change=Change(view=1))
    launcher._progress.add_report(first, seat, 0.0)
    first.end(-9, 0.0, 0)
    assert launcher._progress.died(first, "peer 0 was killed", 0.0) == []  # it is told with what it has cost
    launcher._end(signal.SIGTERM, "SIGTERM")
    assert vars(child)["heard"] == [signal.SIGTERM]


def test_who_was_active_last_has_died_last_though_the_launcher_has_heard_of_all_deaths_at_once(
    launcher: Launcher,
) -> None:
    for place, time_ns in zip(launcher._places, (3, 1, 2), strict=True):
        child = begin(launcher, place.index)
        place.snapshot = replace(standing(PEER_ID), time_ns=time_ns)
        child.kill()
        child.wait()
    assert [place.name for place in launcher._ended()] == ["1", "2", "0"]
