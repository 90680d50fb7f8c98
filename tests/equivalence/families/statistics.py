"""Normalization, buffers, dropout: what a replica collects from its own samples."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..data import adamw, convolutional, fit, mlp, mlp_with, sgd
from ..registry import add, case
from ..run import Run

LOCAL: Final = "normalized over the rank's part, as DDP does; the statistics are averaged"
MASKS: Final = "each rank draws masks for its own part; of one seed, the same"


def with_layers(make: Callable[[], list[nn.Module]], run: Run) -> None:
    model = convolutional(*make())
    fit(run, model, sgd(model), data="images")


EQUAL: Final[dict[str, Callable[[], list[nn.Module]]]] = {
    "GroupNorm": lambda: [nn.GroupNorm(2, 6)],
    "LayerNorm": lambda: [nn.LayerNorm([6, 4, 4])],
    "RMSNorm": lambda: [nn.RMSNorm([6, 4, 4])],
    "InstanceNorm": lambda: [nn.InstanceNorm2d(6, affine=True)],
    "InstanceNorm_with_statistics": lambda: [nn.InstanceNorm2d(6, affine=True, track_running_stats=True)],
    "local_response_normalization": lambda: [nn.LocalResponseNorm(2)],
    "BatchNorm_without_training": lambda: [nn.BatchNorm2d(6).eval()],
}
for _name, _make in EQUAL.items():
    add(
        _name,
        partial(with_layers, _make),
        quick=_name in {"LayerNorm", "InstanceNorm_with_statistics"},
        elastic=_name in {"InstanceNorm_with_statistics", "LayerNorm"},
    )
add("BatchNorm", partial(with_layers, lambda: [nn.BatchNorm2d(6)]), as_ddp=LOCAL, quick=True)
add(
    "BatchNorm_with_the_mean_of_all_batches",
    partial(with_layers, lambda: [nn.BatchNorm2d(6, momentum=None)]),
    as_ddp=LOCAL,
)
add(
    "BatchNorm_without_statistics",
    partial(with_layers, lambda: [nn.BatchNorm2d(6, track_running_stats=False)]),
    as_ddp=LOCAL,
)


@case()
def BatchNorm_frozen_with_its_statistics(run: Run) -> None:
    norm = nn.BatchNorm2d(6)
    norm.running_mean, norm.running_var = torch.rand(6), torch.rand(6) + 0.5
    norm.eval().requires_grad_(False)
    model = convolutional(norm)
    fit(run, model, torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05), data="images")


@case(as_ddp=LOCAL)
def BatchNorm_with_evaluations_in_between(run: Run) -> None:
    model = convolutional(nn.BatchNorm2d(6))

    @torch.no_grad()
    def evaluate() -> None:
        model.eval()
        model(torch.ones(2, 2, 6, 6))
        model.train()

    fit(run, model, sgd(model), data="images", after=evaluate)


@case(refused="layer 1 is a SyncBatchNorm")
def SyncBatchNorm(run: Run) -> None:
    model = convolutional(nn.BatchNorm2d(6))
    if not run.is_alone:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    fit(run, model, sgd(model), data="images")


# Dropout and other noise.


@case(as_ddp=MASKS, quick=True)
def dropout(run: Run) -> None:
    model = mlp_with(nn.Dropout(0.2))
    optimizer = sgd(model)
    parallel = run.wrap(model, optimizer)
    for x, y in run.own_loader():
        optimizer.zero_grad()
        functional.mse_loss(parallel(x), y).backward()
        optimizer.step()


@case()
def dropout_without_training(run: Run) -> None:
    model = mlp_with(nn.Dropout(0.2)).eval()
    fit(run, model, sgd(model))


@case()
def a_mask_that_is_the_same_for_all_samples(run: Run) -> None:
    class Masked(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * (torch.rand(8) > 0.2)

    model = mlp_with(Masked())
    optimizer = sgd(model)
    parallel = run.wrap(model, optimizer)
    for step, (x, y) in enumerate(run.loader()):
        torch.manual_seed(step)
        optimizer.zero_grad()
        loss = functional.mse_loss(parallel(x), y)
        loss.backward()
        optimizer.step()
        run.log(loss)


@case()
def spectral_norm_of_the_old_kind(run: Run) -> None:
    model = mlp_with(torch.nn.utils.spectral_norm(nn.Linear(8, 8)))
    fit(run, model, sgd(model))


# Buffers.


class Codebook(nn.Module):
    """Vectors that follow the samples by an exponential mean (van den Oord et al. 2017)."""

    codes: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("codes", torch.randn(4, 8, generator=torch.Generator().manual_seed(3)))

    def forward(self, x: Tensor) -> Tensor:
        nearest = torch.cdist(x.detach(), self.codes).argmin(1)
        with torch.no_grad():
            for code in nearest.unique():
                self.codes[code].lerp_(x[nearest == code].mean(0), 0.1)
        return x + (self.codes[nearest] - x).detach()


@case(warned="buffer 1.codes differs between peers")
def a_codebook_that_follows_the_samples(run: Run) -> None:
    model = mlp_with(Codebook())
    fit(run, model, sgd(model))


@case(as_ddp="the codebook is rank 0's, which follows its part, as DDP's")
def a_codebook_of_rank_0(run: Run) -> None:
    model = mlp_with(Codebook())
    fit(run, model, sgd(model), buffers="rank0")


class Ranges(nn.Module):
    """The largest value seen, as an observer for quantization keeps it."""

    largest: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("largest", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.largest.copy_(torch.maximum(self.largest, x.detach().abs().max()))
        return x


@case(quick=True, warned="buffer 1.largest differs between peers")
def a_range_that_is_observed(run: Run) -> None:
    model = mlp_with(Ranges())
    fit(run, model, sgd(model))


@case(quick=True)
def a_range_that_the_script_makes_one(run: Run) -> None:
    model = mlp_with(ranges := Ranges())
    optimizer = sgd(model)
    parallel = run.wrap(model, optimizer, buffers="local")
    for x, y in run.loader():
        optimizer.zero_grad()
        loss = functional.mse_loss(parallel(x), y)
        loss.backward()
        optimizer.step()
        run.log(loss)
        run.make_largest(ranges.largest)


class Counted(nn.Module):
    """The same wherever it is counted: how many steps, and a mean that all replicas compute of the weights."""

    number: Tensor
    mean: Tensor

    def __init__(self, *, persistent: bool = True) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))
        self.register_buffer("number", torch.zeros((), dtype=torch.int64), persistent=persistent)
        self.register_buffer("mean", torch.zeros(8), persistent=persistent)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.number += 1
            self.mean.lerp_(self.scale, 0.1)
        return x * self.scale


@case(quick=True, elastic=True)
def buffers_that_are_the_same_everywhere(run: Run) -> None:
    model = mlp_with(Counted())
    fit(run, model, adamw(model))


@case(elastic=True)
def buffers_that_are_not_persistent(run: Run) -> None:
    model = mlp_with(Counted(persistent=False))
    fit(run, model, adamw(model))


@case()
def a_table_that_never_changes(run: Run) -> None:
    model = mlp()
    table = torch.arange(24.0).view(8, 3) / 100
    model.register_buffer("table", table)
    model.forward = lambda x: torch.tanh(model[0](x)) @ (model[2].weight.t() + model.get_buffer("table"))
    model[2].bias.requires_grad_(False)
    fit(run, model, sgd(model))


class WithExtraState(nn.Linear):
    def get_extra_state(self) -> Any:
        return {"version": 1, "names": ["a", "b"]}

    def set_extra_state(self, state: Any) -> None:
        pass


@case(quick=True)
def a_module_with_extra_state(run: Run) -> None:
    model = mlp()
    model[0] = WithExtraState(4, 8)
    fit(run, model, sgd(model))


class MomentumEncoder(nn.Module):
    """An encoder, and an average of it that each forward pass moves on."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.average = mlp(), mlp().requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            for each, average in zip(self.encoder.parameters(), self.average.parameters(), strict=True):
                average.mul_(0.9).add_(each, alpha=0.1)
        predicted: Tensor = self.encoder(x) + 0.1 * self.average(x)
        return predicted


@case(elastic=True)
def a_momentum_encoder_that_the_forward_pass_moves_on(run: Run) -> None:
    model = MomentumEncoder()
    fit(run, model, sgd(model.encoder))
