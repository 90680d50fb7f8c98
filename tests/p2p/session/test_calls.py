"""What a script calls, of a peer that is alone."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from p2p import Peer, PeerConfig, ShoalError


@pytest.fixture
def peer() -> Iterator[Peer]:
    """Has a seat."""
    with (
        TemporaryDirectory(prefix="shoal") as folder,  # tmp_path can be too long for a socket
        Peer(PeerConfig(swarm="pond", home=Path(folder) / "home", step_timeout_s=20.0)) as peer,
    ):
        peer.wait_view()
        yield peer


def test_operations_whose_handles_were_dropped_can_be_waited_for(peer: Peer) -> None:
    tensors = [np.arange(5.0), np.arange(7)]
    for tensor in tensors:
        peer.all_reduce(tensor, async_op=True)
    with pytest.raises(ShoalError, match=r"asynchronous operations are open: call `peer\.wait\(\)`"):
        peer.barrier()
    peer.wait()
    assert peer.last_step == 1
    peer.barrier()
    assert (
        peer.last_step == 2 and tensors[0].tolist() == [0, 1, 2, 3, 4] and tensors[1].tolist() == [0, 1, 2, 3, 4, 5, 6]
    )


def test_a_wait_for_nothing_returns_at_once_and_one_after_a_handles_own_is_one(peer: Peer) -> None:
    peer.wait()
    peer.all_reduce(np.ones(3), async_op=True).wait()
    peer.wait()
    assert peer.last_step == 1


def test_a_wait_in_a_block_leaves_its_operations_to_its_end(peer: Peer) -> None:
    with peer.step(samples=1):
        peer.all_reduce(np.ones(3))
        peer.wait()
        assert peer.last_step == 0
    assert peer.last_step == 1
