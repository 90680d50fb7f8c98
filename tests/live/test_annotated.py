"""A script that annotates the types of all results, and catches errors by their names."""

from tests.live.swarm import Swarm

SCRIPT = "from tests.live.annotated import main\nmain()\n"


def test_a_script_with_types_does_what_they_say(swarm: Swarm) -> None:
    peers = [swarm.start(SCRIPT, min_peers=2) for _ in range(2)]
    for peer in peers:
        assert peer.end() == 0, peer.report()
        assert peer.stdout[-1] == "end 3"


def test_an_address_that_is_none_is_an_error_of_its_own(swarm: Swarm) -> None:
    peer = swarm.start(SCRIPT, "nowhere")
    assert peer.end() == 1
    assert peer.stderr[-1].startswith("give another address: --bind: expected host:port"), peer.report()
