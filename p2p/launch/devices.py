"""The GPUs of this host, without asking torch, which would take seconds: what the kernel's driver offers."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_DEVICE: Final = re.compile(r"nvidia\d+")


def visible_devices(environ: Mapping[str, str], dev: Path = Path("/dev")) -> tuple[str, ...]:
    """Their names as CUDA_VISIBLE_DEVICES has them; one that is set there already is respected."""
    given = environ.get("CUDA_VISIBLE_DEVICES")
    if given is None:
        return tuple(str(i) for i in range(sum(bool(_DEVICE.fullmatch(path.name)) for path in dev.iterdir())))
    names = []
    for name in given.split(","):
        if not name.strip() or name.strip() == "-1":
            break  # as CUDA does: what stands behind it is not seen
        names.append(name.strip())
    return tuple(names)
