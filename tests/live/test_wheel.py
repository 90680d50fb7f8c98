"""The built wheel: `shoal` and the examples run from it, without the checkout."""

import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.live.launches import Shoal, outcome

ROOT = Path(__file__).parents[2]

IMPORT = """
import sys
from pathlib import Path

import collectives, gossip, p2p
import gpt, images  # examples

for module in (collectives, gossip, p2p):
    assert Path(module.__file__).is_relative_to(sys.prefix), module.__file__
assert (Path(p2p.__file__).parent / "status" / "page.html").is_file()
"""


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """The programs of an environment with the wheel; its dependencies are those of this environment."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    built, environment = tmp_path / "built", tmp_path / "environment"
    build = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(built), str(ROOT)]
    subprocess.run([*pip, *build], check=True)
    venv.create(environment, with_pip=False)
    python = environment / "bin" / "python"
    (wheel,) = built.iterdir()
    subprocess.run([*pip, "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)], check=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    others = environment / "lib" / version / "site-packages" / "others.pth"
    others.write_text(sysconfig.get_path("purelib"))
    return environment / "bin"


@pytest.mark.long
@pytest.mark.light
@pytest.mark.timeout(120)
def test_the_wheel_has_all_that_a_script_needs(programs: Path, shoal: Shoal, tmp_path: Path) -> None:
    for example in (ROOT / "examples").glob("*.py"):
        shutil.copy(example, tmp_path)
    nowhere = {"PYTHONPATH": ""}
    python = str(programs / "python")
    assert outcome(shoal("-c", IMPORT, program=(), executable=python, environ=nowhere)) == (0, [], [])
    command = ("run", "-n", "2", "images.py", "--epochs", "1", "--images", "128")
    code, stdout, stderr = outcome(shoal(*command, program=(), executable=str(programs / "shoal"), environ=nowhere))
    assert code == 0, stderr
    assert any("of 512, 2 peers" in line for line in stdout), stdout
