"""Arguments of `shoal status`, with and without the full parser."""

from pathlib import Path

import pytest

from p2p.status.arguments import StatusArguments, parse_arguments
from p2p.status.screen import run_status
from tests.p2p.telemetry.pages import A, identity, page

HOME = Path("/home/of/all")


def test_a_name_a_home_and_flags_are_read_in_any_order() -> None:
    plain = StatusArguments(home=None, swarm="", is_json=False, watches=False)
    assert parse_arguments([], {}) == parse_arguments([], {"SHOAL_HOME": ""}) == plain
    assert parse_arguments(["--watch"], {}) == StatusArguments(home=None, swarm="", is_json=False, watches=True)
    assert parse_arguments([], {"SHOAL_HOME": str(HOME)}) == StatusArguments(
        home=HOME, swarm="", is_json=False, watches=False
    )
    everything = StatusArguments(home=HOME, swarm="pond", is_json=True, watches=False)
    assert parse_arguments(["--json", "pond", "--home", str(HOME)], {"SHOAL_HOME": "/other"}) == everything
    assert parse_arguments(["--home", str(HOME), "--json", "pond"], {}) == everything


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["pond", "lake"],
        ["--seeds", "host:4000"],
        ["--home"],
        ["--home", "--json"],
        ["--home=/home/of/all"],
        ["--jso"],
        ["-j"],
        ["--", "pond"],
        [""],
    ],
)
def test_what_is_more_than_that_is_for_the_parser(arguments: list[str]) -> None:
    assert parse_arguments(arguments, {}) is None


def test_what_is_asked_is_answered_with_the_exit_code_of_any_command(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pond = StatusArguments(home=tmp_path, swarm="pond", is_json=False, watches=False)
    assert run_status(pond) == 2
    assert capfd.readouterr().err.startswith("shoal: there is no peer of swarm pond on this host, in ")
    (tmp_path / "pond").mkdir()
    page(tmp_path / "pond", identity(A, swarm="pond"))
    assert run_status(pond) == 0
    assert capfd.readouterr().out.startswith("swarm pond: starting\n")
