"""Cases of habits of training code: buffers, optimizers, saved models. Run by test_data_parallel.py."""

import contextlib
import copy
import logging
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import swa_utils

import p2p
from p2p import Peer
from tests.live.gradient_cases import CASES, main
from tests.live.swarm import OF_SPEED
from tests.live.training_cases import assert_same_everywhere, case, linear, raises, wrap

__all__ = ["CASES", "main"]


class Said(logging.Handler):
    """Collects the peer's log messages."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if not OF_SPEED.match(line):
            self.lines.append(line)

    def __enter__(self) -> list[str]:
        logging.getLogger("p2p").addHandler(self)
        return self.lines

    def __exit__(self, *_: object) -> None:
        logging.getLogger("p2p").removeHandler(self)


def only(lines: list[str]) -> str:
    """The only line."""
    assert len(lines) == 1, lines
    return lines[0]


class Codebook(nn.Module):
    """Typical buffers: computed from inputs, in place and by assignment of another tensor; and a table."""

    ema: Tensor
    total: Tensor
    table: Tensor
    largest: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("table", torch.tensor([0.1, 0.7, 1.3]))
        self.register_buffer("ema", torch.zeros(4))
        self.register_buffer("total", torch.zeros((), dtype=torch.int64))
        self.register_buffer("largest", torch.zeros(()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.ema.data.mul_(0.5).add_(x.mean(0), alpha=0.5)
        self.total = self.total + len(x)
        self.largest = torch.maximum(self.largest, x.max().detach())
        output: Tensor = self.layer(x) * self.table
        return output


def train_codebook(peer: Peer, mode: str, num_samples: int = 1) -> tuple[Codebook, list[str]]:
    model = Codebook()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parallel = wrap(peer, model, optimizer, buffers=mode)
    parallel.num_samples(num_samples)
    with Said() as lines:
        for x in torch.randn(20, 2, 6, 4):
            optimizer.zero_grad()
            parallel(x[peer.rank, : 6 - peer.rank]).square().mean().backward()
            optimizer.step()
            if mode == "rank0":
                assert_same_everywhere(peer, model.ema)
    return model, lines


@case
def buffers_that_differ_are_named_once(peer: Peer) -> None:
    _, (line,) = train_codebook(peer, "check")
    assert line.startswith("buffer ema differs between peers ") and "buffers='mean' or 'rank0'" in line, line


class Shadow:
    """A typical moving average of weights."""

    def __init__(self, model: nn.Module) -> None:
        self.values = [parameter.detach().clone() for parameter in model.parameters()]

    @torch.no_grad()
    def update_parameters(self, model: nn.Module) -> None:
        for value, parameter in zip(self.values, model.parameters(), strict=True):
            value.lerp_(parameter, 0.1)

    def state_dict(self) -> dict[str, Any]:
        return {"values": self.values}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.values = state["values"]


@case
def a_copy_of_the_model_that_changes_and_is_not_in_extra_is_named_once(peer: Peer) -> None:
    ways: list[tuple[bool, list[Any]]] = [(False, [swa_utils.AveragedModel]), (False, [Shadow])]
    for turn, (is_given, kinds) in enumerate([*ways, (True, [swa_utils.AveragedModel, Shadow])]):
        model, optimizer = linear()
        averages = [kind(model) for kind in kinds]
        frozen = copy.deepcopy(model)
        with p2p.join(swarm=f"copies-{turn}") as another, Said() as lines:
            parallel = wrap(another, model, optimizer, extra=averages if is_given else [])
            for inputs in torch.randn(9, 2, 6, 4):
                x = inputs[another.rank]
                optimizer.zero_grad()
                (parallel(x) + frozen(x)).square().mean().backward()
                optimizer.step()
                for each in averages:
                    each.update_parameters(model)
        words = f"{kinds[0].__name__} has a copy of the model's parameters that changes"
        assert [line[: len(words)] for line in lines] == ([] if is_given else [words]), lines


@case
def buffers_may_differ(peer: Peer) -> None:
    model, lines = train_codebook(peer, "local")
    assert lines == []
    least = model.ema.clone()
    peer.all_reduce(least, op="min")
    assert (least < model.ema).any() or peer.rank, "each has its own"


@case
def buffers_are_those_of_rank_0(peer: Peer) -> None:
    model, lines = train_codebook(peer, "rank0")
    assert lines == [] and model.total == 120, "six samples at rank 0, in 20 steps"


@case
def buffers_are_averaged_over_samples(peer: Peer) -> None:
    model = Codebook()
    alone = [copy.deepcopy(model) for _ in range(2)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parallel = wrap(peer, model, optimizer, buffers="mean")
    parallel.num_samples(3 - 2 * peer.rank)
    for x in torch.randn(5, 2, 6, 4):
        optimizer.zero_grad()
        parallel(x[peer.rank]).square().mean().backward()
        optimizer.step()
        for each, part in zip(alone, x, strict=True):
            each(part)
        mean = alone[0].ema * 0.75 + alone[1].ema * 0.25
        for each in alone:
            each.ema.copy_(mean)
        assert torch.allclose(model.ema, mean, rtol=1e-6, atol=1e-7)
        assert_same_everywhere(peer, model.ema)
    assert torch.equal(model.table, torch.tensor([0.1, 0.7, 1.3])), "what nobody has changed is not touched"


@case
def layers_that_exchange_statistics_are_refused(peer: Peer) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.SyncBatchNorm(3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    raises(ValueError, "layer 1 is a SyncBatchNorm", lambda: wrap(peer, model, optimizer))
    raises(ValueError, "buffers must be one of check, mean", lambda: wrap(peer, *linear(), buffers="all"))
    assert peer.view is None
    wrap(peer, *linear())


class Around(torch.optim.Optimizer):
    """Wraps another optimizer, as `accelerate`'s does; the base class is not initialised."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    @property
    def param_groups(self) -> Any:  # type: ignore[override]
        return self.optimizer.param_groups

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)

    def step(self, closure: Any = None) -> Any:
        return self.optimizer.step(closure)


@case
def an_optimizer_around_another_trains(peer: Peer) -> None:
    model, optimizer = linear()
    around = Around(optimizer)
    parallel = wrap(peer, model, around)
    for x in torch.randn(3, 6, 4):
        around.zero_grad()
        parallel(x).square().mean().backward()
        around.step()
    assert peer.done == 3
    assert_same_everywhere(peer, torch.cat([p.flatten() for p in model.parameters()]))


@case
def what_a_script_has_in_its_groups_is_sent_or_refused_with_the_way_out(peer: Peer) -> None:
    model, optimizer = linear()
    optimizer.param_groups[0]["lr"] = np.float64(0.1)
    optimizer.param_groups[0]["tags"] = {"a", "b"}
    words = "the state_dict of {}: param_groups[0].tags: set is not allowed: a joiner can only be sent plain values"
    raises(TypeError, words.format("SGD"), lambda: wrap(peer, model, optimizer))
    models: Any = {"G": nn.Linear(2, 2), "D": model}
    optimizers: Any = {"G": torch.optim.SGD(models["G"].parameters(), lr=0.1), "D": optimizer}
    raises(TypeError, words.format("optimizer D (SGD)"), lambda: wrap(peer, models, optimizers))
    optimizer.param_groups[0]["tags"] = ["a", np.bool_(True), np.int64(3)]
    wrap(peer, model, optimizer)


@case
def what_cannot_be_sent_is_refused_in_rounds_with_the_name_of_its_part(peer: Peer) -> None:
    model, optimizer = linear()
    optimizer.param_groups[0]["tags"] = {"a", "b"}
    words = "the state_dict of SGD: param_groups[0].tags: set is not allowed: a joiner can only be sent plain values"
    raises(TypeError, words, lambda: p2p.DiLoCo(peer, model, optimizer))


class Tied(nn.Module):
    """A model with two names for one parameter, and extra state."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(10, 4), nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight
        self.note = {"made": [1, 2]}

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.head(self.embed(x))
        return output

    def get_extra_state(self) -> dict[str, list[int]]:
        return self.note

    def set_extra_state(self, state: dict[str, list[int]]) -> None:
        self.note = state


@case
def a_wrapped_model_is_saved_and_loaded_under_its_own_names(peer: Peer) -> None:
    model = Tied()
    parallel = wrap(peer, model, torch.optim.SGD(model.parameters(), lr=0.1))
    saved = parallel.state_dict()
    assert list(saved) == list(model.state_dict()) == ["_extra_state", "embed.weight", "head.weight"]
    assert saved["embed.weight"].data_ptr() == saved["head.weight"].data_ptr()
    for prefix in ("", "module."):  # the prefix of DDP's names
        other = {prefix + name: value for name, value in Tied().state_dict().items()}
        parallel.load_state_dict(other)
        assert torch.equal(model.embed.weight, other[prefix + "head.weight"])
    outer = nn.ModuleDict({"net": parallel})
    assert list(outer.state_dict()) == ["net._extra_state", "net.embed.weight", "net.head.weight"]
    outer.load_state_dict(outer.state_dict())


@case
def two_optimizers_may_step_in_any_order(peer: Peer) -> None:
    for first, second in (("g", "d"), ("d", "g")):
        torch.manual_seed(3)
        nets = nn.ModuleDict({"g": nn.Linear(4, 3), "d": nn.Linear(3, 1)})
        alone = copy.deepcopy(nets)
        with p2p.join(swarm=f"order-{first}") as another, Said() as lines:
            ours, theirs = (
                {name: torch.optim.SGD(net.parameters(), lr=0.1) for name, net in each.items()}
                for each in (nets, alone)
            )
            wrap(another, nets, ours[first], extra=[ours[second]])
            for x, real in zip(torch.randn(4, 2, 6, 4), torch.randn(4, 2, 6, 3), strict=True):
                for used, optimizers, noise, data in (
                    (nets, ours, x[another.rank], real[another.rank]),
                    (alone, theirs, x.flatten(0, 1), real.flatten(0, 1)),
                ):
                    fake = used["g"](noise)
                    optimizers["d"].zero_grad()
                    (used["d"](fake.detach()) - used["d"](data)).square().mean().backward()
                    optimizers["d"].step()
                    optimizers["g"].zero_grad()  # gradients of `d` accumulate, as in most scripts
                    used["d"](fake).square().mean().backward()
                    optimizers["g"].step()
        assert not [line for line in lines if "were added to" in line], "they are dropped before they are used"
        for one, other in zip(nets.parameters(), alone.parameters(), strict=True):
            assert torch.allclose(one, other, rtol=1e-5, atol=1e-6), (one, other)


@case
def what_is_wrong_with_a_model_is_said_before_a_seat_is_asked_for(peer: Peer) -> None:
    model, optimizer = linear()
    other = torch.optim.SGD([*model.parameters(), nn.Parameter(torch.zeros(2, 3))], lr=0.1)
    words = "parameter 4 of group 0 of {}, torch.float32 [2, 3], is not in its model"
    raises(ValueError, words.format("the optimizer"), lambda: wrap(peer, model, other))
    raises(ValueError, words.format("SGD (extra[0])"), lambda: wrap(peer, model, optimizer, extra=[other]))
    model.register_buffer("table", torch.zeros(3, device="meta"))
    raises(ValueError, "table is torch.float32 on meta", lambda: wrap(peer, model, optimizer))
    del model.table
    assert peer.view is None
    wrap(peer, model, optimizer)
    twice = nn.ModuleDict({"one": model, "two": nn.Linear(2, 2)})
    with p2p.join(swarm="another") as another:
        raises(
            p2p.ShoalError,
            "parameter one.0.weight is already in a p2p.DataParallel",
            lambda: wrap(another, twice, optimizer),
        )
        assert another.view is None
        wrap(another, *linear())
    peer.leave()
    with p2p.join(swarm="another-again") as another:
        parallel = wrap(another, model, optimizer)
        parallel(torch.ones(2, 4)).sum().backward()
        assert another.done == 1, "of a peer that has left nothing is in the way"


@case
def a_model_that_was_moved_after_the_wrap_is_named(peer: Peer) -> None:
    model, optimizer = linear()
    parallel = wrap(peer, model, optimizer)
    before = peer.last_step
    model.double()
    words = (
        "2.bias is torch.float64 [3] with strides [1], but was torch.float32 [3] with strides [1] when it was wrapped"
    )
    raises(p2p.ShoalError, words, parallel(torch.ones(2, 4).double()).sum().backward)
    model.float()
    parallel(torch.ones(2, 4)).sum().backward()
    assert peer.last_step == before + 1, "nothing has happened"


@case
def an_update_within_backward_is_told_what_to_do(peer: Peer) -> None:
    model, optimizer = linear()
    model.get_parameter("0.bias").register_post_accumulate_grad_hook(lambda _: optimizer.step())  # type: ignore[no-untyped-call]
    parallel = wrap(peer, model, optimizer)
    raises(p2p.ShoalError, "inside a backward pass", parallel(torch.ones(2, 4)).sum().backward)
    raises(p2p.ShoalError, "inside a backward pass", parallel(torch.ones(2, 4)).sum().backward)


@case
def batches_are_added_up_as_the_error_says(peer: Peer) -> None:
    model, optimizer = linear()
    alone = copy.deepcopy(model)
    optimizer_alone = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9)
    parallel = wrap(peer, model, optimizer)
    k = 3
    for i, x in enumerate(torch.randn(9, 2, 6, 4)):
        with parallel.no_sync() if (i + 1) % k else contextlib.nullcontext():
            (parallel(x[peer.rank]).square().mean() / k).backward()
        (alone(x.flatten(0, 1)).square().mean() / k).backward()
        if (i + 1) % k == 0:
            for each in (optimizer, optimizer_alone):
                each.step()
                each.zero_grad()
    for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-6)


class Tables(nn.Module):
    """Two tables with sparse gradients, and a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.bags = nn.Embedding(12, 3, sparse=True), nn.EmbeddingBag(7, 3, sparse=True, mode="sum")
        self.layer = nn.Linear(3, 1)

    def forward(self, words: Tensor) -> Tensor:
        hidden: Tensor = self.words(words).mean(1)
        output: Tensor = self.layer(hidden + self.bags(words[:, 1:] % 7))
        return output


@case
def rows_of_tables_are_averaged_and_no_others_move(peer: Peer) -> None:
    model = Tables()
    alone = copy.deepcopy(model)
    ours, theirs = (
        [
            torch.optim.SparseAdam([*each.words.parameters(), *each.bags.parameters()], lr=0.1),
            torch.optim.SGD(each.layer.parameters(), lr=0.1),
        ]
        for each in (model, alone)
    )
    parallel = wrap(peer, model, ours[0], extra=ours[1:])
    parallel.num_samples(1 + 2 * peer.rank)
    for turn in range(6):
        words = torch.randint(0, 9, (4, 3))  # other rows are unused
        cases: list[tuple[Any, Any, Tensor]] = [
            (parallel, ours, words[:1] if peer.rank == 0 else words[1:]),
            (alone, theirs, words),
        ]
        for used, optimizers, mine in cases:
            for optimizer in optimizers:
                optimizer.zero_grad()
            if turn % 3 == 2 and used is parallel:
                with parallel.no_sync():
                    (used(mine).square().mean() / 2).backward()
                (used(mine).square().mean() / 2).backward()
            else:
                used(mine).square().mean().backward()
            for optimizer in optimizers:
                optimizer.step()
        assert model.words.weight.grad is not None and alone.words.weight.grad is not None
        rows = alone.words.weight.grad.coalesce().indices()
        assert torch.equal(model.words.weight.grad.coalesce().indices(), rows)
        for one, other in zip(model.parameters(), alone.parameters(), strict=True):
            assert torch.allclose(one, other, rtol=1e-5, atol=1e-6), (turn, one - other)
    assert_same_everywhere(peer, torch.cat([p.flatten() for p in model.parameters()]))
    parallel.num_samples(0)
    for optimizer in ours:
        optimizer.zero_grad()
    parallel(torch.zeros(2, 3, dtype=torch.int64)).mean().backward()
    assert model.words.weight.grad is None, "nobody counts"


@case
def a_hook_that_sets_a_gradient_which_was_taken_is_named(peer: Peer) -> None:
    model, optimizer = linear()
    parallel = wrap(peer, model, optimizer)
    parallel(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    (weight,) = (each for name, each in model.named_parameters() if name == "0.weight")
    hook = weight.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", torch.ones_like(p)))  # type: ignore[no-untyped-call]
    words = "a hook of parameter 0.weight set its gradient after it was taken to be averaged"
    raises(p2p.ShoalError, words, lambda: parallel(torch.ones(2, 4)).sum().backward())
    hook.remove()
    parallel(torch.ones(2, 4)).sum().backward()
    assert peer.done == 2 and weight.grad is not None


@case
def a_second_wrapper_is_told_what_to_do(peer: Peer) -> None:
    wrap(peer, *linear())
    raises(
        p2p.ShoalError,
        'trains a model already: wrap all models at once, before any operation, as in p2p.DataParallel(peer, {"G": g',
        lambda: wrap(peer, *linear()),
    )


@case
def a_setting_that_is_not_that_of_the_founder_is_named(peer: Peer) -> None:
    model, optimizer = linear()
    mine = optimizer.param_groups[0]["lr"] = float(np.random.default_rng().random())
    with Said() as lines:
        wrap(peer, model, optimizer)
    said = [line for line in lines if line.startswith("lr of group 0 of SGD was ")]
    assert len(said) == (optimizer.param_groups[0]["lr"] != mine), lines
    told = torch.tensor(len(said))
    peer.all_reduce(told)
    assert told == 1, "one of the two has founded the run"


@case
def samples_that_are_not_a_number_are_used_up_and_named(peer: Peer) -> None:
    data = torch.randn(24, 4)
    data[17] = torch.nan
    model, optimizer = linear()
    parallel = wrap(peer, model, optimizer, nonfinite="skip")
    for seed, max_local_batch in ((0, None), (1, 1)):
        rows = []
        options: dict[str, Any] = {"global_batch": 4, "epochs": 2, "shuffle": False, "seed": seed}
        loader = peer.loader(data, max_local_batch=max_local_batch, **options)
        with Said() as lines:
            for _ in loader.epochs():
                for x in loader:
                    optimizer.zero_grad()
                    parallel(x).square().mean().backward()
                    optimizer.step()
                    if parallel.has_committed:
                        assert peer.receipt is not None
                        rows.append([(each.samples, each.weight) for each in peer.receipt.contributions])
        expected = [[(((4 * step, 2),), 2), (((4 * step + 2, 2),), 2)] for step in range(12)]
        for step in (4, 10):
            expected[step][0] = (((4 * step, 2),), 0)
        assert rows == expected
        named = [line for line in lines if line.endswith("its samples are left out: 16, 17")]
        assert len(named) == (2 if peer.rank == 0 else 0), lines
    assert_same_everywhere(peer, torch.cat([p.flatten() for p in model.parameters()]))


@case
def a_schedule_that_has_seen_the_loss_of_one_peer_is_named_once(peer: Peer) -> None:
    model, optimizer = linear()
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    steady = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    parallel = wrap(peer, model, optimizer, extra=[steady, plateau])
    with Said() as lines:
        for turn in range(6):
            optimizer.zero_grad()
            loss = parallel(torch.full((2, 4), 1.0 + peer.rank)).square().mean()
            loss.backward()
            assert peer.receipt is not None
            optimizer.step()
            steady.step()
            plateau.step(peer.combine(loss.item(), samples=2)[0] if turn < 3 else -1.0 - peer.rank)  # the best so far
            assert not (turn < 4 and lines), lines
            if turn == 3:
                last = peer.receipt.step
    (said,) = lines
    assert said.startswith("ReduceLROnPlateau in extra= differs between peers ")
    assert f"in step {last + 1}, " in said


@case
def a_model_that_has_changed_is_refused_also_where_the_wrapper_is_not_called(peer: Peer) -> None:
    model, optimizer = linear()
    wrap(peer, model, optimizer)
    x: Any = torch.randn(6, 4)
    model(x).square().mean().backward()
    optimizer.step()
    model.requires_grad_(False)
    model.add_module("2", nn.Linear(8, 3))
    optimizer.add_param_group({"params": model.get_submodule("2").parameters()})
    model(x).square().mean().backward()  # reaches only new parameters
    raises(p2p.ShoalError, "parameter 2.weight was replaced after the model was wrapped", optimizer.step)
    assert peer.done == 1


@case
def refresh_comes_between_steps_and_after_the_optimizer_knows(peer: Peer) -> None:
    model, optimizer = linear()
    parallel = wrap(peer, model, optimizer)
    x: Any = torch.randn(2, 6, 4)[peer.rank]
    with parallel.no_sync():
        parallel(x).square().mean().backward()
    raises(p2p.ShoalError, "`refresh` was called in the middle of a step", parallel.refresh)
    parallel(x).square().mean().backward()
    raises(p2p.ShoalError, "`refresh` was called in the middle of a step", parallel.refresh)
    optimizer.step()
    torch.manual_seed(7)
    model.add_module("2", nn.Linear(8, 3))
    raises(ValueError, "is not in its model", parallel.refresh)
    old = optimizer.param_groups[0]["params"][2:]
    optimizer.param_groups[0]["params"][2:] = list(model.get_submodule("2").parameters())
    raises(ValueError, "no longer in any of its groups: call `optimizer.state.pop(parameter, None)`", parallel.refresh)
    for parameter in old:
        del optimizer.state[parameter]
    assert peer.done == 1
    parallel.refresh()
    assert peer.done == 1, "it is no step of training"
    for _ in range(2):
        optimizer.zero_grad()
        parallel(x).square().mean().backward()
        optimizer.step()
    assert peer.done == 3
    assert_same_everywhere(peer, torch.cat([p.detach().flatten() for p in model.parameters()]))
