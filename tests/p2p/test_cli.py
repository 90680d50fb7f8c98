"""How the words of a command line are taken apart."""

from typing import Any

import pytest
import typer

from p2p.cli import IS_COMMAND, app


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
        (("-n", "2"), "2", None, [], False),
    ],
)
def test_options_end_where_it_is_said_what_to_run(
    words: tuple[str, ...], num_peers: str, module: str | None, rest: list[str], is_command: bool
) -> None:
    found, found_command = parse(*words)
    assert (found["num_peers"], found["module"], found["words"] or []) == (num_peers, module, rest)
    assert found_command == is_command


@pytest.mark.parametrize("words", [("-m",), ("-n",), ("-vn",), ("-v", "--swarm"), ("-n", "2", "--resume")])
def test_an_option_that_lacks_its_value_is_named(words: tuple[str, ...]) -> None:
    name = f"-{words[-1][-1]}" if not words[-1].startswith("--") else words[-1]
    with pytest.raises(Exception, match=f"Option '{name}' requires an argument"):
        parse(*words)
