"""The path of this checkout, and the environment of its processes."""

import os
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
WHEELS: Final = ROOT / ".whl"
"""Packages for a machine without the project's environment (bench/__init__.py)."""
ONE_THREAD: Final = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def environment() -> dict[str, str]:
    """This process's environment, with this checkout's packages, and one thread of arithmetic for each peer."""
    return {**os.environ, **ONE_THREAD, "PYTHONPATH": os.pathsep.join(python_path(sys.path))}


def python_path(here: list[str]) -> list[str]:
    """This checkout; if `here` contains `WHEELS`, also all of `here`: installed packages come before wheels."""
    return list(dict.fromkeys([str(ROOT), *filter(None, here if str(WHEELS) in here else [])]))
