"""Joiners of scripts without a model, whose iterations have several operations: they begin where an iteration does."""

from tests.live.swarm import Swarm

AVERAGE = """
import time
import numpy as np
import p2p

NUM_METRICS = 6

with p2p.join() as peer:
    print("here", peer.peer_id)
    loader = peer.loader(range(60), global_batch=6, epochs=10**6, seed=3, collate_fn=np.array)
    peer.wait_view()
    num_together = 0
    for x in (x for _ in loader.epochs() for x in loader):
        with peer.step() as step:
            total = np.array([x.sum() * bool(step.samples)], np.int64)
            peer.all_reduce(total)
        time.sleep(0.002)  # its computation
        for number in range(NUM_METRICS):
            metric = np.full(1, 10.0**number)
            peer.all_reduce(metric, op="mean")
            assert metric[0] == 10.0**number, (number, metric)
        num_together = num_together + 1 if peer.world_size == 3 else 0
        if num_together == 10:
            break
        print("step", peer.last_step, peer.world_size)
    print("samples", peer.samples, loader.epoch)
"""
"""All peers end ten iterations after all three have a seat."""

MOST_TRIES = 2
"""A view with the joiner comes when members can give it a state, unless agreement takes longer than their wait."""


def test_a_joiner_has_its_seat_between_two_iterations_and_is_not_put_off_again_and_again(swarm: Swarm) -> None:
    peers = swarm.start_all(2, AVERAGE)
    peers[0].expect_step(40)
    peers.append(swarm.start(AVERAGE))
    assert [peer.end() for peer in peers] == [0, 0, 0], "\n".join(peer.report() for peer in peers)
    assert sum("comes back" in line for line in peers[2].stderr) < MOST_TRIES, peers[2].report()  # it took 5 and more
    assert len({peer.stdout[-1] for peer in peers}) == 1, "\n".join(peer.report() for peer in peers)
