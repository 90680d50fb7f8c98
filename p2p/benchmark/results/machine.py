"""The machine and the commit with which a number was measured."""

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from p2p.launch.config import num_usable_cores

ROOT: Final = Path(__file__).parents[3]
PACKAGES: Final = ("shoal", "numpy", "pyzmq", "torch")


def commit() -> str | None:
    """The commit of this checkout, with `-dirty` if files were changed; None if it is no checkout."""
    if not (ROOT / ".git").exists():
        return None
    command = ("git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() or None
    except (OSError, subprocess.CalledProcessError):
        return None


def machine() -> dict[str, Any]:
    """The properties of this machine that a reader needs to compare two runs."""
    return {
        "cpu": cpu_model(),
        "cores": num_usable_cores(),
        "cores_of_machine": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "load_1_min": round(os.getloadavg()[0], 2),
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: found for name in PACKAGES if (found := installed_version(name)) is not None},
    }


def cpu_model() -> str:
    """The model in /proc/cpuinfo, or else the architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def installed_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
