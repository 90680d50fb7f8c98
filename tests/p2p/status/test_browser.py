"""The page of a run, and a report, in a browser."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from p2p.experiment.evaluation.page import About, page
from p2p.experiment.evaluation.report import evaluate
from p2p.status.web import serving
from p2p.telemetry.page import Page
from p2p.telemetry.records import Kind
from p2p.telemetry.snapshot import Counted
from tests.cases import some_of
from tests.p2p.experiment.runs import killed
from tests.p2p.status.browser import Browser, browsing, pixels, program
from tests.p2p.telemetry.pages import A, B, identity, of_this_process, snapshot
from tests.p2p.telemetry.pages import page as made_page

pytestmark = [
    pytest.mark.light,
    pytest.mark.skipif(program() is None, reason="there is no chromium here, nor does SHOAL_BROWSER name a browser"),
]
BACK = {False: (255, 255, 255), True: (0x12, 0x16, 0x1C)}
NUM_STEPS = 60


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    with browsing(tmp_path / "profile") as found:
        yield found


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """The page's address, for a swarm with this process as a peer, and a dead one."""
    home = tmp_path / "home"
    (home / "pond").mkdir(parents=True)
    whos = [identity(A, **of_this_process()), identity(B, **{**of_this_process(), "name": "1", "pid": 1 << 21})]
    for who in whos:
        _show(made_page(home / "pond", who))
    with serving("127.0.0.1:0", home, "pond", time.monotonic_ns, {}) as found:
        yield found


def _show(made: Page) -> None:
    for step in range(1, NUM_STEPS):
        for _ in range(step % 7):  # so that steps take different times
            made.loop.note(Kind.SUBMITTED, step)
        made.loop.note(Kind.COMMITTED, step)
    counted = Counted(steps=NUM_STEPS, samples=8)
    known = {"step": NUM_STEPS - 1, "view": 1, "members": ((A, 1), (B, 1)), "has_begun": True, "counted": counted}
    made.show(snapshot(made.identity, time_ns=time.monotonic_ns(), logged={"loss <b>": 0.5}, **known))


def colors(browser: Browser, *, is_dark: bool) -> set[tuple[int, ...]]:
    """Colours of a screenshot; checks that its corner has the background's."""
    rows = pixels(browser.screenshot())
    assert tuple(rows[0][:3]) == BACK[is_dark]
    return {tuple(row[i : i + 3]) for row in rows for i in range(0, len(row), 3)}


def is_shown(color: tuple[int, ...], found: set[tuple[int, ...]]) -> bool:
    """Whether a colour, or a similar one, is shown: edges of thin lines are mixed with the background."""
    return any(sum(abs(a - b) for a, b in zip(color, each, strict=True)) < 120 for each in found)


@pytest.mark.parametrize("is_dark", some_of([False, True], 1), ids=["light", "dark"])
def test_the_page_of_a_run_shows_its_peers_their_steps_and_who_has_died(
    browser: Browser, url: str, is_dark: bool
) -> None:
    browser.open(url, is_dark=is_dark)
    browser.wait_for("[...document.querySelectorAll('td.bad')].some(each => each.textContent.startsWith('dead'))")
    assert browser.evaluate("document.querySelector('h1').textContent").startswith("swarm pond: 2 members in view 1")
    assert browser.evaluate("[...document.querySelectorAll('td:first-child')].map(e => e.textContent)") == ["0", "1"]
    assert "loss <b> 0.5" in browser.evaluate("document.querySelector('tr:nth-child(2)').textContent")
    points = browser.evaluate("document.querySelector('svg path:not(.m)').getAttribute('d').split('L').length")
    assert points == NUM_STEPS - 2
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
    bad, line = ((255, 128, 128), (127, 176, 255)) if is_dark else ((185, 28, 28), (31, 95, 191))
    found = colors(browser, is_dark=is_dark)
    assert is_shown(bad, found) and is_shown(line, found)


@pytest.mark.parametrize("is_dark", some_of([False, True], 0), ids=["light", "dark"])
def test_a_report_is_drawn_and_fits_into_a_window(browser: Browser, tmp_path: Path, is_dark: bool) -> None:
    path = tmp_path / "report.html"
    path.write_text(page(About("killed", "", {}), [evaluate(killed())]))
    browser.open(path.as_uri(), is_dark=is_dark, width=1000, height=900)
    browser.wait_for("document.readyState === 'complete' && document.querySelectorAll('svg .line').length > 0")
    boxes = browser.evaluate("[...document.querySelectorAll('svg')].map(e => [e.clientWidth, e.clientHeight])")
    assert boxes and all(width > 300 and height > 20 for width, height in boxes)
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
    line = (127, 176, 255) if is_dark else (31, 95, 191)
    assert is_shown(line, colors(browser, is_dark=is_dark))
