"""Imports of `shoal status`, which should answer quickly."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.p2p.telemetry.pages import A, identity, page, snapshot

HEAVY = ("torch", "numpy", "zmq", "msgpack", "gossip", "collectives")
UNUSED = {
    *HEAVY,
    "typer",
    "click",
    "pydantic",
    "platformdirs",
    "asyncio",
    "subprocess",
    "socket",
    "rich.live",
    "p2p.cli",
}
"""Modules that `shoal status` must not import: parsers, sockets and threads of other commands."""

IMPORTED = re.compile(r"import time:.*\| +(\S+)")


@pytest.mark.parametrize("module", ["p2p", "p2p.cli", "p2p.status.screen", "p2p.status.report"])
def test_nothing_that_takes_long_is_imported(module: str) -> None:
    source = f"import sys, {module}; print([each for each in {HEAVY} if each in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", source], text=True) == "[]\n"


@pytest.mark.parametrize(("options", "unused"), [([], UNUSED), (["--json"], UNUSED | {"rich"})])
def test_status_imports_what_it_shows(tmp_path: Path, options: list[str], unused: set[str]) -> None:
    (tmp_path / "pond").mkdir()
    who = identity(A, swarm="pond")
    page(tmp_path / "pond", who).show(snapshot(who, step=5))
    command = [sys.executable, "-X", "importtime", "-m", "p2p", "status", "pond", "--home", str(tmp_path), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = set(IMPORTED.findall(done.stderr))
    assert "pond" in done.stdout
    assert "p2p.status.local" in imported and not imported & unused
    rooms = {".".join(name.split(".")[:2]) for name in imported if name.startswith("p2p.")}
    assert rooms == {"p2p.errors", "p2p.host", "p2p.status", "p2p.telemetry"}
