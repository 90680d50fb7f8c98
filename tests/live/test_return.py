"""A removed peer without a model: its script is told, and returns if it asks for that."""

import signal

import pytest

from p2p.step.receipts import read_receipts
from tests.live.swarm import Swarm, name

STREAM = """
import select, sys
import numpy as np
import p2p

def command():
    ready, _, _ = select.select([sys.stdin], [], [], 0.002)
    return sys.stdin.readline().strip() if ready else ""

word, is_over = "", False
with p2p.join(rejoin="stays" not in sys.argv) as peer:
    print("here", peer.peer_id)
    peer.wait_view()
    while not is_over:
        wish = np.array([word == "stop", 1], np.int64)
        try:
            peer.all_reduce(wish)
        except p2p.RemovedFromView as error:
            print("removed", peer.last_step)
            for call in (peer.barrier, peer.step().__enter__):
                try:
                    call()
                except p2p.RemovedFromView as again:
                    assert again is error
                else:
                    raise AssertionError
            try:
                view = peer.wait_view()
            except p2p.RemovedFromView as again:
                assert again is error and "stays" in sys.argv
                print("stays away")
                break
            assert view is peer.view and peer.rank < peer.world_size, "it has a seat in its new incarnation"
            print("back", peer.last_step, peer.rank, peer.world_size)
            continue
        is_over = wish[0] > 0
        assert wish[1] == peer.world_size
        print("step", peer.last_step, peer.rank, peer.world_size)
        print("members", peer.world_size)
        word = word or command()
"""


@pytest.mark.light
def test_a_removed_peer_is_back_when_its_script_asks_for_it(swarm: Swarm) -> None:
    stopped, *others = swarm.start_all(3, STREAM)
    stopped.expect_step(5)
    stopped.send_signal(signal.SIGSTOP)
    for peer in others:
        peer.expect_line("members 2", after="members 3")
    stopped.send_signal(signal.SIGCONT)
    done, rank, world_size = map(int, stopped.expect("back").split()[1:])
    assert (rank, world_size) == (2, 3) and done > int(stopped.expect("removed").split()[1])
    for peer in others:
        peer.expect_line("members 3", after="members 2")
    stopped.expect_step(done + 5)
    others[0].tell("stop")
    for peer in (stopped, *others):
        assert peer.end() == 0, peer.report()
    complete, its_own = (
        read_receipts(swarm.receipts / f"{name(peer)}.receipts.jsonl") for peer in (others[0], stopped)
    )
    assert [receipt.step for receipt in complete] == list(range(len(complete)))
    counted = [receipt for receipt in complete if name(stopped) in {c.peer_id for c in receipt.contributions}]
    unheard = [receipt for receipt in counted if receipt not in its_own]
    assert len(unheard) <= 1, "it was stopped between finishing a step and hearing that all had"
    assert its_own == [receipt for receipt in counted if receipt not in unheard]
    assert 0 < len(counted) < len(complete) and its_own[-1] == complete[-1]


@pytest.mark.light
def test_a_removed_peer_that_may_not_come_back_is_told_again(swarm: Swarm) -> None:
    stopped, *others = (swarm.start(STREAM, "stays", min_peers=3) for _ in range(3))
    stopped.expect_step(5)
    stopped.send_signal(signal.SIGSTOP)
    for peer in others:
        peer.expect_line("members 2", after="members 3")
    stopped.send_signal(signal.SIGCONT)
    stopped.expect("stays away")
    assert stopped.end() == 0, stopped.report()
    others[0].tell("stop")
    assert [peer.end() for peer in others] == [0, 0]
