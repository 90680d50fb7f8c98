"""Where this checkout is, and what its processes inherit."""

import os
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
WHEELS: Final = ROOT / ".whl"
"""What a machine without our environment lacks (bench/__init__.py)."""
ONE_THREAD: Final = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def environment() -> dict[str, str]:
    """That of this process, with the packages of this checkout, and a thread for each peer."""
    return {**os.environ, **ONE_THREAD, "PYTHONPATH": os.pathsep.join(python_path(sys.path))}


def python_path(here: list[str]) -> list[str]:
    """This checkout; with `WHEELS`, which come last, all that is looked through `here`: what is installed is before."""
    return list(dict.fromkeys([str(ROOT), *filter(None, here if str(WHEELS) in here else [])]))
