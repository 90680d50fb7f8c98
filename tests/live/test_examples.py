"""Each example runs, with few peers and few steps."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(100)
def test_two_peers_train_a_gpt() -> None:
    command = [sys.executable, "-m", "p2p.cli", "run", "-n", "2", "examples/gpt.py", "--steps", "10"]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
    with (
        tempfile.TemporaryDirectory(prefix="shoal-") as home,  # tmp_path can be too long for a socket
        subprocess.Popen(
            [*command, "--global-batch", "4"],
            cwd=ROOT,
            env={**environ, "SHOAL_HOME": home},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process,
    ):
        try:
            output, _ = process.communicate()
        finally:
            process.kill()
        assert process.returncode == 0, output
        assert output.count("step 10: loss") == 2, output
        assert [path.name for path in Path(home).glob("gpt-*/*")] == ["lock"]


def test_an_example_fits_on_two_screens() -> None:
    for path in (ROOT / "examples").glob("*.py"):
        assert len(path.read_text().splitlines()) <= 120, path.name
