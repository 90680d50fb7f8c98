"""Refusals of `shoal lab`."""

import re

import pytest
from typer.testing import CliRunner

from p2p.cli import app
from p2p.errors import LabError


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--net", "rate=200mb", "--", "true"], "unknown unit 'mb' in rate=200mb; did you mean 200mbit?"),
        (["--hosts", "60000", "--", "true"], "60,000 hosts need at least"),
        (["--hosts", "0", "--", "true"], "a lab has at least 1 host, got 0"),
        (["--hosts", "2"], "nothing to run: give -- COMMAND"),
        (["--config", "lab.toml", "--hosts", "2", "--", "true"], "--config says how many hosts there are"),
        (["--name", "a b", "--", "true"], "'a b' is not a name of a lab"),
        (["--config", "no.toml", "--", "true"], "cannot read no.toml: No such file or directory"),
        (["set", "--name", "nobodys", "0", "cut"], "no lab nobodys is running"),
        (["--hosts", "3", "show"], "--hosts, --net and --config make a lab"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_made(arguments: list[str], error: str) -> None:
    with pytest.raises(LabError, match=re.escape(error)):
        CliRunner().invoke(app, ["lab", *arguments], catch_exceptions=False)
