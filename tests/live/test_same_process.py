"""Processes of a launcher that are peers of another swarm than its own, or several peers, at once or in succession."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.live.launches import Shoal, outcome
from tests.live.test_run import CLOSES, line_like, rows

pytestmark = pytest.mark.light

Script = Callable[[str], str]

TWO_SWARMS = """
import os, signal
import numpy as np
import p2p

with p2p.join() as one, p2p.join(swarm="other") as other:
    for peer in (one, other):
        peer.wait_view()
    for step in range(1, 41):
        with one.step(samples=4):
            one.all_reduce(np.ones(3))
        if step <= 10:
            with other.step(samples=1):
                other.all_reduce(np.ones(3))
        if step == 20 and os.environ["SHOAL_LOCAL_INDEX"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
"""


def test_peers_that_take_part_in_another_swarm_too_are_reported_as_of_the_run_only(
    shoal: Shoal, script: Script
) -> None:
    code, _, stderr = outcome(shoal("-n", "3", script(TWO_SWARMS)))
    assert code == 1 and rows(stderr) == ["0 completed 40 160", "1 was killed by SIGKILL 20 80", "2 completed 40 160"]
    assert not any("has joined" in line for line in stderr), stderr


OWN_PLACE = """
import os
import numpy as np
import p2p

peer = p2p.join({given})
peer.wait_view()
while peer.last_step < 40:
    if peer.last_step == 20 and os.environ["SHOAL_LOCAL_INDEX"] == "1":
        os._exit(0)
    with peer.step(samples=4):
        peer.all_reduce(np.ones(3))
peer.leave()
"""


@pytest.mark.parametrize("given", ["swarm='mine'", "home=os.environ['SHOAL_HOME'] + '/other'"], ids=["swarm", "home"])
def test_a_launcher_looks_after_the_swarm_that_the_script_names(
    given: str, shoal: Shoal, script: Script, tmp_path: Path
) -> None:
    code, _, stderr = outcome(shoal("-n", "3", "--receipts", "kept", script(OWN_PLACE.replace("{given}", given))))
    one = "1 ended with exit code 0 without leaving its run (os._exit?) 20 80"
    assert code == 1 and rows(stderr) == ["0 completed 40 160", one, "2 completed 40 160"], stderr
    assert len(list((tmp_path / "kept" / "traces").iterdir())) == 3


AGAIN = """
import numpy as np
import p2p

for _ in range(2):
    with p2p.join() as peer:
        peer.wait_view()
        for _ in range(20):
            with peer.step(samples=2):
                peer.all_reduce(np.ones(3))
"""


@pytest.mark.parametrize("wrapper", [(), ("--", sys.executable, "-c", CLOSES)], ids=["alone", "wrapped"])
def test_who_joins_again_in_the_same_process_has_done_the_steps_of_both_peers(
    wrapper: tuple[str, ...], shoal: Shoal, script: Script
) -> None:
    code, _, stderr = outcome(shoal("-n", "2", *wrapper, script(AGAIN)))
    assert code == 0 and rows(stderr) == ["0 completed 40 80", "1 completed 40 80"], stderr


REPLACES_ITSELF = """
import os, sys
from itertools import count
from pathlib import Path
import numpy as np
import p2p

over, is_second = Path("over"), "AGAIN" in os.environ
peer = p2p.join()
peer.wait_view()
for done in count():
    if is_second and done == 10:
        over.touch()
    if over.exists():
        break
    if peer.last_step == 20 and os.environ["SHOAL_LOCAL_INDEX"] == "1" and not is_second:
        os.environ["AGAIN"] = ""
        os.execv(sys.executable, [sys.executable, *sys.argv])
    with peer.step(samples=1):
        peer.all_reduce(np.ones(3))
"""


def test_a_peer_that_replaces_its_program_is_heard_again_and_has_not_failed(shoal: Shoal, script: Script) -> None:
    run = shoal("-n", "3", script(REPLACES_ITSELF))
    line_like(run, r"shoal: peer 1 is out at step 20; 2 members .*")
    line_like(run, r"shoal: peer 1 counts, .*; 3 members")
    code, _, stderr = outcome(run)
    assert code == 0 and all("completed" in row for row in rows(stderr)), stderr


def test_a_lone_peer_that_replaces_its_program_does_not_wait_for_itself(shoal: Shoal, script: Script) -> None:
    code, _, stderr = outcome(shoal("-n", "1", script(REPLACES_ITSELF.replace('"1"', '"0"'))))
    assert code == 0 and sum("founded swarm" in line for line in stderr) == 2, stderr
