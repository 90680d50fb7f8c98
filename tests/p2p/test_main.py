"""The program `shoal` in an incomplete environment."""

import subprocess
import sys
from pathlib import Path

import pytest

CLOSING = "import os, sys; os.close(int(sys.argv[1])); os.execv(sys.executable, [sys.executable, *sys.argv[2:]])"


@pytest.mark.parametrize("command", [("status", "--json"), ("run", "-n", "1", "x.py")], ids=["status", "run"])
@pytest.mark.parametrize("fd", [0, 1, 2])
def test_what_is_closed_of_the_standard_files_is_dev_null(command: tuple[str, ...], fd: int, tmp_path: Path) -> None:
    words = [sys.executable, "-c", CLOSING, str(fd), "-m", "p2p", *command]
    asked = subprocess.run(words, env={"SHOAL_HOME": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert asked.returncode == 2, asked.stderr
    assert asked.stderr.count("\n") == (fd != 2) and not asked.stdout
