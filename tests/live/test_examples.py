"""Each example runs, with few peers and few steps."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(script: str, *arguments: str) -> str:
    """What two peers print that run an example to its end, and leave nothing behind."""
    command = [sys.executable, "-m", "p2p.cli", "run", "-n", "2", f"examples/{script}.py", *arguments]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
    with (
        tempfile.TemporaryDirectory(prefix="shoal-") as home,  # tmp_path can be too long for a socket
        subprocess.Popen(
            command,
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
        assert [path.name for path in Path(home).glob(f"{script}-*/*")] == ["lock"]
    return output


@pytest.mark.timeout(100)
def test_two_peers_train_a_gpt() -> None:
    output = run("gpt", "--steps", "10", "--global-batch", "4")
    assert output.count("step 10: loss") == 2, output


@pytest.mark.timeout(100)
def test_two_peers_train_on_a_dataset_with_workers_and_validate_and_what_was_stopped_is_trained_further(
    tmp_path: Path,
) -> None:
    words = "--images", "300", "--checkpoints", str(tmp_path / "images")
    output = run("images", "--epochs", "1", *words)
    assert output.count("epoch 0: step 5, loss ") == 1, output
    assert output.count("of 512, 2 peers") == 1, output
    output = run("images", "--epochs", "2", *words)
    assert f"goes on from {tmp_path}/images/00000005: step 5 of run " in output
    assert output.count("epoch 1: step 10, loss ") == 1, output
    assert output.count("of 512, 2 peers") == 1, output
    assert "epoch 0" not in output


def test_an_example_fits_on_two_screens() -> None:
    for path in (ROOT / "examples").glob("*.py"):
        assert len(path.read_text().splitlines()) <= 120, path.name
