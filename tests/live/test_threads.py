"""Training from permitted threads, several in turn, and from others, where it raises and says why."""

import pytest

from tests.live.swarm import Swarm

pytestmark = [pytest.mark.torch, pytest.mark.light]

START = """
import os, sys, threading
from concurrent.futures import ThreadPoolExecutor
import torch
import p2p

torch.manual_seed(0)
first, second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
module = torch.nn.Sequential(first, torch.nn.Tanh(), second)
optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
at_hidden = lambda gradient: None

def watch(module, arguments, hidden):
    if hidden.requires_grad:
        hidden.register_hook(lambda gradient: at_hidden(gradient))

first.register_forward_hook(watch)

def loss_of(model):
    return (model(torch.ones(2, 4)) ** 2).mean()

def gradients():
    return [parameter.grad.clone() for parameter in module.parameters()]

loss_of(module).backward()
expected = gradients()
optimizer.zero_grad()
"""

IN_THE_MIDDLE = (
    START
    + """
def evaluate():
    with torch.no_grad():
        model(torch.ones(2, 4))

def try_all(*calls):
    global at_hidden
    at_hidden = lambda gradient: None
    for call in calls:
        try:
            call()
        except p2p.ShoalError as error:
            print("refused", error)

def in_thread(*calls):
    thread = threading.Thread(target=try_all, args=calls, name="other")
    thread.start()
    thread.join()

with p2p.join() as peer:
    print("here", peer.peer_id)
    model = p2p.DataParallel(peer, module, optimizer)
    model.num_samples(2)
    prepared = loss_of(model)
    at_hidden = lambda gradient: in_thread(lambda: loss_of(model), evaluate)
    with model.no_sync():
        loss_of(model).backward()
    at_hidden = lambda gradient: in_thread(
        lambda: peer.all_reduce(torch.ones(2)), lambda: loss_of(model), evaluate, prepared.backward
    )
    loss_of(model).backward()
    print("end", peer.last_step, all(torch.allclose(2 * mine, other) for mine, other in zip(expected, gradients())))
"""
)


def test_what_another_thread_calls_in_the_middle_of_a_backward_pass_raises_and_the_pass_is_as_it_was(
    swarm: Swarm,
) -> None:
    peer = swarm.start(IN_THE_MIDDLE)
    assert peer.end() == 0, peer.report()
    refusals = [line for line in peer.stdout if line.startswith("refused")]
    assert all("in thread 'other', and loss.backward in thread 'MainThread'" in line for line in refusals)
    calls = [line.split(" was called in thread ")[0].removeprefix("refused ") for line in refusals]
    assert calls == ["a forward pass"] * 2 + ["peer.all_reduce", "a forward pass", "a forward pass", "loss.backward"]
    assert peer.stdout[-1] == "end 1 True", peer.report()


ONE_AFTER_THE_OTHER = (
    START
    + """
def run(backward):
    loss = loss_of(model)
    backward(loss)
    optimizer.step()

def fail(gradient):
    raise ValueError("in backward")

with p2p.join() as peer, ThreadPoolExecutor(1) as pool:
    print("here", peer.peer_id)
    model = p2p.DataParallel(peer, module, optimizer)
    model.num_samples(2)
    run(lambda loss: pool.submit(loss.backward).result())
    run(lambda loss: loss.backward())
    pool.submit(run, lambda loss: loss.backward()).result()
    at_hidden = fail
    for begin, go_on in ((pool.submit(loss_of, model).result, None), (lambda: loss_of(model), pool)):
        at_hidden = fail
        try:
            (pool.submit(begin().backward).result if go_on is None else begin().backward)()
        except ValueError as error:
            print("raised", error)
        at_hidden = lambda gradient: None
        (run if go_on is None else lambda backward: pool.submit(run, backward).result())(lambda loss: loss.backward())
    print("end", peer.last_step, [entry.num_samples for entry in peer.receipt.contributions])
"""
)


def test_threads_train_one_after_the_other_also_after_a_pass_that_raised_in_one(swarm: Swarm) -> None:
    peer = swarm.start(ONE_AFTER_THE_OTHER)
    assert peer.end() == 0, peer.report()
    assert peer.stdout[1:] == ["raised in backward"] * 2 + ["end 5 [2]"], peer.report()


IN_A_FORK = (
    START
    + """
with p2p.join() as peer:
    print("here", peer.peer_id)
    model = p2p.DataParallel(peer, module, optimizer)
    prepared = loss_of(model)
    child = os.fork()
    if not child:
        for call in (lambda: loss_of(model), prepared.backward, lambda: p2p.DataParallel(peer, module, optimizer)):
            try:
                call()
            except p2p.ShoalError as error:
                print("refused", error)
        with torch.no_grad():
            print("evaluated", loss_of(model).item() > 0)
        os._exit(7)
    print("ended", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    prepared.backward()
    print("end", peer.last_step)
"""
)


def test_a_model_trains_in_no_forked_child(swarm: Swarm) -> None:
    peer = swarm.start(IN_A_FORK)
    assert peer.end() == 0, peer.report()
    *refusals, evaluated, ended, end = peer.stdout[1:]
    calls = [line.split(" was called in process ")[0] for line in refusals]
    assert calls == ["refused a forward pass", "refused loss.backward", "refused p2p.DataParallel"], peer.report()
    assert (evaluated, ended, end) == ("evaluated True", "ended 7", "end 1")


AFTER_LEAVING = (
    START
    + """
with p2p.join() as peer:
    print("here", peer.peer_id)
    model = p2p.DataParallel(peer, module, optimizer)
    prepared = loss_of(model)
for call in prepared.backward, lambda: p2p.DataParallel(peer, module, optimizer):
    try:
        call()
    except p2p.ShoalError as error:
        print(type(error).__name__, error)
print("end", peer.last_step)
"""
)


def test_a_backward_pass_after_leaving_says_that_the_peer_has_left(swarm: Swarm) -> None:
    peer = swarm.start(AFTER_LEAVING)
    assert peer.end() == 0, peer.report()
    told = "ShoalError this peer has left its swarm: call `p2p.join` to join as another peer"
    assert peer.stdout[1:] == [told] * 2 + ["end 0"], peer.report()
