"""Cases for the peers of tests/live/test_data_parallel.py: each trains, and compares with one process."""

import copy
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

import p2p
from p2p import DataParallel, Peer
from tests.p2p.staging.standin import StandIn

Case = Callable[[Peer], None]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


def wrap(peer: Peer, model: nn.Module, optimizer: torch.optim.Optimizer, **options: Any) -> Any:
    """`DataParallel` with a bucket per parameter. (autograd's `backward` has no types, hence Any.)"""
    return DataParallel(peer, model, optimizer, **{"bucket_bytes": 8, "state_digest": "all", **options})


def linear() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def gradients(model: nn.Module, loss: Any) -> list[Tensor]:
    """The gradients of a loss of `model`; zeros for unused parameters."""
    parameters = list(model.parameters())
    return list(torch.autograd.grad(loss, parameters, retain_graph=True, materialize_grads=True))


def assert_gradients(model: nn.Module, expected: list[Tensor], atol: float = 1e-6) -> None:
    for (name, parameter), gradient in zip(model.named_parameters(), expected, strict=True):
        assert parameter.grad is not None
        assert torch.allclose(parameter.grad, gradient, rtol=1e-4, atol=atol), (name, parameter.grad, gradient)


def assert_same_everywhere(peer: Peer, values: Tensor) -> None:
    """Assert that `values` are equal at all peers, bit by bit."""
    least, greatest = values.detach().clone(), values.detach().clone()
    peer.all_reduce(least, op="min")
    peer.all_reduce(greatest, op="max")
    assert torch.equal(least, greatest), (least, greatest)


def raises(kind: type[Exception], words: str, call: Callable[[], object]) -> None:
    try:
        call()
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"no {kind.__name__} that says {words!r}")


@case
def no_sync_sums_in_grad_and_counts_all_samples(peer: Peer) -> None:
    model, optimizer = linear()
    parallel = wrap(peer, model, optimizer)
    sizes = [(3, 1), (2, 2)]  # per peer, its two passes
    mine = sizes[peer.rank]
    inputs = torch.randn(3, 2, 2, 3, 4)  # step, peer, pass, sample
    for step, x in enumerate(inputs):

        def loss_of(used: Any, peer_index: int, index: int, x: Tensor = x) -> Any:
            y = used(x[peer_index, index, : sizes[peer_index][index]])
            return y[:, : 2 - index].square().mean()  # not all passes use all rows of the last layer

        expected = [torch.zeros_like(p) for p in model.parameters()]
        for index, share in enumerate(sizes):
            for each in range(2):
                for total, g in zip(expected, gradients(model, loss_of(model, index, each)), strict=True):
                    total += g * (sum(share) / 8)
        optimizer.zero_grad(set_to_none=bool(step % 2))
        with parallel.no_sync():
            parallel.num_samples(mine[0])
            loss_of(parallel, peer.rank, 0).backward()
        assert not parallel.has_committed
        raises(p2p.ShoalError, "between the passes", optimizer.step)
        parallel.num_samples(mine[1])
        loss_of(parallel, peer.rank, 1).backward()
        assert parallel.has_committed
        assert_gradients(model, expected)
        optimizer.step()
        assert peer.receipt is not None
        assert [entry.num_samples for entry in peer.receipt.contributions] == [4, 4]


@case
def what_only_the_first_pass_reaches_is_summed_too(peer: Peer) -> None:
    model, optimizer = linear()
    parallel = wrap(peer, model, optimizer)
    x = torch.randn(2, 5, 4)

    def losses(part: Tensor) -> tuple[Any, Any]:
        y = parallel(part)
        return y.square().mean(), model.get_parameter("2.bias").square().sum()  # the second: one parameter only

    (many_0, one_0), (many_1, one_1) = ([gradients(model, loss) for loss in losses(part)] for part in x)
    first, second = losses(x[peer.rank])
    with parallel.no_sync():
        first.backward(retain_graph=True)
        first.backward()
    second.backward()
    sums = zip(many_0, many_1, one_0, one_1, strict=True)
    assert_gradients(model, [many + many_too + (one + one_too) / 2 for many, many_too, one, one_too in sums])


@case
def micro_batches_of_a_slice_train_as_one_batch(peer: Peer) -> None:
    data = torch.randn(50, 4), torch.randn(50, 3)
    model, optimizer = linear()
    alone = copy.deepcopy(model)
    optimizer_alone = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9)
    parallel = wrap(peer, model, optimizer)
    seen: list[int] = []
    sizes = set()
    places = torch.arange(50)
    for x, y, place in peer.loader(TensorDataset(*data, places), global_batch=11, max_local_batch=2):
        loss: Any = functional.mse_loss(parallel(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        sizes.add(len(x))
        seen += place.tolist()
        if parallel.has_committed:
            used = torch.zeros(50, dtype=torch.int64)
            used[seen] = 1
            peer.all_reduce(used)
            assert used.max() == 1
            chosen = used.nonzero()[:, 0]
            optimizer_alone.zero_grad()
            loss = functional.mse_loss(alone(data[0][chosen]), data[1][chosen])
            loss.backward()
            nn.utils.clip_grad_norm_(alone.parameters(), 1.0)
            optimizer_alone.step()
            seen = []
    assert sizes == {1, 2} and peer.receipt is not None
    for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5), (ours, theirs)


@case
def parameters_of_all_types_are_averaged(peer: Peer) -> None:
    dtypes = [torch.float32, torch.bfloat16, torch.float64, torch.float32, torch.float16, torch.bfloat16]
    model = nn.ParameterList([nn.Parameter(torch.randn(7, 3).to(dtype)) for dtype in dtypes])
    parallel = DataParallel(peer, model, torch.optim.SGD(model.parameters(), lr=0.1), bucket_bytes=100)
    parallel.num_samples(3 if peer.rank == 0 else 1)
    for _ in range(2):
        loss: Any = torch.stack([(p.double() * (peer.rank * 4 + i)).sum() for i, p in enumerate(model)]).sum()
        parallel._session.state_is_complete()
        loss.backward()
        for i, parameter in enumerate(model):
            assert parameter.grad is not None and parameter.grad.dtype == parameter.dtype
            assert torch.equal(parameter.grad, torch.full_like(parameter, i + 1))
        assert_same_everywhere(peer, torch.cat([p.grad.double().flatten() for p in model if p.grad is not None]))
        for parameter in model:
            parameter.grad = None


@case
def running_statistics_are_averaged_over_samples(peer: Peer) -> None:
    norm, frozen = nn.BatchNorm1d(5), nn.BatchNorm1d(3)
    model: Any = nn.Sequential(nn.Linear(4, 5), norm, nn.Linear(5, 3), frozen)
    state_of_frozen = copy.deepcopy(frozen.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parallel = wrap(peer, model, optimizer)
    frozen.eval()
    counts = [5, 3]
    parallel.num_samples(counts[peer.rank])

    def statistics(used: Any) -> Tensor:
        return torch.cat([used[1].running_mean, used[1].running_var])

    replicas = [copy.deepcopy(model) for _ in counts]
    for x in torch.randn(3, 2, 5, 4):
        for i, replica in enumerate(replicas):
            replica(x[i, : counts[i]])
        mean = (statistics(replicas[0]) * 5 + statistics(replicas[1]) * 3) / 8
        optimizer.zero_grad()
        parallel(x[peer.rank, : counts[peer.rank]]).square().mean().backward()
        optimizer.step()
        assert torch.allclose(statistics(model), mean, rtol=1e-5), (statistics(model), mean)
        assert_same_everywhere(peer, statistics(model))
        for replica in replicas:
            replica.load_state_dict(model.state_dict())
    assert all(
        torch.equal(value, state_of_frozen[name]) for name, value in frozen.state_dict().items() if "r" in name[0]
    )
    with parallel.no_sync():
        for _ in range(peer.rank):
            parallel(torch.randn(5, 4)).mean().backward()
    parallel(torch.randn(5, 4)).mean().backward()
    assert norm.num_batches_tracked == 5  # the greatest: 3 before, 1 of rank 0, 2 of rank 1


@case
def a_scaler_finds_the_same_everywhere(peer: Peer) -> None:
    model, optimizer = linear()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=2)
    parallel = wrap(peer, model, optimizer, extra=[scaler])
    before = copy.deepcopy(model.state_dict())
    scales = []
    for x in torch.randn(5, 2, 6, 4):
        optimizer.zero_grad(set_to_none=False)
        with torch.autocast("cpu", torch.bfloat16):
            loss = parallel(x[peer.rank] * (1000.0 if peer.rank else 1.0)).float().square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        assert_same_everywhere(peer, torch.tensor(scaler.get_scale(), dtype=torch.float64))
        if len(scales) == 1:
            assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
            scaler.update(2.0**10)
    assert scales[0] < 2.0**127 and scales[-1] > 2.0**10
    assert not torch.equal(model.get_parameter("0.weight"), before["0.weight"])
    raises(ValueError, "GradScaler", lambda: wrap(peer, model, optimizer, extra=[scaler], nonfinite="skip"))


@case
def who_raises_in_backward_goes_on_without_its_samples(peer: Peer) -> None:
    model, optimizer = linear()
    parallel = wrap(peer, model, optimizer)
    data = torch.rand(60, 4), torch.zeros(60, 3)
    fails_at = {2: ("0.bias", True), 4: ("2.weight", False), 5: ("2.weight", True)} if peer.rank == 1 else {}
    counted = []

    def fail(parameter: nn.Parameter) -> None:
        name, when_last = fails_at.get(peer.done + 1, ("", False))
        if name and parameter is model.get_parameter(name) and peer._session.share.parts.is_last == when_last:
            del fails_at[peer.done + 1]
            raise RuntimeError("no memory, say")

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(fail)  # type: ignore[no-untyped-call]
    for x, y in peer.loader(TensorDataset(*data), global_batch=10, max_local_batch=3):
        optimizer.zero_grad()
        try:
            functional.mse_loss(parallel(x), y).backward()  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            assert "no memory" in str(error)
            if peer.done + 1 != 5:
                continue
        optimizer.step()  # in step 5 although backward raised: there are no gradients
        if parallel.has_committed:
            assert peer.receipt is not None
            counted.append([entry.num_samples for entry in peer.receipt.contributions])
    assert not fails_at
    assert sum(map(sum, counted)) == 60, counted
    assert [bool(row[1]) for row in counted[:6]] == [True, False, True, False, False, True], counted
    assert_same_everywhere(peer, torch.cat([p.flatten() for p in model.parameters()]))


@case
def who_computes_nan_raises_before_it_sends_it(peer: Peer) -> None:
    model, optimizer = linear()
    parallel = wrap(peer, model, optimizer)
    for turn, x in enumerate(torch.randn(4, 2, 6, 4)):
        mine = x[peer.rank]
        if peer.rank == 0 and turn == 1:
            mine = mine * float("nan")
            optimizer.zero_grad()
            raises(p2p.NonFiniteGradient, "2.bias in step 2", parallel(mine).square().mean().backward)
            mine = x[peer.rank]
        optimizer.zero_grad()
        parallel(mine).square().mean().backward()
        optimizer.step()
        assert peer.receipt is not None
        assert [entry.num_samples for entry in peer.receipt.contributions] == [1, 1]
    assert_same_everywhere(peer, torch.cat([p.flatten() for p in model.parameters()]))


@case
def who_computes_nan_is_skipped(peer: Peer) -> None:
    norm = nn.BatchNorm1d(8)
    model = nn.Sequential(nn.Linear(4, 8), norm, nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parallel = wrap(peer, model, optimizer, nonfinite="skip")
    for turn, x in enumerate(torch.randn(5, 2, 6, 4)):
        if peer.rank == 1 and turn == 1:
            x[1, 0, 0] = float("inf")
        if turn == 2:
            x[:] = float("nan")  # no peer has a valid gradient
        optimizer.zero_grad()
        parallel(x[peer.rank]).square().mean().backward()
        assert peer.receipt is not None
        numbers = [entry.num_samples for entry in peer.receipt.contributions]
        assert numbers == [[1, 1], [1, 0], [0, 0], [1, 1], [1, 1]][turn], (turn, numbers)
        for parameter in model.parameters():
            assert turn == 2 if parameter.grad is None else parameter.grad.isfinite().all()
        optimizer.step()
        if turn == 2:  # each peer keeps its accumulated gradients: NaN
            norm.reset_running_stats()
    assert_same_everywhere(peer, torch.cat([value.flatten().double() for value in model.state_dict().values()]))


@case
def two_passes_for_one_update_are_told_what_to_do(peer: Peer) -> None:
    model, optimizer = linear()
    parallel = wrap(peer, model, optimizer)
    x = torch.randn(6, 4)
    for is_to_none in (True, False, True):  # both ways of torch
        optimizer.zero_grad(set_to_none=is_to_none)
        parallel(x).mean().backward()
        optimizer.step()
    optimizer.zero_grad()
    loss = parallel(x).mean()
    loss.backward(retain_graph=True)
    raises(p2p.ShoalError, "no_sync", loss.backward)
    optimizer.step()

    def closure() -> Any:
        optimizer.zero_grad()
        loss = parallel(x).square().mean()
        loss.backward()
        return loss

    before = peer.last_step
    optimizer.step(closure)
    optimizer.step(closure)
    assert peer.last_step == before + 2
    for parameter in model.parameters():  # an update by hand
        parameter.grad = None
    parallel(x).mean().backward()
    assert_same_everywhere(peer, torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))


@case
def a_layer_that_is_used_twice_and_computed_again_in_backward(peer: Peer) -> None:
    layer, last = nn.Linear(4, 4), nn.Linear(4, 1)
    model = nn.Sequential(layer, last)
    parallel = wrap(peer, model, torch.optim.SGD(model.parameters(), lr=0.1))
    x = torch.randn(2, 6, 4, requires_grad=True)

    def run(x: Tensor) -> Any:
        hidden: Tensor = checkpoint(lambda y: layer(torch.tanh(layer(y))), x, use_reentrant=False)
        return last(hidden).square().mean()

    expected = [(a + b) / 2 for a, b in zip(*(gradients(model, run(part)) for part in x), strict=True)]
    parallel(x[peer.rank])
    run(x[peer.rank]).backward()
    assert_gradients(model, expected)
    for parameter in model.parameters():
        parameter.grad = None
    checkpoint(parallel, x[peer.rank], use_reentrant=False).square().mean().backward()  # calls forward in backward
    assert peer.last_step == 2
    for parameter in model.parameters():
        parameter.grad = None
    tail: Any = checkpoint(last, layer(x[peer.rank]), use_reentrant=True)  # a backward pass within backward
    raises(p2p.ShoalError, "use_reentrant=False", tail.mean().backward)


@case
def what_another_call_gave_up_updates_nothing(peer: Peer) -> None:
    model, optimizer = linear()
    parallel = wrap(peer, model, optimizer)
    for turn in range(3):
        optimizer.zero_grad()
        before = [parameter.detach().clone() for parameter in model.parameters()]
        backward = parallel(torch.randn(3, 4)).square().mean().backward
        if turn == 1:
            raises(p2p.OperationMismatch, "barrier", peer.barrier if peer.rank else backward)
        else:
            backward()
        optimizer.step()
        is_same = [torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True)]
        assert is_same == [turn == 1] * 4
    assert_same_everywhere(peer, torch.cat([p.flatten() for p in model.parameters()]))


@case
def lbfgs_is_refused_at_its_second_evaluation(peer: Peer) -> None:
    model, _ = linear()
    optimizer = torch.optim.LBFGS(model.parameters())
    parallel = wrap(peer, model, optimizer)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = parallel(torch.ones(2, 4)).square().mean()
        loss.backward()
        return loss

    step: Any = optimizer.step
    raises(p2p.ShoalError, "LBFGS", lambda: step(closure))


@case
def what_is_no_option_and_no_memory_is_refused_before_a_seat_is_asked_for(peer: Peer) -> None:
    model, optimizer = linear()
    for option in ("algorithm", "state_digest", "nonfinite"):
        raises(ValueError, f"{option} must be", partial(wrap, peer, model, optimizer, **{option: "half"}))
    model.register_parameter("shift", nn.Parameter(torch.zeros(1).expand(3)))
    words = r"elements of shift share memory ([3] with strides [0]): give each its own, with `.clone()`"
    raises(ValueError, words, partial(wrap, peer, model, optimizer))
    del model.shift
    assert peer.view is None
    wrap(peer, model, optimizer)


@case
def a_sparse_gradient_is_named(peer: Peer) -> None:
    model = nn.Embedding(10, 3)
    wrap(peer, model, torch.optim.SGD(model.parameters(), lr=0.1))
    rows: Any = functional.embedding(torch.tensor([[1, 2]]), model.weight, sparse=True)
    raises(TypeError, "weight is torch.sparse_coo", rows.sum().backward)


@case
def operations_that_run_while_the_script_goes_on_are_one_step(peer: Peer) -> None:
    peer.wait_view()
    before = peer.last_step
    tensors = [torch.arange(n).float() + peer.rank for n in (5, 200_000, 5)]
    handles = [
        peer.all_reduce(tensor, async_op=True, op=op)
        for tensor, op in zip(tensors, ("sum", "mean", "max"), strict=True)
    ]
    raises(p2p.ShoalError, "asynchronous operations are open", lambda: peer.all_reduce(torch.ones(1)))
    raises(p2p.ShoalError, "asynchronous operations are open", peer.barrier)
    assert torch.equal(tensors[0], torch.arange(5).float() + peer.rank)
    handles[1].wait()
    assert peer.last_step == before + 1
    assert torch.equal(tensors[0], 2 * torch.arange(5).float() + 1)
    assert torch.equal(tensors[1], torch.arange(200_000).float() + 0.5)
    handles[0].wait()
    handles[2].wait()
    assert torch.equal(tensors[2], torch.arange(5).float() + 1)
    peer.all_reduce(tensors[2])
    odd = peer.all_reduce(torch.ones(4 + peer.rank), async_op=True)
    other = peer.all_reduce(torch.ones(4), async_op=True)
    raises(p2p.OperationMismatch, "[5]", odd.wait)
    raises(p2p.ShoalError, "given up", other.wait)
    peer.barrier()
    assert peer.last_step == before + 3


@case
def lent_and_half_tensors_are_free_as_soon_as_a_result_is_handed_out(peer: Peer) -> None:
    peer.wait_view()
    before = peer.last_step
    for size in (3, 200_000):
        lent, out = peer.empty(size), peer.empty(size)
        lent.fill_(peer.rank)
        peer.all_reduce(lent, out=out, commit=False)
        assert (out == 1).all() and (lent == peer.rank).all()
        lent.fill_(7)
        out.fill_(7)
        half = torch.full((size, 2), 1.0, dtype=torch.bfloat16)
        peer.all_reduce(half[:, 0], algorithm="ring", commit=False)
        assert (half[:, 0] == 2).all() and (half[:, 1] == 1).all()
        half.fill_(7)
    peer.barrier()
    assert peer.last_step == before + 1


@case
def a_peer_with_a_model_commits_each(peer: Peer) -> None:
    model, optimizer = linear()
    parallel = wrap(peer, model, optimizer)
    for turn in range(3):
        one = torch.ones(3)
        peer.all_reduce(one, commit=False)
        assert (one == 2).all() and peer.last_step == 2 * turn + 1
        optimizer.zero_grad()
        parallel(torch.ones(2, 4)).mean().backward()
        optimizer.step()
        assert peer.last_step == 2 * turn + 2


@case
def a_block_is_a_step_with_samples(peer: Peer) -> None:
    peer.wait_view()
    with peer.step(samples=3 + peer.rank) as step:
        total, greatest = np.ones(4, np.float32), torch.tensor([peer.rank, 1 - peer.rank])
        peer.all_reduce(total)
        peer.all_reduce(greatest, op="max")
        assert (total == 1).all()
        raises(p2p.ShoalError, "leave `async_op` and `commit` out", lambda: peer.all_reduce(total, async_op=True))
        raises(p2p.ShoalError, "`with peer.step()` block is open", peer.barrier)
    assert (total == 2).all() and greatest.tolist() == [1, 1]
    assert peer.done == step.number == 1 and peer.receipt is not None
    assert [entry.num_samples for entry in peer.receipt.contributions] == [3, 4]

    def fail() -> None:
        with peer.step():
            peer.all_reduce(total)
            raise KeyError("what went wrong")

    def add() -> None:
        with peer.step():
            peer.all_reduce(total)

    if peer.rank == 1:
        raises(KeyError, "what went wrong", fail)
    else:
        raises(p2p.OperationInterrupted, "KeyError ended a `peer.step` block", add)
    add()
    assert (total == 4).all() and peer.done == 2
    assert [entry.num_samples for entry in peer.receipt.contributions] == [1, 1]
    counted = 0
    for batch in peer.loader(range(20), global_batch=8):
        with peer.step():
            mine = np.array([batch.sum()])
            peer.all_reduce(mine)
        counted += mine[0]
    assert counted == 190


@case
def a_tensor_belongs_to_one_operation_of_a_step_until_its_end(peer: Peer) -> None:
    """Otherwise its result might be computed from another operation's result, or from the script's later values."""
    peer.wait_view()
    parts = torch.ones(6)
    for call in (peer.all_reduce, peer.all_gather, peer.broadcast):
        peer.all_reduce(parts[:3], async_op=True)
        raises(ValueError, "would not see it", partial(call, parts[2:], async_op=True))
        peer.all_reduce(parts[3:], async_op=True)
        peer.wait()
    assert parts.tolist() == [8] * 6
    tied = torch.tensor(float(peer.rank))
    with peer.step():
        peer.all_reduce(tied, op="mean")
        peer.all_reduce(tied, op="mean")
    assert tied == 0.5
    gradient = torch.full((3,), 1.0 + peer.rank)
    device = peer._session.device_of(gradient)

    def clip_too_early() -> None:
        peer.all_reduce(gradient, async_op=True)
        if peer.rank:
            if isinstance(device, StandIn):
                device.drain()  # otherwise its first error would be about the copy in progress
            gradient.mul_(0.5)
        peer.wait()

    if peer.rank:
        raises(p2p.ShoalError, "operation 1 of this step (all_reduce sum", clip_too_early)
    else:
        raises(p2p.OperationInterrupted, "ended a step of asynchronous operations", clip_too_early)
    assert gradient.tolist() == [1.0] * 3
    peer.all_reduce(gradient)
    assert gradient.tolist() == [2.0] * 3


def main(*, on_stand_in: bool = False) -> None:
    """Run all cases, or the named ones, each in a swarm of its own; tensors may be on a device."""
    torch.set_num_threads(1)
    device = StandIn(0)
    print("here")
    for name, function in CASES.items():
        if name in sys.argv[1:] or len(sys.argv) == 1:
            torch.manual_seed(1)
            with p2p.join(swarm=name[:20]) as peer:
                if on_stand_in:
                    peer._session.device_of = device.device_of
                function(peer)
                device.drain()
            print("passed", name)
    assert (device.num_copies > len(CASES)) == on_stand_in


if __name__ == "__main__":
    main()
