"""All peers name the same slow member, which leaves if it is configured to."""

from collections import Counter

import pytest

from p2p.step.receipts import read_receipts
from p2p.step.stragglers import WINDOW
from tests.live.swarm import Swarm, name

pytestmark = [pytest.mark.torch, pytest.mark.light]

TRAIN = """
import sys, time
import torch
import p2p

torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with p2p.join(slow_peers=sys.argv[1], slow_factor=2.5) as peer:
    print("here", peer.peer_id)
    parallel = p2p.DataParallel(peer, model, optimizer)
    num_slow, num_without = int(sys.argv[2]), 0
    for x in peer.loader(torch.randn(2400, 4), global_batch=12):
        if num_slow:
            num_slow -= 1
            time.sleep(0.08)  # what its step costs here; nothing waits for it but the others' steps
        optimizer.zero_grad()
        parallel(x).square().mean().backward()
        optimizer.step()
        slowest = peer.status()["slowest"]
        print("step", peer.done, peer.world_size, slowest or "nobody")
        num_without += peer.world_size < 3
        if "others" in sys.argv and num_without == 3:  # what the slow one had in hand is counted by then
            break
    print("end")
"""

SLOW_STEPS = 45


@pytest.mark.long
def test_a_slow_peer_is_named_once_by_all_alike_and_is_slow_no_more_when_it_has_caught_up(swarm: Swarm) -> None:
    peers = [swarm.start(TRAIN, "name", number, min_peers=3) for number in ("0", "0", str(SLOW_STEPS))]
    slow = peers[2]
    assert [peer.end() for peer in peers] == [0, 0, 0], slow.report()
    said = f"peer {name(slow)} is the slowest: its compute is "
    named = [[line for line in peer.stdout if said in line] for peer in peers[:2]]
    assert named[0] == named[1] and len(named[0]) >= 20, "the same verdict at all, after the same steps"
    verdicts = [line for line in peers[0].stdout if line.startswith("step ")]
    assert any(line.endswith("nobody") for line in verdicts[SLOW_STEPS + WINDOW :]), (
        "a busy host may make it slow again"
    )
    oldest = read_receipts(swarm.receipts / f"{name(slow)}.receipts.jsonl")[1].contributions[0].peer_id
    warned = [sum(said in line for line in peer.stderr) for peer in peers]
    assert warned == [int(name(peer) in (oldest, name(slow))) for peer in peers], (
        "rank 0 says so, and who is slow; once"
    )


@pytest.mark.long
def test_a_slow_peer_leaves_if_it_was_told_to_and_no_sample_is_lost(swarm: Swarm) -> None:
    peers = [swarm.start(TRAIN, "leave", number, "others", min_peers=3) for number in ("0", "0", "100000")]
    slow = peers[2]
    slow.expect("here")
    other = swarm.start(TRAIN, "name", "0", "others")
    assert other.end() == 1
    assert other.stderr[-1] == (
        "shoal: it does not train as they do: slow_peers=name from 2.5 times the others on here, "
        "slow_peers=leave from 2.5 times the others on in the swarm"
    )
    assert slow.end() == 4, slow.report()
    assert "slow_peers is `leave`, so it leaves, and the others continue without it" in slow.stderr[-1]
    assert [peer.end() for peer in peers[:2]] == [0, 0], peers[0].report()
    files = swarm.receipt_files()
    assert files[name(peers[0])] == files[name(peers[1])]
    receipts = read_receipts(swarm.receipts / f"{name(peers[0])}.receipts.jsonl")[1:]
    assert [len(receipt.contributions) for receipt in receipts] == [3] * (len(receipts) - 3) + [2] * 3
    used = Counter(
        p for r in receipts for c in r.contributions for first, n in c.samples for p in range(first, first + n)
    )
    assert used == dict.fromkeys(range(len(used)), 1)
