"""Where this checkout is, and what its processes inherit."""

import os
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
ONE_THREAD: Final = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def environment() -> dict[str, str]:
    """That of this process, with the packages of this checkout, and a thread for each peer."""
    return {**os.environ, **ONE_THREAD, "PYTHONPATH": str(ROOT)}
