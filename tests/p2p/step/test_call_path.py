"""The place where a script calls an operation of its own."""

import runpy
from pathlib import Path
from typing import Any

from p2p.step.call_path import call_site

SCRIPT = """
from p2p.step.call_path import call_site

def helper():
    return call_site()

first = helper()
again = [helper() for _ in range(2)]
second = helper()
"""


def test_a_site_is_that_of_all_lines_of_the_script_and_of_nothing_else(tmp_path: Path) -> None:
    ran = []
    for folder in ("one", "another"):
        (tmp_path / folder).mkdir()
        path = tmp_path / folder / "train.py"
        path.write_text(SCRIPT)
        ran.append(runpy.run_path(str(path), run_name="__main__"))
    one, another = ran
    assert one["first"] == another["first"], "of the same script, in whichever folder, and called from whichever line"
    assert one["again"][0] == one["again"][1]
    assert len({one["first"], one["again"][0], one["second"]}) == 3, "one line calls it, and three lines call that"


def test_lines_of_this_package_are_none_of_the_script() -> None:
    inside: dict[str, Any] = {"call_site": call_site, "__name__": "p2p.session.calls"}
    exec("def call():\n    return call_site()\n\n\ndef other():\n    return call()", inside)
    assert inside["call"]() == inside["other"]() == call_site()
