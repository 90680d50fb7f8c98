"""Optimizers of torch in their variants, own ones, and updates by hand."""

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn, optim
from torch.nn import functional

from ..data import adamw, fit, mlp, sgd
from ..registry import add, case
from ..run import Run

Make = Callable[[nn.Module], optim.Optimizer]


def train(make: Make, run: Run) -> None:
    model = mlp()
    fit(run, model, make(model))


def of(kind: Any, **options: Any) -> Make:
    return lambda model: kind(model.parameters(), **options)


def of_groups(kind: Any, *groups: dict[str, Any], **options: Any) -> Make:
    """A group for each layer with parameters."""

    def make(model: nn.Module) -> Any:
        layers = [layer for layer in model.children() if list(layer.parameters())]
        return kind([{"params": list(at.parameters()), **g} for at, g in zip(layers, groups, strict=True)], **options)

    return make


class Lion(optim.Optimizer):
    """Own optimizer: the sign of a mixture of gradient and momentum (Chen et al. 2023)."""

    def __init__(self, parameters: Any, lr: float = 1e-3) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                momentum = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
                parameter.sub_(torch.tanh(1e3 * (0.9 * momentum + 0.1 * parameter.grad)), alpha=group["lr"])
                momentum.lerp_(parameter.grad, 0.01)


def weights_and_biases(model: nn.Module) -> optim.Optimizer:
    decayed = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    others = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    return optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=0.01)


VARIANTS: Final[dict[str, Make]] = {
    "SGD": of(optim.SGD, lr=0.05),
    "SGD_momentum": of(optim.SGD, lr=0.05, momentum=0.9),
    "SGD_Nesterov_and_decay": of(optim.SGD, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "SGD_dampening": of(optim.SGD, lr=0.05, momentum=0.9, dampening=0.5),
    "SGD_fused": of(optim.SGD, lr=0.05, momentum=0.9, fused=True),
    "SGD_foreach": of(optim.SGD, lr=0.05, momentum=0.9, foreach=True),
    "SGD_maximizes": of(optim.SGD, lr=1e-3, maximize=True),
    "Adam": of(optim.Adam, lr=0.01),
    "Adam_AMSGrad": of(optim.Adam, lr=0.01, amsgrad=True),
    "Adam_fused": of(optim.Adam, lr=0.01, fused=True),
    "Adam_with_decay_in_the_loss": of(optim.Adam, lr=0.01, weight_decay=0.1),
    "AdamW": of(optim.AdamW, lr=0.01),
    "AdamW_fused": of(optim.AdamW, lr=0.01, fused=True),
    "AdamW_foreach": of(optim.AdamW, lr=0.01, foreach=True),
    "AdamW_one_by_one": of(optim.AdamW, lr=0.01, foreach=False),
    "AdamW_with_a_tensor_as_lr": lambda model: optim.AdamW(model.parameters(), lr=torch.tensor(0.01)),
    "AdamW_with_named_parameters": lambda model: optim.AdamW(model.named_parameters(), lr=0.01),
    "AdamW_decay_of_weights_only": weights_and_biases,
    "Adagrad": of(optim.Adagrad, lr=0.05),
    "Adagrad_fused": of(optim.Adagrad, lr=0.05, fused=True),
    "Adadelta": of(optim.Adadelta, lr=0.5),
    "Adamax": of(optim.Adamax, lr=0.01),
    "NAdam": of(optim.NAdam, lr=0.01),
    "RAdam": of(optim.RAdam, lr=0.01),
    "ASGD": of(optim.ASGD, lr=0.05),
    "Rprop": of(optim.Rprop, lr=0.01),
    "RMSprop": of(optim.RMSprop, lr=0.01),
    "RMSprop_centered_with_momentum": of(optim.RMSprop, lr=0.003, centered=True, momentum=0.5),
    "Adafactor": of(optim.Adafactor, lr=0.01),
    "an_own_optimizer": of(Lion, lr=0.01),
    "groups_with_their_own_lr": of_groups(optim.SGD, {"lr": 0.1}, {"lr": 0.01, "momentum": 0.5}, lr=0.1),
    "a_group_with_lr_0": of_groups(optim.AdamW, {"lr": 0.0}, {"lr": 0.01}, weight_decay=0.1),
}
QUICK: Final = {"SGD_momentum", "AdamW_fused", "Adafactor", "AdamW_with_a_tensor_as_lr"}
ELASTIC: Final = {
    "SGD_Nesterov_and_decay",
    "Adam_AMSGrad",
    "AdamW_fused",
    "AdamW_with_a_tensor_as_lr",
    "Adagrad_fused",
    "RMSprop_centered_with_momentum",
    "Adafactor",
    "an_own_optimizer",
    "groups_with_their_own_lr",
}
for _name, _make in VARIANTS.items():
    add(_name, partial(train, _make), quick=_name in QUICK, elastic=_name in ELASTIC)


@case(quick=True, elastic=True)
def two_optimizers_the_second_in_extra(run: Run) -> None:
    model = mlp()
    first, last = sgd(model[0]), adamw(model[2])
    parallel = run.wrap(model, first, extra=[last])
    for x, y in run.loader():
        model.zero_grad()
        loss = functional.mse_loss(parallel(x), y)
        loss.backward()
        first.step()
        last.step()
        run.log(loss)


@case(elastic=True, rounding=(2e-3, "Newton-Schulz in bfloat16"))
def Muon_for_matrices_and_AdamW_in_extra(run: Run) -> None:
    model = mlp()
    muon = optim.Muon([p for p in model.parameters() if p.ndim == 2], lr=0.01)
    others = optim.AdamW([p for p in model.parameters() if p.ndim < 2], lr=0.01)
    parallel = run.wrap(model, muon, extra=[others])
    for x, y in run.loader():
        model.zero_grad()
        loss = functional.mse_loss(parallel(x), y)
        loss.backward()
        muon.step()
        others.step()
        run.log(loss)


@case()
def an_update_by_hand(run: Run) -> None:
    model = mlp()
    parallel = run.wrap(model, sgd(model))
    for x, y in run.loader():
        model.zero_grad()
        loss = functional.mse_loss(parallel(x), y)
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter -= 0.05 * parameter.grad
        run.log(loss)


@case(quick=True)
def a_closure(run: Run) -> None:
    model = mlp()
    optimizer = sgd(model)
    parallel = run.wrap(model, optimizer)
    for x, y in run.loader():

        def closure(x: Tensor = x, y: Tensor = y) -> Any:
            optimizer.zero_grad()
            loss = functional.mse_loss(parallel(x), y)
            loss.backward()
            return loss

        run.log(optimizer.step(closure))


@case(quick=True, refused="Optimizers that evaluate the model several times (LBFGS) cannot be used")
def LBFGS(run: Run) -> None:
    model = mlp()
    optimizer = optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    parallel = run.wrap(model, optimizer)
    for x, y in run.own_loader():

        def closure(x: Tensor = x, y: Tensor = y) -> Any:
            optimizer.zero_grad()
            loss = functional.mse_loss(parallel(x), y)
            loss.backward()
            return loss

        run.log(optimizer.step(closure))


@case(quick=True)
def a_learning_rate_that_is_a_numpy_scalar(run: Run) -> None:
    model = mlp()
    fit(run, model, sgd(model, lr=np.float64(0.05)))


@case(refused="set is not allowed")
def a_set_in_a_group(run: Run) -> None:
    model = mlp()
    optimizer = sgd(model)
    optimizer.param_groups[0]["tags"] = {"all"}
    fit(run, model, optimizer)


@case()
def a_compiled_update(run: Run) -> None:
    model = mlp()
    optimizer = sgd(model)
    parallel = run.wrap(model, optimizer)
    update = torch.compile(optimizer.step, backend="eager")
    for x, y in run.loader():
        optimizer.zero_grad()
        loss = functional.mse_loss(parallel(x), y)
        loss.backward()
        update()
        run.log(loss)


@case()
def lookahead(run: Run) -> None:
    model = mlp()
    slow = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = sgd(model)
    turns = count(1)

    @torch.no_grad()
    def step_back() -> None:
        if next(turns) % 3 == 0:
            for parameter, kept in zip(model.parameters(), slow, strict=True):
                parameter.copy_(kept.lerp_(parameter, 0.5))

    fit(run, model, optimizer, after=step_back)


@case(refused="a hook of parameter 2.bias set its gradient to None before it was averaged")
def an_update_in_a_hook_of_each_gradient(run: Run) -> None:
    model = mlp()
    each = {parameter: optim.SGD([parameter], lr=0.05) for parameter in model.parameters()}

    def update(parameter: Tensor) -> None:
        each[parameter].step()
        each[parameter].zero_grad()

    parallel = run.wrap(model, next(iter(each.values())))
    for parameter in each:
        parameter.register_post_accumulate_grad_hook(update)
    for x, y in run.loader():
        loss = functional.mse_loss(parallel(x), y)
        loss.backward()
        run.log(loss)
