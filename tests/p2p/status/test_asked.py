"""Arguments of `shoal status`, with and without the full parser."""

from pathlib import Path

import pytest

from p2p.status.asked import Asked, asked
from p2p.status.screen import answer
from tests.p2p.telemetry.pages import A, identity, page

HOME = Path("/home/of/all")


def test_a_name_a_home_and_flags_are_read_in_any_order() -> None:
    plain = Asked(home=None, swarm="", is_json=False, watches=False)
    assert asked([], {}) == asked([], {"SHOAL_HOME": ""}) == plain
    assert asked(["--watch"], {}) == Asked(home=None, swarm="", is_json=False, watches=True)
    assert asked([], {"SHOAL_HOME": str(HOME)}) == Asked(home=HOME, swarm="", is_json=False, watches=False)
    everything = Asked(home=HOME, swarm="pond", is_json=True, watches=False)
    assert asked(["--json", "pond", "--home", str(HOME)], {"SHOAL_HOME": "/other"}) == everything
    assert asked(["--home", str(HOME), "--json", "pond"], {}) == everything


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
    assert asked(arguments, {}) is None


def test_what_is_asked_is_answered_with_the_exit_code_of_any_command(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pond = Asked(home=tmp_path, swarm="pond", is_json=False, watches=False)
    assert answer(pond) == 2
    assert capfd.readouterr().err.startswith("shoal: there is no peer of swarm pond on this host, in ")
    (tmp_path / "pond").mkdir()
    page(tmp_path / "pond", identity(A, swarm="pond"))
    assert answer(pond) == 0
    assert capfd.readouterr().out.startswith("swarm pond: starting\n")
