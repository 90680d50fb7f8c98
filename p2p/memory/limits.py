"""How much memory a peer could take now: of the machine, and of the cgroups around it."""

from pathlib import Path
from typing import Final

from .arena import available_bytes

CGROUPS: Final = Path("/sys/fs/cgroup")


def memory_bytes() -> int:
    """What a peer could take now."""
    left = cgroup_left_bytes(groups_of_process(), CGROUPS)
    return available_bytes() if left is None else min(available_bytes(), left)


def groups_of_process() -> str:
    """As the kernel lists them."""
    return Path("/proc/self/cgroup").read_text()


def cgroup_left_bytes(groups: str, root: Path) -> int | None:
    """What the groups of this process leave of their limits (cgroups(7), version 2); None: they have none."""
    path = next((line[3:] for line in groups.splitlines() if line.startswith("0::")), None)
    if path is None:
        return None
    folder, left = root / path.lstrip("/"), []
    for each in (folder, *folder.parents):
        if root in (each, *each.parents):
            try:
                limit = (each / "memory.max").read_text().strip()
                if limit != "max":
                    left.append(max(0, int(limit) - int((each / "memory.current").read_text())))
            except OSError:
                continue
    return min(left, default=None)
