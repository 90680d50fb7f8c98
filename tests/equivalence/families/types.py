"""Types of parameters, autocast, loss scaling."""

from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..data import adamw, convolutional, fit, mlp, sgd
from ..registry import add, case
from ..run import Run

IN_BF16: Final = (2e-2, "bfloat16 has 8 bits; gradients are averaged in it")
IN_FP16: Final = (3e-3, "float16 has 11 bits; gradients are averaged in it")
AUTOCAST: Final = (5e-3, "products in bfloat16, of other batches")


class Cast(nn.Module):
    """To the type of the layers behind it."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, x: Tensor) -> Tensor:
        return x.to(self.dtype)


def in_one_type(dtype: torch.dtype, run: Run) -> None:
    model = nn.Sequential(Cast(dtype), mlp().to(dtype), Cast(torch.promote_types(dtype, torch.float32)))
    fit(run, model, sgd(model, lr=0.01), loss_of=lambda output, y: functional.mse_loss(output, y.to(output.dtype)))


add("float64", partial(in_one_type, torch.float64), rounding=(1e-14, "float64"))
add("bfloat16", partial(in_one_type, torch.bfloat16), rounding=IN_BF16, quick=True)
add("float16", partial(in_one_type, torch.float16), rounding=IN_FP16)


@case(rounding=IN_BF16, elastic=True)
def a_bfloat16_trunk_and_a_float32_head(run: Run) -> None:
    trunk = nn.Sequential(Cast(torch.bfloat16), nn.Linear(4, 8, dtype=torch.bfloat16))
    model = nn.Sequential(trunk, nn.Tanh(), Cast(torch.float32), nn.Linear(8, 3))
    fit(run, model, sgd(model, lr=0.01))


@case(quick=True)
def parameters_of_four_types(run: Run) -> None:
    model = nn.ParameterList(
        nn.Parameter(torch.full((4, 3), 0.25, dtype=dtype))
        for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.float16)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=2**-7)
    whole = nn.Module()
    whole.parts = model
    whole.forward = lambda x: torch.stack([(part * s).sum().double() for part, s in zip(model, x, strict=True)]).sum()
    parallel = run.wrap(whole, optimizer)
    for _ in run.own_loader():
        optimizer.zero_grad()
        loss = parallel([1, 2, 3, 4])  # gradients that all types have exactly
        loss.backward()
        optimizer.step()
        run.log(loss)


@case(rounding=AUTOCAST, quick=True)
def autocast(run: Run) -> None:
    model = mlp()
    optimizer = sgd(model)
    parallel = run.wrap(model, optimizer)
    for x, y in run.loader():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = functional.mse_loss(parallel(x).float(), y)
        loss.backward()
        optimizer.step()
        run.log(loss)


@case(rounding=AUTOCAST)
def autocast_and_channels_last(run: Run) -> None:
    model = convolutional().to(memory_format=torch.channels_last)
    forward = model.forward
    model.forward = torch.autocast("cpu", torch.bfloat16)(forward)
    fit(run, model, sgd(model), data="images", loss_of=lambda output, y: functional.mse_loss(output.float(), y))


def with_a_scaler(run: Run, scaler: torch.amp.GradScaler, *, extra: bool = True, infinite: tuple[int, ...] = ()) -> Any:
    model = mlp()
    optimizer = sgd(model)
    parallel = run.wrap(model, optimizer, extra=[scaler] if extra else [])
    for step, (x, y) in enumerate(run.loader()):
        optimizer.zero_grad()
        loss = functional.mse_loss(parallel(x), y)
        if step in infinite and run.rank == 0:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        if step not in infinite:
            run.log(loss)
    run.keep(scale=scaler.get_scale())


@case(quick=True, elastic=True)
def a_scaler_in_extra(run: Run) -> None:
    with_a_scaler(run, torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3))


@case()
def a_scaler_leaves_steps_out_that_one_peer_finds_infinite(run: Run) -> None:
    with_a_scaler(run, torch.amp.GradScaler("cpu", init_scale=2.0**10), infinite=(2, 3))


@case()
def a_scaler_that_is_not_in_extra(run: Run) -> None:
    with_a_scaler(run, torch.amp.GradScaler("cpu", init_scale=2.0**10), extra=False)


@case(quick=True, refused="If you use a GradScaler, pass extra=[scaler]")
def a_scaler_that_is_not_in_extra_and_infinity(run: Run) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    model = mlp()
    optimizer = sgd(model)
    parallel = run.wrap(model, optimizer)
    for step, (x, y) in enumerate(run.loader()):
        optimizer.zero_grad()
        loss = functional.mse_loss(parallel(x), y) * (float("inf") if step == 2 else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


@case()
def a_scaler_that_is_switched_off(run: Run) -> None:
    with_a_scaler(run, torch.amp.GradScaler("cpu", enabled=False))


@case()
def a_loss_scaled_by_hand(run: Run) -> None:
    model = mlp()

    def unscale() -> None:
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad.div_(1024.0)

    fit(run, model, adamw(model), loss_of=lambda output, y: 1024.0 * functional.mse_loss(output, y), before=unscale)


@case(rounding=IN_BF16)
def float32_copies_of_bfloat16_parameters(run: Run) -> None:
    model = nn.Sequential(Cast(torch.bfloat16), mlp().to(torch.bfloat16), Cast(torch.float32))
    copies = [parameter.detach().float() for parameter in model.parameters()]
    optimizer = torch.optim.SGD(copies, lr=0.01)
    parallel = run.wrap(model, sgd(model), extra=[optimizer])
    for x, y in run.loader():
        model.zero_grad()
        loss = functional.mse_loss(parallel(x), y)
        loss.backward()
        for copy, parameter in zip(copies, model.parameters(), strict=True):
            copy.grad = None if parameter.grad is None else parameter.grad.float()
        optimizer.step()
        with torch.no_grad():
            for copy, parameter in zip(copies, model.parameters(), strict=True):
                parameter.copy_(copy)


class Adapted(nn.Module):
    """A frozen matrix in 8 bits, and two small ones that are trained (LoRA)."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Parameter(torch.randint(-127, 127, (8, 8), dtype=torch.int8), requires_grad=False)
        self.down, self.up = nn.Parameter(torch.randn(8, 2) / 4), nn.Parameter(torch.zeros(2, 8))

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.base.float() / 400 + self.down @ self.up)


@case(quick=True, elastic=True)
def adapters_of_a_frozen_int8_matrix(run: Run) -> None:
    model = nn.Sequential(nn.Linear(4, 8), Adapted(), nn.Tanh(), nn.Linear(8, 3))
    fit(run, model, torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01))


@case()
def a_frozen_float8_matrix(run: Run) -> None:
    model = mlp()
    model.register_parameter("base", nn.Parameter(torch.ones(4, 4).to(torch.float8_e4m3fn), requires_grad=False))
    fit(run, model, torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01))


@case(refused="parameter 2.bias is torch.float64 [3] with strides [1], but was torch.float32")
def a_model_moved_to_float64_after_it_was_wrapped(run: Run) -> None:
    model = mlp() if not run.is_alone else mlp().double()
    optimizer = sgd(model)
    parallel = run.wrap(model, optimizer)
    model.double()
    for x, y in run.loader():
        optimizer.zero_grad()
        functional.mse_loss(parallel(x.double()), y.double()).backward()
        optimizer.step()
