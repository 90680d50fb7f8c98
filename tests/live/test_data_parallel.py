"""Two peers that are processes, and train in all the ways that scripts have: training_cases.py and so on."""

import pytest

from tests.live.habit_cases import CASES
from tests.live.swarm import Swarm

pytestmark = [pytest.mark.torch, pytest.mark.light]


def test_what_scripts_do_trains_as_in_one_process(swarm: Swarm) -> None:
    source = "from tests.live.habit_cases import main\nmain()\n"
    peers = [swarm.start(source, min_peers=2) for _ in range(2)]
    for line in ("here", *(f"passed {name}" for name in CASES)):
        peers[0].expect(line)
    assert [peer.end() for peer in peers] == [0, 0], "\n".join(peer.report() for peer in peers)
    assert [peer.stdout for peer in peers] == [["here", *(f"passed {name}" for name in CASES)]] * 2
