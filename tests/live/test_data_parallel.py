"""Two real peers that train in the ways of typical scripts: training_cases.py and so on."""

import pytest

from tests.live.sameness_cases import CASES
from tests.live.swarm import Swarm

pytestmark = [pytest.mark.torch, pytest.mark.light]


@pytest.mark.timeout(240)  # some seventy cases
@pytest.mark.parametrize(
    ("on_stand_in", "names"),
    [
        ((False, False), [*CASES][1::6]),
        ((True, False), [*CASES][::9]),
        pytest.param((False, False), [*CASES], marks=pytest.mark.long),
        pytest.param((True, False), [*CASES], marks=pytest.mark.long),
    ],
    ids=["host", "stand-in and host", "all on the host", "all on stand-in and host"],
)
def test_what_scripts_do_trains_as_in_one_process(
    swarm: Swarm, on_stand_in: tuple[bool, bool], names: list[str]
) -> None:
    source = "from tests.live.sameness_cases import main\nmain(on_stand_in={})\n"
    peers = [swarm.start(source.format(each), *names, min_peers=2) for each in on_stand_in]
    for line in ("here", *(f"passed {name}" for name in names)):
        peers[0].expect(line)
    assert [peer.end() for peer in peers] == [0, 0], "\n".join(peer.report() for peer in peers)
    assert [peer.stdout for peer in peers] == [["here", *(f"passed {name}" for name in names)]] * 2
