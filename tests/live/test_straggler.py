"""A member that computes for long causes no new view, and shows where it is when it is asked.

There may be another cause: a view that began before all could read each other's memory starts again when they can.
"""

import signal

from p2p.step.receipts import read_receipts
from tests.live.swarm import Swarm, name

COMPUTE = """
import logging, os, threading
import numpy as np
from gossip import CoreConfig
from p2p.config import LoopConfig, PeerConfig
from p2p import Peer, join

def compute():
    print("computes")
    threading.Event().wait(2.5)  # five times as long as an operation may make no progress

logging.basicConfig(level=logging.INFO, format="%(message)s")
join(swarm="nobody").leave()  # sets the signal handlers
loop = LoopConfig(core=CoreConfig(stall_s=0.5))
with Peer(PeerConfig.from_environment(os.environ, loop=loop)) as peer:
    print("here", peer.peer_id)
    peer.wait_view()
    tensor = np.ones(1000, np.float32)
    with peer.step():
        peer.all_reduce(tensor)
        if peer.rank == 0:
            compute()
        peer.all_reduce(np.ones(1000, np.float32), op="max")
    print("end", peer.world_size)
"""


def test_a_member_that_computes_for_long_causes_no_view_change_and_tells_where_it_is(swarm: Swarm) -> None:
    peers = swarm.start_all(3, COMPUTE)
    straggler = peers[0]
    straggler.expect("computes")
    straggler.send_signal(signal.SIGUSR1)
    assert [peer.end() for peer in peers] == [0, 0, 0], "\n".join(peer.report() for peer in peers)
    receipts = read_receipts(swarm.receipts / f"{name(straggler)}.receipts.jsonl")
    assert [receipt.step for receipt in receipts] == [0, 1]
    assert [len(receipt.contributions) for receipt in receipts] == [3, 3]
    assert not any("stalled" in line for peer in peers for line in peer.stderr), straggler.report()
    assert any(line.endswith("in compute") for line in straggler.stderr), straggler.report()
    assert sum("hread 0x" in line for line in straggler.stderr) > 1, "all threads"
