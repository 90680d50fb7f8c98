"""The commit of a script's checkout, read from the files of `.git`: running git would take long."""

import re
from pathlib import Path
from typing import Final

_COMMIT: Final = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")


def git_commit_of(script: Path) -> str:
    """The commit in hexadecimal, regardless of uncommitted changes; empty: no checkout, or not readable."""
    try:
        place = next((found for each in script.resolve().parents if (found := each / ".git").exists()), None)
        return "" if place is None else _head(_folder(place))
    except (OSError, ValueError):  # a name in another encoding than UTF-8
        return ""


def _folder(place: Path) -> Path:
    """The git folder of this checkout; in a worktree, `.git` is a file that names it."""
    return place if place.is_dir() else place.parent / place.read_text().removeprefix("gitdir:").strip()


def _head(folder: Path) -> str:
    head = (folder / "HEAD").read_text().strip()
    if not head.startswith("ref:"):
        return head if _COMMIT.fullmatch(head) else ""
    branch = head.removeprefix("ref:").strip()
    common = folder / "commondir"
    shared = folder / common.read_text().strip() if common.is_file() else folder
    if (shared / branch).is_file():
        found = (shared / branch).read_text().strip()
    else:
        lines = (shared / "packed-refs").read_text().splitlines()
        found = next((line.split()[0] for line in lines if line.endswith(f" {branch}")), "")
    return found if _COMMIT.fullmatch(found) else ""
