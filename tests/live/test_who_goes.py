"""Real peers that differ in calls or parameters, and which of them go."""

import pytest

from tests.cases import some_of
from tests.live.swarm import Process, Swarm

pytestmark = [pytest.mark.torch, pytest.mark.light]

TRAINING = """
import select, sys
import torch
import p2p

def told():
    ready, _, _ = select.select([sys.stdin], [], [], 0.002)
    return sys.stdin.readline().strip() if ready else ""

def train(peer, odd):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.randn(400, 4)
    dataset = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
    replica = p2p.DataParallel(peer, model, optimizer)
    loader = peer.loader(dataset, global_batch=10, epochs=1000)
    word, is_over = "", False
    for _ in loader.epochs():
        for x, y in loader:
            loss = (replica(x) - y).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            word = word or told()
            if is_over := odd(peer, model, word):
                break
        if is_over:
            break
    print("end", peer.done, peer.world_size, model.weight.sum().item())

torch.set_num_threads(1)
"""

METRICS = f"""{TRAINING}
offset, size = map(int, sys.argv[1:])

def count(peer, model, word):
    if (peer.done + (offset if peer.world_size == size else 0)) % 10:
        return False
    metric = torch.tensor([1.0, float(word == "stop")])
    peer.all_reduce(metric)
    print("metric", peer.done, peer.world_size)
    return bool(metric[1])

with p2p.join() as peer:
    print("here", peer.peer_id)
    train(peer, count)
"""
"""Every tenth step has a common metric. With an offset it comes at other steps, once there are enough members."""

MIDLOAD = f"""{TRAINING}
chosen, last = sys.argv[1], int(sys.argv[2])
is_odd = False

def load(peer, model, word):
    global is_odd
    is_chosen = chosen == word or (peer.done == 5 and chosen == str(peer.rank))
    if is_chosen and not is_odd:
        is_odd = True
        with torch.no_grad():
            model.weight.zero_()
        print("odd", peer.done)
    if peer.done % 10 == 0:
        print("size", peer.world_size)
    if peer.done == 10 and "waits" in sys.argv:
        sys.stdin.readline()
    return peer.done == last

with p2p.join() as peer:
    print("here", peer.peer_id)
    train(peer, load)
"""
"""After step 5 the peer of the given rank, or with the given word, loses its weights. The run's length is given."""


SLOW = f"""{TRAINING}
import time
is_slow, last = sys.argv[1] == "slow", 0

def count(peer, model, word):
    global is_slow, last
    if is_slow and 0 < last < peer.done - 1:
        is_slow = False
        print("was given a state")
    until = time.monotonic() + 0.1
    while is_slow and time.monotonic() < until:
        pass
    metric = torch.tensor([1.0, float(word == "stop")])
    peer.all_reduce(metric)
    last = peer.done
    print("metric", peer.done, peer.world_size)
    return bool(metric[1])

with p2p.join() as peer:
    print("here", peer.peer_id)
    train(peer, count)
"""
"""A common metric follows every step, and the state arrives while a slow peer still computes before it."""


def ends_alone(odd: Process) -> None:
    """Check that the peer prints both sides' calls, in the script's terms, and what to do."""
    assert odd.end() == 1, odd.report()
    (line,) = [line for line in odd.stderr if line.startswith("shoal: operation ")]
    assert "; this peer has left, the run continues: call the same operation on every peer" in line, line
    assert "`peer.done`" in line and "a training step on 400 samples (TensorDataset" in line, line
    assert "all_reduce sum of float32 [2]" in line and "int64" not in line, line


@pytest.mark.parametrize(("num_founders", "num_joiners"), some_of([(2, 1), (1, 1), (1, 2)], 2))
def test_joiners_that_count_by_themselves_end_only_themselves(
    swarm: Swarm, num_founders: int, num_joiners: int
) -> None:
    size = num_founders + num_joiners
    founders = swarm.start_all(num_founders, METRICS, "0", "0")
    for each in founders:
        each.expect("metric")
    joiners = [swarm.start(METRICS, "5", str(size)) for _ in range(num_joiners)]
    for each in joiners:
        ends_alone(each)
    step = max(int(line.split()[1]) for line in founders[0].stdout if line.startswith("metric"))
    founders[0].expect_line(rf"metric {step + 20} {num_founders}")
    founders[0].tell("stop")
    for each in founders:
        assert each.end() == 0, each.report()
        assert each.stdout[-1].startswith("end") and not each.complaints(), each.report()


def test_a_joiner_that_is_slow_is_given_the_results_of_operations_before_it_loads_a_state(swarm: Swarm) -> None:
    (founder,) = swarm.start_all(1, SLOW, "fast")
    founder.expect("metric")
    joiner = swarm.start(SLOW, "slow")
    joiner.expect("was given a state")
    joiner.expect_line(r"metric \d+ 2")
    founder.tell("stop")
    for each in (founder, joiner):
        assert each.end() == 0, each.report()


def comes_back(peers: list[Process], odd: Process) -> None:
    """Check that the peer loads the parameters of the members that stay, which print nothing."""
    odd.expect_line(".*continue without it; this peer, .*, comes back", is_error=True)
    assert [each.end() for each in peers] == [0] * len(peers), "\n".join(each.report() for each in peers)
    ends = [each.expect("end").split() for each in peers]
    assert len({(done, weights) for _, done, _, weights in ends}) == 1, ends
    assert not any(each.complaints() for each in peers if each is not odd)


@pytest.mark.parametrize("attempt", some_of(range(3), 0))
def test_two_founders_whose_parameters_differ_both_raise(swarm: Swarm, attempt: int) -> None:
    peers = swarm.start_all(2, MIDLOAD, str(attempt % 2), "400")
    assert [each.end() for each in peers] == [1, 1], "\n".join(each.report() for each in peers)
    for each in peers:
        (line,) = [line for line in each.stderr if line.startswith("shoal: ")]
        assert line.startswith("shoal: parameters of step ") and "is not committed" in line, line


@pytest.mark.parametrize("rank", some_of([0, 1], 1))
def test_one_of_three_founders_with_other_parameters_comes_back_for_those_of_the_others(
    swarm: Swarm, rank: int
) -> None:
    peers = swarm.start_all(3, MIDLOAD, str(rank), "300")
    for each in peers:
        each.expect("size 3")
    (odd,) = [each for each in peers if any(line.startswith("odd") for line in each.stdout)]
    comes_back(peers, odd)


@pytest.mark.long
def test_a_joiner_whose_parameters_differ_from_the_founders_loads_these(swarm: Swarm) -> None:
    (founder,) = swarm.start_all(1, MIDLOAD, "nobody", "600", "waits")
    founder.expect("size")
    joiner = swarm.start(MIDLOAD, "odd", "600")
    joiner.expect("here")
    founder.tell("go on")
    founder.expect("size 2")
    joiner.tell("odd")
    joiner.expect("odd")
    comes_back([founder, joiner], joiner)
