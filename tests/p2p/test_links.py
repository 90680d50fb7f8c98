"""What the documentation points at exists: files, headings and anchors, also those named in docstrings and comments."""

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHIPPED = ("p2p", "gossip", "collectives", "examples", "bench", "tests")
OF_USERS = {"train.py", "FILE.py"}
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def without_code(text: str) -> str:
    return re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.DOTALL)


def slug(heading: str) -> str:
    """As GitHub makes it: without marks, spaces as hyphens."""
    shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", shown.strip().lower()).replace(" ", "-")


@cache
def anchors(page: Path) -> frozenset[str]:
    text = page.read_text()
    headings = re.findall(r"^#+ +(.*)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), flags=re.MULTILINE)
    return frozenset([*map(slug, headings), *re.findall(r'<a id="([^"]+)"', text)])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text())):
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        goal = page if not path else (page.parent / path).resolve()
        if not goal.exists() or (anchor and goal.suffix == ".md" and anchor not in anchors(goal)):
            broken.append(target)
    assert not broken


def test_modules_that_are_named_exist() -> None:
    paths = [path.relative_to(ROOT) for folder in SHIPPED for path in (ROOT / folder).rglob("*.py")]
    known = {"/".join(path.parts[-length:]) for path in paths for length in range(1, len(path.parts) + 1)}
    texts = [*PAGES, *(ROOT / path for path in paths if path.parts[0] != "tests")]
    named = {(found.lstrip("/"), path) for path in texts for found in re.findall(r"[\w/]+\.py\b", path.read_text())}
    assert not {(found, str(path)) for found, path in named if found not in known | OF_USERS}
