"""Cases of gradients, run by the peers of tests/live/test_data_parallel.py, and compared with one process."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import p2p
from p2p import Peer
from tests.live.training_cases import (
    CASES,
    assert_gradients,
    assert_same_everywhere,
    case,
    gradients,
    linear,
    main,
    raises,
    wrap,
)

__all__ = ["CASES", "main"]


class Mixture(nn.Module):
    """A trunk with several heads; each sample uses one head."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(4, 6)
        self.heads = nn.ModuleList([nn.Linear(6, 2) for _ in range(4)])

    def forward(self, x: Tensor, heads: list[int]) -> Tensor:
        hidden = torch.tanh(self.trunk(x))
        return torch.stack([self.heads[head](row) for row, head in zip(hidden, heads, strict=True)])


# Per step the heads that the samples of both peers use: one, the other, alternating; the last one is never used.
USES = [([0, 0], [1, 1]), ([0, 1], [1, 0]), ([2, 2], [2, 2]), ([0, 0], [0, 0]), ([1, 1], [2, 2]), ([1, 2], [0, 0])] * 2


def optimizers_that_move_without_a_gradient() -> dict[str, Callable[..., torch.optim.Optimizer]]:
    return {
        "adamw": partial(torch.optim.AdamW, lr=0.01, weight_decay=0.3),
        "momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1),
        "fused": partial(torch.optim.AdamW, lr=0.01, weight_decay=0.3, fused=True),
    }


@case
def what_nobody_used_and_what_is_frozen_stays_as_it_is(peer: Peer) -> None:
    models = nn.ModuleDict({name: Mixture() for name in optimizers_that_move_without_a_gradient()})
    alone = copy.deepcopy(models)
    ours, theirs = (
        [make(each[name].parameters()) for name, make in optimizers_that_move_without_a_gradient().items()]
        for each in (models, alone)
    )
    wrap(peer, models, ours[0], extra=ours[1:], bucket_bytes=100)
    for step, heads in enumerate(USES):
        x = torch.randn(2, 2, 4)
        for each, optimizers in ((models, ours), (alone, theirs)):
            if step == 7:
                for mixture in each.values():
                    mixture.trunk.requires_grad_(False)
            for optimizer in optimizers:
                optimizer.zero_grad()
            parts = [peer.rank] if each is models else [0, 1]
            losses = [m(x[part], heads[part]).square().mean() for m in each.values() for part in parts]
            (torch.stack(losses).sum() / len(parts)).backward()  # type: ignore[no-untyped-call]
            for optimizer in optimizers:
                optimizer.step()
        for (name, mine), other in zip(models.named_parameters(), alone.parameters(), strict=True):
            assert (mine.grad is None) == (other.grad is None), (step, name, mine.grad, other.grad)
            assert torch.allclose(mine, other, rtol=1e-5, atol=1e-6), (step, name, mine - other)
    for pair in zip(ours, theirs, strict=True):
        steps = [[state.get("step", 0) for state in each.state.values()] for each in pair]
        assert steps[0] == steps[1], "no optimizer has counted a step without a gradient"
    assert_same_everywhere(peer, torch.cat([p.flatten() for p in models.parameters()]))


@case
def what_only_who_does_not_count_has_used_is_left_alone(peer: Peer) -> None:
    model = Mixture()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parallel = wrap(peer, model, optimizer)
    parallel.num_samples(1 - peer.rank)
    parallel(torch.randn(2, 4), [peer.rank] * 2).sum().backward()
    assert [head.weight.grad is None for head in model.heads] == [False, True, True, True]
    optimizer.step()
    optimizer.zero_grad()
    with parallel.no_sync():
        parallel.num_samples(1)
        parallel(torch.randn(2, 4), [2, 2]).sum().backward()
    parallel(torch.randn(2, 4), [peer.rank] * 2).sum().backward()
    assert [head.weight.grad is None for head in model.heads] == [False, False, False, True]


@case
def a_gradient_that_is_kept_stays_what_it_was(peer: Peer) -> None:
    model, optimizer = linear()
    parallel = wrap(peer, model, optimizer)
    kept: list[tuple[Any, Any]] = []
    places = []
    for turn, x in enumerate(torch.randn(6, 2, 4)):
        optimizer.zero_grad()
        parallel(x).square().mean().backward()
        assert all((gradient == copied).all() for gradient, copied in kept)
        weight, bias = model.get_parameter("0.weight").grad, model.get_parameter("2.bias").grad
        assert weight is not None and bias is not None
        if turn < 4:
            part = weight[0] if turn % 2 else weight
            kept += [(part, part.clone()), (bias.numpy(), bias.numpy().copy())]
            del part
        places.append(weight.data_ptr())
        del weight, bias
        optimizer.step()
    assert places[-1] == places[-2] and len(set(places)) == 5, "memory is taken where some is kept, and only there"


@case
def gradients_that_came_from_no_commit_update_nothing(peer: Peer) -> None:
    model, optimizer = linear()
    other = torch.optim.SGD([model.get_parameter("2.bias")], lr=0.1)
    parallel = wrap(peer, model, optimizer, extra=[other])
    x = torch.randn(2, 4)

    def compute_alone() -> None:
        loss = parallel(x * (peer.rank + 1)).square().mean()
        for parameter, gradient in zip(model.parameters(), gradients(model, loss), strict=True):
            parameter.grad = gradient

    for _ in range(2):  # before the first commit, and after it
        before = copy.deepcopy(model.state_dict())
        compute_alone()
        words = "gradient of 0.weight that no step committed"
        raises(p2p.ShoalError, words, optimizer.step)
        raises(p2p.ShoalError, words, lambda: optimizer.step(compute_alone))  # type: ignore[arg-type]
        raises(p2p.ShoalError, "gradient of 2.bias", other.step)
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        optimizer.zero_grad()
        optimizer.step()
        parallel(x).square().mean().backward()
        for parameter in model.parameters():  # the script's own processing of committed gradients
            parameter.grad = None if parameter.grad is None else parameter.grad * 2
        optimizer.step()
        other.step()
        optimizer.zero_grad()
    with parallel.no_sync():
        parallel(x).square().mean().backward()
    raises(p2p.ShoalError, "between the passes", other.step)


@case
def gradients_of_this_peer_alone_may_be_allowed(peer: Peer) -> None:
    model, optimizer = linear()
    wrap(peer, model, optimizer, allow_local=True)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = model.get_parameter("0.bias").clone()
    optimizer.step()
    assert torch.allclose(model.get_parameter("0.bias"), before - 0.1)


@case
def gradients_that_the_script_computes_are_averaged(peer: Peer) -> None:
    model, optimizer = linear()
    alone = copy.deepcopy(model)
    optimizer_alone = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9)
    parallel = wrap(peer, model, optimizer)
    parallel.num_samples(3 if peer.rank == 0 else 1)
    parameters = dict(model.named_parameters())

    def of_functional(x: Tensor) -> dict[str, Tensor]:
        def loss(values: dict[str, Tensor]) -> Tensor:
            outputs: Tensor = torch.func.functional_call(model, values, (x,))
            return outputs.square().mean()

        detached = {name: parameter.detach() for name, parameter in parameters.items()}
        found: dict[str, Tensor] = torch.func.grad(loss)(detached)
        return found

    for turn, x in enumerate(torch.randn(6, 4, 4)):
        mine = x[:3] if peer.rank == 0 else x[3:]
        if turn % 2:
            means = parallel.reduce_gradients(of_functional(mine))
            assert list(means) == list(parameters)
        else:
            loss = parallel(mine).square().mean()
            means = parallel.reduce_gradients(torch.autograd.grad(loss, list(parameters.values())))
            means = dict(zip(parameters, means, strict=True))
        assert parallel.has_committed and peer.done == turn + 1
        assert all(means[name] is parameter.grad for name, parameter in parameters.items())
        if turn > 3:  # otherwise they are dropped without a call
            optimizer.zero_grad()
            for name, parameter in parameters.items():
                parameter.grad = means[name]
        optimizer.step()
        optimizer_alone.zero_grad()
        alone(x).square().mean().backward()
        optimizer_alone.step()
        for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
            assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    some = [None, None, None, torch.ones(3)]
    assert [each is None for each in parallel.reduce_gradients(some)] == [True, True, True, False]
    optimizer.step()
    with parallel.no_sync():
        assert parallel.reduce_gradients(some) == (None,) * 4 and peer.done == 7
    (*_, last) = parallel.reduce_gradients([None, None, None, torch.ones(3)])
    assert torch.equal(last, torch.full((3,), 2.0)) and peer.done == 8
    assert torch.equal(some[3], torch.ones(3)), "what the script has given is its own"  # type: ignore[arg-type]


@case
def gradients_that_fit_no_parameter_are_named(peer: Peer) -> None:
    model, optimizer = linear()
    parallel = wrap(peer, model, optimizer)
    for given, words in (
        ([None] * 3, "got 3 gradients for 4 parameters: pass one, or None"),
        ({"1.weight": torch.ones(3)}, "got a gradient for 1.weight, which is not a parameter"),
        (
            {"2.bias": torch.ones(4)},
            "the gradient of 2.bias is torch.float32 [4] on cpu, but the parameter is torch.float32 [3] on cpu",
        ),
        (
            {"2.bias": torch.ones(3, device="meta")},
            "is torch.float32 [3] on meta, but the parameter is torch.float32 [3]",
        ),
        ({"2.bias": torch.ones(3).double()}, "the gradient of 2.bias is torch.float64 [3]"),
    ):
        raises(ValueError, words, partial(parallel.reduce_gradients, given))
    assert peer.done == 0
    parallel.reduce_gradients({"2.bias": torch.ones(3)})
    assert peer.done == 1


@case
def gradients_may_be_zeroed_at_any_time(peer: Peer) -> None:
    model, optimizer = linear()
    alone = copy.deepcopy(model)
    optimizer_alone = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9)
    parallel = wrap(peer, model, optimizer)
    places = ("before forward", "before backward", "after the update", "nowhere")
    for turn in range(16):
        place, is_to_none = places[turn // 4], turn % 2 == 0
        x = torch.randn(2, 3, 4)
        for used, updates, mine in ((parallel, optimizer, x[peer.rank]), (alone, optimizer_alone, x.flatten(0, 1))):
            zero = {place: partial(updates.zero_grad, set_to_none=is_to_none)}
            if turn % 4 == 0:  # a place begins
                updates.zero_grad()
            zero.get("before forward", int)()
            loss = used(mine).square().mean()
            zero.get("before backward", int)()
            loss.backward()
            nn.utils.clip_grad_norm_(used.parameters(), 5.0)
            updates.step()
            zero.get("after the update", int)()
        for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
            assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5), (turn, ours - theirs)


def drop_passes(peer: Peer, model: nn.Module, *, are_zeros_known: bool = True) -> None:
    """In every other step the first peer drops its first pass, or fills its gradients with zeros."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parallel = wrap(peer, model, optimizer)
    parallel.num_samples(3)
    for turn in range(4):
        x, drops = torch.randn(2, 2, 3, 4), turn % 2 == 1  # peer, pass, sample
        kept = [x[0, 1], *x[1]] if drops else [*x[0], *x[1]]
        expected = gradients(model, model(torch.cat(kept)).square().mean())
        optimizer.zero_grad()
        with parallel.no_sync():
            (parallel(x[peer.rank, 0]).square().mean() / 2).backward()
        if turn == 2:  # written in place, and not dropped
            nn.utils.clip_grad_norm_(model.parameters(), 1e9)
        loss = parallel(x[peer.rank, 1]).square().mean()
        if drops and peer.rank == 0:
            optimizer.zero_grad(set_to_none=turn == 1 or not are_zeros_known)
            loss.backward()
        else:
            (loss / 2).backward()
        assert_gradients(model, expected)
        assert peer.receipt is not None
        assert [entry.num_samples for entry in peer.receipt.contributions] == [3 if drops else 6, 6]
        optimizer.step()


@case
def what_is_no_number_is_not_combined(peer: Peer) -> None:
    raises(TypeError, "and loss is a Tensor: ", lambda: peer.combine({"loss": torch.ones(2)}, samples=1))  # type: ignore[dict-item]
    raises(TypeError, "and value is a NoneType: ", lambda: peer.combine(None, samples=1))  # type: ignore[call-overload]
    assert peer.combine(torch.tensor(2.0), samples=1) == (2.0, 2)  # type: ignore[call-overload]


@case
def passes_that_zero_grad_has_dropped_weigh_nothing(peer: Peer) -> None:
    drop_passes(peer, linear()[0])


@case
def so_do_those_of_a_model_of_one_parameter(peer: Peer) -> None:
    drop_passes(peer, nn.Linear(4, 1, bias=False), are_zeros_known=False)


@case
def so_do_those_of_one_of_two_models(peer: Peer) -> None:
    models = {"G": nn.Linear(4, 4), "D": linear()[0]}
    optimizers = {name: torch.optim.SGD(model.parameters(), lr=0.1) for name, model in models.items()}
    parallel = p2p.DataParallel(peer, models, optimizers)
    for turn in range(3):
        x = torch.randn(2, 3, 4)[peer.rank]
        for name, optimizer in optimizers.items():
            optimizer.zero_grad()
            if name == "D":
                with parallel.no_sync():
                    parallel[name](x).square().mean().backward()
                optimizer.zero_grad(set_to_none=turn != 1)
            parallel[name](x).square().mean().backward()
            optimizer.step()
            assert peer.receipt is not None
            assert [entry.weight for entry in peer.receipt.contributions] == [1, 1], (turn, name)


def train_on_tokens(peer: Peer, max_local_batch: int | None) -> None:
    """A loss that is a mean over tokens, with different numbers per sample, equals that of one process."""
    data, lengths = torch.randn(24, 5, 4), torch.randint(0, 6, (24,))
    lengths[3] = 0
    model, optimizer = linear()
    alone = copy.deepcopy(model)
    optimizer_alone = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9)
    parallel = wrap(peer, model, optimizer)

    def summed(used: Any, x: Tensor, num_tokens: Tensor) -> Any:
        is_token = torch.arange(5) < num_tokens[:, None]
        return (used(x).square().mean(-1) * is_token).sum()

    places = torch.arange(24)
    seen: list[int] = []
    for x, num_tokens, mine in peer.loader(
        TensorDataset(data, lengths, places), global_batch=8, max_local_batch=max_local_batch
    ):
        number = int(num_tokens.sum())
        parallel.num_samples(number)
        optimizer.zero_grad()
        (summed(parallel, x, num_tokens) / max(number, 1)).backward()
        optimizer.step()
        seen += mine.tolist()
        if parallel.has_committed:
            used = torch.zeros(24, dtype=torch.int64)
            used[seen] = 1
            peer.all_reduce(used)
            chosen = used.nonzero()[:, 0]
            assert used.max() == 1 and len(chosen) == 8
            optimizer_alone.zero_grad()
            (summed(alone, data[chosen], lengths[chosen]) / lengths[chosen].sum()).backward()
            optimizer_alone.step()
            assert peer.receipt is not None
            seen = []
    for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-6), ours - theirs


@case
def a_slice_weighs_its_tokens_and_ends(peer: Peer) -> None:
    train_on_tokens(peer, None)


@case
def micro_batches_weigh_their_tokens(peer: Peer) -> None:
    train_on_tokens(peer, 2)


@case
def loops_left_between_micro_batches_count_what_they_have_trained_on(peer: Peer) -> None:
    data = torch.randn(60, 4)
    model, optimizer = linear()
    alone = copy.deepcopy(model)
    optimizer_alone = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9)
    parallel = wrap(peer, model, optimizer)
    loader = peer.loader(data, global_batch=12, shuffle=False, max_local_batch=2)

    def train(x: Tensor) -> None:
        optimizer.zero_grad()
        parallel(x).square().mean().backward()
        optimizer.step()
        if parallel.has_committed:
            assert peer.receipt is not None
            ranges = [each for entry in peer.receipt.contributions for each in entry.samples]
            optimizer_alone.zero_grad()
            alone(torch.cat([data[first : first + number] for first, number in ranges])).square().mean().backward()
            optimizer_alone.step()

    for place, is_trained_after in ((0, True), (1, True), (0, False), (2, True), (1, False)):
        for turn, x in enumerate(loader):
            if turn == place and is_trained_after:
                break
            train(x)
            if turn == place:
                break
        if is_trained_after:
            train(x)
    for x in loader:
        train(x)
    assert peer.samples == 60
    for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-6), ours - theirs


@case
def learning_rates_follow_what_a_step_counts(peer: Peer) -> None:
    model, optimizer = linear()
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    alone = copy.deepcopy(model)
    optimizer_alone = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9)
    parallel = wrap(peer, model, optimizer, extra=[schedule], lr_scaling="linear", lr_batch=8)
    x = torch.randn(6, 9, 4)
    for step in range(6):
        parts = slice(0, 1 + step % 3), slice(1 + step % 3, 3 + 2 * step % 6)  # one peer's samples, and the other's
        mine = x[step, parts[peer.rank]]
        rate = 0.1 * 0.9**step

        def loss_of(mine: Tensor = mine) -> Any:
            optimizer.zero_grad()
            parallel.num_samples(len(mine))
            loss: Any = parallel(mine).square().mean()
            loss.backward()
            assert optimizer.param_groups[0]["lr"] == schedule.get_last_lr()[0], "as set, while others may look"
            return loss

        if step % 2:
            loss_of()
            optimizer.step()
        else:
            optimizer.step(loss_of)
        assert abs(optimizer.param_groups[0]["lr"] - rate) < 1e-9
        schedule.step()
        together = x[step, : parts[1].stop]
        assert parallel.lr_factor == len(together) / 8
        optimizer_alone.param_groups[0]["lr"] = rate * len(together) / 8
        optimizer_alone.zero_grad()
        loss: Any = alone(together).square().mean()
        loss.backward()
        optimizer_alone.step()
    for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-6)


@case
def an_update_that_raises_may_be_left_out(peer: Peer) -> None:
    model, optimizer = linear()
    parallel = wrap(peer, model, optimizer)

    def refuse(*_: object) -> None:
        if peer.done == 2:
            raise ArithmeticError("this update is left out")

    optimizer.register_step_pre_hook(refuse)
    for x in torch.randn(4, 4, 4).unbind():
        before = copy.deepcopy(model.state_dict())
        optimizer.zero_grad()
        parallel(x).square().mean().backward()
        if peer.done == 2:
            raises(ArithmeticError, "left out", optimizer.step)
        else:
            optimizer.step()
        assert torch.equal(before["0.weight"], model.state_dict()["0.weight"]) == (peer.done == 2)
    assert_same_everywhere(peer, torch.cat([p.flatten() for p in model.parameters()]))


@case
def who_skips_a_step_stays_with_the_others(peer: Peer) -> None:
    data = torch.randn(40, 4)
    model, optimizer = linear()
    parallel = wrap(peer, model, optimizer)
    rows = []
    for x in peer.loader(data, global_batch=4):
        loss = parallel(x).square().mean()
        is_bad = peer.done in ((2, 5, 6) if peer.rank else (5, 8))
        optimizer.zero_grad()
        expected = gradients(model, loss)
        parallel.skip_step() if is_bad else loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        if peer.done == (9 if peer.rank == 1 else 7):  # the other one has skipped
            norm = torch.stack([each.norm() for each in expected]).norm()
            assert_gradients(model, [each * min(1.0, 0.5 / (norm.item() + 1e-6)) for each in expected])
        if peer.done == 6:
            assert all(parameter.grad is None for parameter in model.parameters()), "nobody has added anything"
        optimizer.step()
        assert peer.receipt is not None
        rows.append([(entry.num_samples, entry.weight) for entry in peer.receipt.contributions])
    assert len(rows) == 10, "no sample comes again"
    skipped = [[number for number, (_, weight) in enumerate(row) if not weight] for row in rows]
    assert skipped == [[], [], [1], [], [], [0, 1], [1], [], [0], []], rows
    assert all(number == 2 for row in rows for number, _ in row)
    assert_same_everywhere(peer, torch.cat([p.flatten() for p in model.parameters()]))
    parallel.num_samples(1)
    with parallel.no_sync():
        raises(p2p.ShoalError, "outside `no_sync`", parallel.skip_step)
    for turn in range(2):
        optimizer.zero_grad()
        if peer.rank == 0 and turn == 1:
            words = "gradients of the step that `skip_step` ended were not used"
            raises(p2p.ShoalError, words, parallel(data[:2]).square().mean().backward)
            break
        parallel(data[:2]).square().mean().backward() if peer.rank else parallel.skip_step()
        if peer.rank:
            optimizer.step()
            break
