"""How parameters lie in memory, and how models hold them."""

from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn, optim
from torch.nn import functional

from ..data import adamw, convolutional, fit, mlp, mlp_with, sgd
from ..registry import add, case
from ..run import Run

KINDS: Final[dict[str, dict[str, Any]]] = {
    "fused": {"fused": True},
    "foreach": {"foreach": True},
    "one_by_one": {"foreach": False},
}


def channels_last(kind: Any, options: dict[str, Any], run: Run) -> None:
    model = convolutional().to(memory_format=torch.channels_last)
    fit(run, model, kind(model.parameters(), lr=0.01, **options), data="images")


def transposed(options: dict[str, Any], run: Run) -> None:
    model = mlp()
    model[0].weight = nn.Parameter(torch.randn(4, 8).t())
    fit(run, model, adamw(model, **options))


for _name, _options in KINDS.items():
    add(
        f"channels_last_AdamW_{_name}",
        partial(channels_last, optim.AdamW, _options),
        quick=_name == "fused",
        elastic=True,
    )
    add(f"a_transposed_weight_AdamW_{_name}", partial(transposed, _options), elastic=_name == "fused")
add("channels_last_Adagrad_fused", partial(channels_last, optim.Adagrad, KINDS["fused"]), elastic=True)
add("channels_last_SGD_fused", partial(channels_last, optim.SGD, {"fused": True, "momentum": 0.9}))


@case()
def channels_last_in_3_dimensions(run: Run) -> None:
    model = nn.Sequential(nn.Conv3d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(32, 3))
    model.to(memory_format=torch.channels_last_3d)
    fit(run, model, adamw(model, fused=True), data="volumes")


@case()
def a_parameter_that_is_part_of_a_larger_tensor(run: Run) -> None:
    model = mlp()
    model[0].weight = nn.Parameter(torch.randn(8, 6)[:, :4])
    fit(run, model, adamw(model))


@case(elastic=True)
def all_parameters_are_parts_of_one_tensor(run: Run) -> None:
    model = mlp()
    whole = torch.randn(sum(parameter.numel() for parameter in model.parameters())) / 2
    sizes = [parameter.numel() for parameter in model.parameters()]
    for parameter, part in zip(model.parameters(), whole.split(sizes), strict=True):
        parameter.data = part.view_as(parameter)
    fit(run, model, adamw(model))


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.nothing = nn.Parameter(torch.zeros(0, 3))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.nothing.sum()


@case(quick=True)
def parameters_without_dimensions_and_without_elements(run: Run) -> None:
    model = mlp_with(Scaled())
    fit(run, model, adamw(model))


class Held(nn.Module):
    """Parameters and layers in all containers."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(4) / 2) for _ in range(3)])
        self.shifts = nn.ParameterDict({"in": nn.Parameter(torch.zeros(4)), "out": nn.Parameter(torch.zeros(3))})
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])
        self.heads = nn.ModuleDict({"left": nn.Linear(4, 3), "right": nn.Linear(4, 3)})

    def forward(self, x: Tensor) -> Tensor:
        x = x * sum(self.weights) + self.shifts["in"]
        for layer in self.layers:
            x = torch.tanh(layer(x))
        outputs: Tensor = self.heads["left"](x) * self.heads["right"](x) + self.shifts["out"]
        return outputs


@case(quick=True)
def lists_and_dicts_of_parameters_and_modules(run: Run) -> None:
    model = Held()
    fit(run, model, adamw(model))


@case()
def lazy_modules(run: Run) -> None:
    model = nn.Sequential(nn.LazyLinear(8), nn.Tanh(), nn.LazyLinear(3))
    model(torch.zeros(2, 4))
    fit(run, model, adamw(model))


@case(refused="UninitializedParameter")
def lazy_modules_that_have_seen_nothing(run: Run) -> None:
    model = nn.Sequential(nn.LazyLinear(8), nn.Tanh(), nn.LazyLinear(3))
    if run.is_alone:
        model(torch.zeros(2, 4))
    fit(run, model, sgd(model))


@case(quick=True, elastic=True)
def tied_weights(run: Run) -> None:
    model = mlp_with(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    model[3].weight = model[1].weight
    fit(run, model, adamw(model))


@case()
def one_layer_used_many_times(run: Run) -> None:
    layer = nn.Linear(8, 8)
    model = mlp_with(layer, nn.Tanh(), layer, nn.Tanh(), layer)
    fit(run, model, adamw(model))


@case()
def parameters_larger_than_a_bucket(run: Run) -> None:
    model = nn.Sequential(nn.Linear(4, 500), nn.Tanh(), nn.Linear(500, 3))
    fit(run, model, adamw(model, lr=1e-3), bucket_bytes=1000)


@case()
def all_in_one_bucket(run: Run) -> None:
    model = mlp()
    fit(run, model, adamw(model), bucket_bytes=1 << 20)


class Many(nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.parts = nn.ParameterList([nn.Parameter(torch.full((4,), 1e-3)) for _ in range(number)])

    def forward(self, x: Tensor) -> Any:
        return (x * torch.stack(list(self.parts)).sum(0))[:, :3]


@case()
def a_thousand_parameters(run: Run) -> None:
    model = Many(1000)
    fit(run, model, sgd(model, lr=1e-5, foreach=True), bucket_bytes=1 << 16)


class Turned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.turn = nn.Parameter(torch.ones(4, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        return torch.view_as_real(torch.view_as_complex(x.view(-1, 4, 2)) * self.turn).flatten(1)


@case(quick=True, refused="parameter 1.turn is torch.complex64")
def complex_parameters(run: Run) -> None:
    model = mlp_with(Turned())
    fit(run, model, sgd(model))


class TurnedByRealNumbers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.turn = nn.Parameter(torch.ones(4, 2))

    def forward(self, x: Tensor) -> Tensor:
        turn = torch.view_as_complex(self.turn)
        return torch.view_as_real(torch.view_as_complex(x.view(-1, 4, 2)) * turn).flatten(1)


@case(quick=True)
def complex_numbers_made_of_real_parameters(run: Run) -> None:
    model = mlp_with(TurnedByRealNumbers())
    fit(run, model, adamw(model))


@case()
def a_fourier_transform(run: Run) -> None:
    model = nn.Sequential(nn.Linear(4, 8), Spectrum(), nn.Linear(5, 3))
    fit(run, model, adamw(model))


class Spectrum(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return torch.fft.rfft(x).abs()


@case(quick=True, refused="elements of 1.scale share memory")
def an_expanded_parameter(run: Run) -> None:
    scaled = nn.Module()
    model = mlp_with(scaled)
    scaled.scale = nn.Parameter(torch.ones(1).expand(8))
    scaled.forward = lambda x: x * scaled.scale
    if run.is_alone:
        scaled.scale = nn.Parameter(torch.ones(8))
    fit(run, model, sgd(model), loss_of=functional.mse_loss)
