"""Wrong calls of a peer with a device, and failing devices: the errors, and that no data are sent."""

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from p2p import DataParallel, DeviceLost, Peer, ShoalError
from p2p.device import MemoryShort
from p2p.training.state.replica_state import FlatState
from p2p.training.state.state_copies import StateCopies
from tests.p2p.staging.pair import play
from tests.p2p.staging.standin import StandIn

ONES = torch.ones(1, 2)


def trained(peer: Peer, **given: Any) -> tuple[nn.Linear, DataParallel, torch.optim.Optimizer]:
    """A model of two weights, whose gradients are those of `ONES`."""
    model = nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, DataParallel(peer, model, optimizer, **given), optimizer


def test_a_tensor_of_another_device_than_the_model_is_refused_and_both_are_named() -> None:
    def script(peer: Peer, device: StandIn) -> None:
        second = StandIn(1)
        peer._session.device_of = lambda tensor: (
            device.device_of(tensor) if not isinstance(tensor, torch.Tensor) or not tensor.is_meta else second
        )
        _, parallel, _ = trained(peer)
        elsewhere = torch.ones(3, device="meta")
        error = r"the tensor is on meta, and this peer has used cpu so far: a peer uses one device"
        with pytest.raises(ValueError, match=error):
            peer.all_reduce(elsewhere)
        with pytest.raises(ValueError, match="out is on meta, and the tensor on cpu"):
            peer.all_reduce(torch.ones(3), out=elsewhere)
        with pytest.raises(ValueError, match=error), peer.step(samples=1):  # the first of two is withdrawn
            peer.all_reduce(torch.ones(3))
            peer.all_gather(elsewhere)
        with pytest.raises(ValueError, match=r"the gradient of weight is .* on meta, but the parameter is .* on cpu"):
            parallel.reduce_gradients({"weight": torch.ones(1, 2, device="meta")})
        assert second.num_copies == 0 and peer.last_step == 0
        parallel(ONES).sum().backward()
        assert peer.last_step == 1

    play(script, seeds=[0])


def test_a_model_of_another_device_than_a_tensor_before_is_refused() -> None:
    def script(peer: Peer, device: StandIn) -> None:
        device_of = peer._session.device_of
        peer.all_reduce(torch.ones(3), commit=False)
        peer._session.device_of = lambda tensor: StandIn(1)
        with pytest.raises(ValueError, match="the model is on cpu, and this peer has used cpu so far"):
            trained(peer)
        peer._session.device_of = device_of
        peer.barrier()

    play(script, seeds=[0])


CALLS: dict[str, Callable[[Peer, Any, Any, Any], object]] = {
    "forward": lambda peer, model, parallel, optimizer: parallel(ONES),
    "skip_step": lambda peer, model, parallel, optimizer: parallel.skip_step(),
    "by hand": lambda peer, model, parallel, optimizer: parallel.reduce_gradients([torch.ones(1, 2)]),
    "all_reduce": lambda peer, model, parallel, optimizer: peer.all_reduce(torch.ones(3)),
    "all_gather": lambda peer, model, parallel, optimizer: peer.all_gather(torch.ones(3), async_op=True),
    "step": lambda peer, model, parallel, optimizer: optimizer.step(),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_while_a_graph_is_captured_is_refused_and_the_run_goes_on(name: str) -> None:
    def script(peer: Peer, device: StandIn) -> None:
        model, parallel, optimizer = trained(peer)
        parallel(ONES).sum().backward()
        copies, before = device.num_copies, model.weight.detach().clone()
        device.is_captured = True
        with pytest.raises(ShoalError, match="while a graph is captured"):
            CALLS[name](peer, model, parallel, optimizer)
        device.is_captured = False
        assert (device.num_copies, peer.last_step) == (copies, 1) and torch.equal(model.weight, before)
        optimizer.step()
        optimizer.zero_grad()
        parallel(ONES).sum().backward()
        assert peer.last_step == 2 and model.weight.grad is not None and model.weight.grad.tolist() == [[1.0, 1.0]]

    play(script, seeds=[0])


def test_a_backward_pass_while_a_graph_is_captured_sends_nothing() -> None:
    def script(peer: Peer, device: StandIn) -> None:
        model, parallel, _ = trained(peer)
        loss, copies = parallel(ONES).sum(), device.num_copies
        device.is_captured = True
        with pytest.raises(ShoalError, match="while a graph is captured"):
            loss.backward()
        device.is_captured = False
        assert model.weight.grad is None and (device.num_copies, peer.last_step) == (copies, 0)
        parallel(ONES).sum().backward()
        assert peer.last_step == 1

    play(script, seeds=[0])


@pytest.mark.parametrize("how", ["wait", "handle", "block"])
def test_the_end_of_a_step_while_a_graph_is_captured_is_refused_and_may_come_later(how: str) -> None:
    def script(peer: Peer, device: StandIn) -> None:
        peer.wait_view()
        tensor = torch.arange(3.0)
        if how == "block":
            with pytest.raises(ShoalError, match="while a graph is captured"), peer.step(samples=1):
                peer.all_reduce(tensor)
                device.is_captured = True
        else:
            handle = peer.all_reduce(tensor, async_op=True)
            device.is_captured = True
            assert handle is not None
            with pytest.raises(ShoalError, match="while a graph is captured"):
                (peer.wait if how == "wait" else handle.wait)()
        device.is_captured = False
        assert peer.last_step == 0
        if how == "block":  # the step is withdrawn
            peer.all_reduce(tensor)
        peer.wait()
        assert peer.last_step == 1 and tensor.tolist() == [0, 1, 2]

    play(script, seeds=[0])


def test_backward_in_another_thread_is_refused_unless_that_goes_without_threads_of_autograd() -> None:
    def script(peer: Peer, device: StandIn) -> None:
        model, parallel, _ = trained(peer)
        loss, copies, raised = parallel(ONES).sum(), device.num_copies, []

        def call() -> None:
            try:
                loss.backward()
            except ShoalError as error:
                raised.append(str(error))

        thread = threading.Thread(target=call, name="another")
        thread.start()
        thread.join()
        (said,) = raised
        assert said.startswith("backward was called in thread 'another' and would continue in threads of autograd")
        assert "call `torch.autograd.set_multithreading_enabled(False)`" in said
        assert model.weight.grad is None and (device.num_copies, peer.last_step) == (copies, 0)
        parallel(ONES).sum().backward()
        assert peer.last_step == 1

    play(script, seeds=[0])


def test_buckets_that_do_not_fit_are_refused_at_construction_with_bytes_asked_for_and_free() -> None:
    def script(peer: Peer, device: StandIn) -> None:
        device.capacity = 1000
        model = nn.Sequential(nn.Linear(20, 10, bias=False), nn.Linear(10, 20, bias=False))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        error = (
            "the buckets of gradients, 1600 bytes in all, do not fit on cpu, where 800 bytes were .*, and 200 are free"
        )
        with pytest.raises(ShoalError, match=error):
            DataParallel(peer, model, optimizer, bucket_bytes=800)
        device.capacity = 1600
        DataParallel(peer, model, optimizer, bucket_bytes=800)(torch.ones(1, 20)).sum().backward()
        assert peer.last_step == 1

    play(script, seeds=[0])


class Tables(nn.Module):
    """A table with sparse gradients, and one that is used similarly."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.other = nn.Embedding(5, 2, sparse=True), nn.Parameter(torch.ones(5, 2))

    def forward(self, rows: torch.Tensor, *, is_sparse: bool) -> torch.Tensor:
        other = nn.functional.embedding(rows, self.other, sparse=is_sparse)
        total: torch.Tensor = (self.table(rows) + other).sum()
        return total


def test_sparse_gradients_of_tables_are_averaged_and_others_are_refused_by_name() -> None:
    def script(peer: Peer, device: StandIn) -> None:
        model, rows = Tables(), torch.tensor([1, 3, 3])
        parallel = DataParallel(peer, model, torch.optim.SGD(model.parameters(), lr=0.1))
        with pytest.raises(
            TypeError, match=r"the gradient of other is torch\.sparse_coo, which is averaged only for embeddings"
        ):
            parallel(rows, is_sparse=True).backward()
        assert peer.last_step == 0
        parallel(rows, is_sparse=False).backward()
        found = model.table.weight.grad
        assert found is not None and found.is_sparse and peer.last_step == 1
        assert found.to_dense().tolist() == [[0, 0], [1, 1], [0, 0], [2, 2], [0, 0]]

    play(script, seeds=[0])


Fail = Callable[[Peer, StandIn, DataParallel], None]


def fails_in_fetch(peer: Peer, device: StandIn, parallel: DataParallel) -> None:
    loss = parallel(ONES * 2).sum()
    device.lose()
    loss.backward()


def fails_in_store(peer: Peer, device: StandIn, parallel: DataParallel) -> None:
    store = device.store

    def fail(*given: Any, **named: Any) -> Any:
        device.lose()
        return store(*given, **named)

    device.store = fail  # type: ignore[method-assign]
    parallel(ONES * 2).sum().backward()


def fails_in_a_call(peer: Peer, device: StandIn, parallel: DataParallel) -> None:
    fetch = device.fetch

    def fail(*given: Any, **named: Any) -> Any:
        mark = fetch(*given, **named)
        device.lose()
        return mark

    device.fetch = fail  # type: ignore[method-assign]
    peer.all_reduce(torch.ones(3))


@pytest.mark.parametrize("fail", [fails_in_fetch, fails_in_store, fails_in_a_call])
def test_a_peer_whose_device_fails_leaves_at_once_and_the_others_go_on(fail: Fail) -> None:
    devices: dict[int, StandIn] = {}
    is_over = threading.Event()

    def make(seed: int) -> StandIn:
        devices[seed] = StandIn(seed)
        return devices[seed]

    def script(peer: Peer, device: StandIn) -> None:
        model, parallel, optimizer = trained(peer)
        for step in range(1, 6):
            optimizer.zero_grad()
            if device is devices[0] and step == 2:
                with pytest.raises(
                    DeviceLost, match=r"so it leaves, and the others continue: CUDA error: .* encountered$"
                ):
                    fail(peer, device, parallel)
                assert is_over.wait(20.0)  # the other peer continues although this script does not end
                with pytest.raises(DeviceLost):
                    peer.barrier()
                return
            parallel(ONES * step).sum().backward()
            optimizer.step()
            assert model.weight.grad is not None and model.weight.grad.tolist() == [[step, step]]
        assert peer.receipt is not None
        assert (peer.last_step, len(peer.receipt.contributions)) == (5, 1)
        is_over.set()

    play(script, make=make)


def _add_and_fail(device: StandIn, add: Callable[..., Any], *given: Any, **named: Any) -> Any:
    mark = add(*given, **named)
    device.lose()
    return mark


def test_a_peer_whose_device_fails_in_a_sum_leaves_and_the_others_go_on() -> None:
    devices: dict[int, StandIn] = {}

    def make(seed: int) -> StandIn:
        devices[seed] = StandIn(seed)
        return devices[seed]

    def script(peer: Peer, device: StandIn) -> None:
        peer.wait_view()
        device.refuses_every, counted = 0, 3
        while counted == 3:
            if device is devices[0] and device.adder.num_sums:
                device.adder.add = partial(_add_and_fail, device, device.adder.add)  # type: ignore[method-assign]
            tensor = torch.ones(300)
            try:
                peer.all_reduce(tensor, algorithm="direct")
            except DeviceLost:
                assert device is devices[0] and (tensor == 1).all()
                return
            assert peer.receipt is not None
            counted = len(peer.receipt.contributions)
            assert (tensor == counted).all() and counted in (2, 3)
        assert device is not devices[0]

    play(script, seeds=range(3), make=make, device_adds=True)


def test_an_adder_without_memory_leaves_sums_to_the_host_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    def script(peer: Peer, device: StandIn) -> None:
        peer.wait_view()
        device.refuses_every, is_short = 0, False
        while peer.combine(float(is_short), samples=1)[0] < 1.0:
            is_short = device.adder.num_sums > 0
            device.adder.room = 100 if is_short else device.adder.room
            tensor = torch.ones(300)
            peer.all_reduce(tensor, algorithm="direct")
            assert (tensor == 2).all()
        num_sums = device.adder.num_sums
        peer.all_reduce(torch.ones(300), algorithm="direct")
        assert device.adder.num_sums == num_sums > 0

    with caplog.at_level(logging.WARNING):
        play(script, device_adds=True)
    said = [record.getMessage() for record in caplog.records if "the host adds from now on" in record.getMessage()]
    assert len(said) == 2 and all("bytes were asked for, and 100 are free" in each for each in said)


def test_a_state_that_a_device_could_not_copy_is_not_given_and_ends_its_peer() -> None:
    device, told = StandIn(0), list[DeviceLost]()
    copies = StateCopies(device, device.device_of, [np.empty(100, np.uint8) for _ in range(2)], told=told.append)
    tensors, mark = [torch.ones(500)], device.mark()
    device.lose()
    state = copies.begin(FlatState(b"a tree", tensors), mark, lambda: None)
    with pytest.raises(DeviceLost, match="an illegal memory access"):
        copies.order_after_copies()
    assert len(told) == 1 and state.is_whole is not None and not state.is_whole()
    copies.end()


def test_a_state_for_whose_copy_there_is_no_thread_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    device = StandIn(0)
    copies = StateCopies(device, device.device_of, [np.empty(100, np.uint8) for _ in range(2)])

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="new thread"):  # a donor catches and reports it
        copies.aside(lambda: None, lambda: None, lambda: None)
    copies.order_after_copies()
    copies.end()


def test_a_state_for_which_the_device_has_no_memory_is_not_given_and_its_peer_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    device, told = StandIn(0), list[DeviceLost]()
    copies = StateCopies(device, device.device_of, [np.empty(100, np.uint8) for _ in range(2)], told=told.append)
    tensors = [torch.ones(500), torch.ones(500, 2)[:, 0]]
    device.watched = lambda: tensors
    device.capacity = 1999
    with caplog.at_level(logging.WARNING, logger="p2p"):
        short = copies.begin(FlatState(b"a tree", tensors), device.mark(), lambda: None)
        copies.order_after_copies()
        tensors[0].fill_(2)  # an update
        copies.end()
    assert short.is_whole is not None and told == []
    with pytest.raises(MemoryShort):
        short.is_whole()
    assert len(caplog.messages) == 1 and "2000 bytes were asked for, and 1999 are free" in caplog.text
    device.capacity = 2000
    whole = copies.begin(FlatState(b"a tree", tensors), device.mark(), lambda: None)
    copies.end()
    assert whole.is_whole is not None and whole.is_whole()
    assert bytes(whole.tensors[0]) == tensors[0].numpy().tobytes()


def test_a_peer_whose_device_could_not_copy_its_state_ends_with_the_error_of_the_device() -> None:
    """An interrupted peer waits for copies in progress; here a failed copy is the cause of the interruption."""

    def script(peer: Peer, device: StandIn) -> None:
        _, parallel, _ = trained(peer)
        parallel(ONES).sum().backward()
        membership = peer._session.membership
        copies = membership.replica.copies
        assert isinstance(copies, StateCopies)
        tensors, mark = [torch.ones(500)], device.mark()
        device.lose()
        copies.begin(FlatState(b"a tree", tensors), mark, lambda: None)
        with pytest.raises(DeviceLost, match="an illegal memory access"):
            copies.order_after_copies()
        assert isinstance(membership.unusable, DeviceLost)

    play(script, seeds=[0])


def test_a_peer_whose_device_was_lost_between_two_steps_leaves_and_lets_go_of_all() -> None:
    def script(peer: Peer, device: StandIn) -> None:
        _, parallel, _ = trained(peer)
        parallel(ONES).sum().backward()
        loop = peer._session.loop
        device.lose()
        peer.leave()
        assert loop.reactor.ended.is_set() and loop.resources.host_memory._arena is None

    play(script, seeds=[0])
