"""Parsing of command lines."""

import os
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from p2p.cli import IS_COMMAND, app
from p2p.errors import LaunchError


def parse(*words: str) -> tuple[dict[str, Any], bool]:
    """Options of `shoal run WORDS`, and whether a command is to be run."""
    shoal: Any = typer.main.get_command(app)
    context = shoal.commands["run"].make_context("run", list(words))
    return context.params, context.meta[IS_COMMAND]


@pytest.mark.parametrize(
    ("words", "num_peers", "module", "rest", "is_command"),
    [
        (("x.py", "-n", "3"), "1", None, ["x.py", "-n", "3"], False),
        (("-n", "2", "x.py", "--", "-v"), "2", None, ["x.py", "--", "-v"], False),
        (("-n2", "x.py"), "2", None, ["x.py"], False),
        (("-vn", "2", "x.py"), "2", None, ["x.py"], False),
        (("-qn2", "x.py"), "2", None, ["x.py"], False),
        (("-n", "2", "--", "-v"), "2", None, ["-v"], True),
        (("-vqn", "2", "--swarm=a", "--min-peers", "2", "-m", "a.b", "-n", "7"), "2", "a.b", ["-n", "7"], False),
        (("-vma.b", "-c"), "1", "a.b", ["-c"], False),
        (("-m", "a.b", "--", "-c"), "1", "a.b", ["--", "-c"], False),
        (("-n", "2"), "2", None, [], False),
    ],
)
def test_options_end_where_it_is_said_what_to_run(
    words: tuple[str, ...], num_peers: str, module: str | None, rest: list[str], is_command: bool
) -> None:
    found, found_command = parse(*words)
    assert (found["num_peers"], found["module"], found["words"] or []) == (num_peers, module, rest)
    assert found_command == is_command


def test_a_run_that_a_peer_starts_is_another_one_and_keeps_what_its_user_has_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.environ", os.environ.copy())
    of_outer = {"SHOAL_SWARM": "outer", "SHOAL_MIN_PEERS": "3", "SHOAL_BIND": "127.0.0.1:7700", "SHOAL_RESUME": "c/1"}
    os.environ.update({**of_outer, "SHOAL_EXPORTED": ",".join(of_outer), "SHOAL_HOME": "home", "SHOAL_KEY": "k"})
    found, _ = parse("x.py")
    assert (found["swarm"], found["min_peers"], found["bind"]) == (None, None, "")
    assert (found["home"], found["key"]) == (Path("home"), Path("k"))
    assert not {*of_outer, "SHOAL_EXPORTED"} & os.environ.keys()
    os.environ |= of_outer
    found, _ = parse("--min-peers", "1", "--bind", "", "x.py")
    assert (found["swarm"], found["min_peers"], found["bind"]) == ("outer", 1, "")
    assert parse("x.py")[0]["min_peers"] == 3


@pytest.mark.parametrize("words", [("-m",), ("-n",), ("-vn",), ("-v", "--swarm"), ("-n", "2", "--resume")])
def test_an_option_that_lacks_its_value_is_named(words: tuple[str, ...]) -> None:
    name = f"-{words[-1][-1]}" if not words[-1].startswith("--") else words[-1]
    with pytest.raises(Exception, match=f"Option '{name}' requires an argument"):
        parse(*words)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("run --key k x.py", "--key is for TCP: give --bind or --seeds, too"),
        ("status --key k", "--key: only for a peer of another host: give --seeds HOST:PORT, too"),
        ("status --network moon --insecure", "--insecure, --network: only for a peer of another host"),
        ("bench all-reduce --draw ring --json d --explain", "--draw measures nothing, so leave --json, --explain out"),
    ],
)
def test_what_would_be_ignored_is_refused(words: str, says: str) -> None:
    with pytest.raises(LaunchError, match=says):
        CliRunner().invoke(app, words.split(), catch_exceptions=False)


@pytest.mark.parametrize("words", ["run -n some x.py", "status a --home /nowhere"])
def test_a_key_in_the_environment_is_for_the_runs_that_need_one(words: str) -> None:
    with pytest.raises(LaunchError, match=r"-n is the number of peers|there is no peer of swarm"):
        CliRunner().invoke(app, words.split(), catch_exceptions=False, env={"SHOAL_KEY": "k"})
