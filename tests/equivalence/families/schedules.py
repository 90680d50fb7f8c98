"""Learning rates and other settings that change, and averages of weights."""

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional
from torch.optim import lr_scheduler, swa_utils

from ..data import adamw, fit, mlp, sgd
from ..registry import add, case
from ..run import Run

RATE: Final = "lr of group 0 of SGD is"
"""In the text of what differs at a joiner."""


def scheduled(make: Callable[[Any], Any], run: Run) -> None:
    model = mlp()
    optimizer = sgd(model)
    schedule = make(optimizer)
    fit(run, model, optimizer, extra=[schedule], after=schedule.step)
    run.keep(last=schedule.get_last_lr())


def chained(optimizer: Any) -> Any:
    return lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(optimizer, 0.1, 4), lr_scheduler.ExponentialLR(optimizer, 0.95)], optimizer
    )


def in_turn(optimizer: Any) -> Any:
    parts = [lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4), lr_scheduler.CosineAnnealingLR(optimizer, 5000)]
    return lr_scheduler.SequentialLR(optimizer, parts, milestones=[4])


SCHEDULES: Final[dict[str, Callable[[Any], Any]]] = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, 3, 0.8),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [2, 5, 14], 0.7),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.99),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, 0.1, 4),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, 0.1, total_iters=6),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 5000, 2.0),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 8),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 4, 2),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.05, total_steps=5000),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.05, step_size_up=3),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda step: min(1.0, (step + 1) / 5)),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda step: 0.99),
    "ChainedScheduler": chained,
    "SequentialLR": in_turn,
    "SWALR": lambda o: swa_utils.SWALR(o, 0.01, anneal_epochs=5),
}
QUICK: Final = {"OneCycleLR", "SequentialLR"}
ELASTIC: Final = {"StepLR", "OneCycleLR", "CosineAnnealingWarmRestarts", "SequentialLR", "LambdaLR", "CyclicLR"}
for _name, _make in SCHEDULES.items():
    add(_name, partial(scheduled, _make), quick=_name in QUICK, elastic=_name in ELASTIC)


@case()
def ReduceLROnPlateau_on_the_mean_loss_of_all(run: Run) -> None:
    model = mlp()
    optimizer = sgd(model)
    schedule = lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.05)
    parallel = run.wrap(model, optimizer, extra=[schedule])
    for step, (x, y) in enumerate(run.own_loader()):
        optimizer.zero_grad()
        loss = functional.mse_loss(parallel(x), y)
        loss.backward()
        optimizer.step()
        run.log(loss)
        if step % 2:
            schedule.step(run.mean(loss.item()))


@case(warned="ReduceLROnPlateau in extra= differs between peers")
def ReduceLROnPlateau_on_the_loss_of_each(run: Run) -> None:
    model = mlp()
    optimizer = sgd(model)
    schedule = lr_scheduler.ReduceLROnPlateau(optimizer, patience=20)
    parallel = run.wrap(model, optimizer, extra=[schedule])
    for x, y in run.loader():
        optimizer.zero_grad()
        loss = functional.mse_loss(parallel(x), y)
        loss.backward()
        optimizer.step()
        schedule.step(loss.item())


@case(refused="ReplicasDiverged")
def a_learning_rate_of_each_rank(run: Run) -> None:
    model = mlp()
    optimizer = sgd(model)
    parallel = run.wrap(model, optimizer)
    for x, y in run.loader():
        optimizer.param_groups[0]["lr"] = 0.05 * (run.rank + 1)
        optimizer.zero_grad()
        functional.mse_loss(parallel(x), y).backward()
        optimizer.step()


@case(quick=True)
def a_warmup_by_hand(run: Run) -> None:
    model = mlp()
    optimizer = adamw(model)
    parallel = run.wrap(model, optimizer)
    for step, (x, y) in enumerate(run.loader()):
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * min(1.0, (step + 1) / 5)
        optimizer.zero_grad()
        loss = functional.mse_loss(parallel(x), y)
        loss.backward()
        optimizer.step()
        run.log(loss)


def changed_by_hand(run: Run, *, is_taken_first: bool) -> None:
    model = mlp()
    optimizer = adamw(model)
    group = optimizer.param_groups[0]
    parallel = run.wrap(model, optimizer)
    if not is_taken_first:
        group = optimizer.param_groups[0]
    for x, y in run.loader():
        optimizer.zero_grad()
        loss = functional.mse_loss(parallel(x), y)
        loss.backward()
        optimizer.step()
        group["weight_decay"] *= 0.9
        group["betas"] = (group["betas"][0] * 0.95, 0.999)
        run.log(loss)


@case(quick=True, elastic=True)
def decay_and_betas_changed_by_hand(run: Run) -> None:
    changed_by_hand(run, is_taken_first=False)


@case(quick=True, elastic=True)
def a_group_that_is_taken_before_the_wrap_and_changed_by_hand(run: Run) -> None:
    changed_by_hand(run, is_taken_first=True)


@case()
def a_schedule_that_is_called_before_the_wrap(run: Run) -> None:
    model = mlp()
    optimizer = sgd(model)
    schedule = lr_scheduler.StepLR(optimizer, 3, 0.8)
    optimizer.step()
    for _ in range(4):
        schedule.step()
    fit(run, model, optimizer, extra=[schedule], after=schedule.step)


# What is forgotten in extra.


@case(elastic=True, joiner_refused=RATE)
def a_schedule_that_is_not_in_extra(run: Run) -> None:
    model = mlp()
    optimizer = sgd(model)
    schedule = lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 500))
    fit(run, model, optimizer, after=schedule.step)


@case(elastic=True, joiner_refused=RATE)
def a_learning_rate_by_a_counter_of_the_script(run: Run) -> None:
    model = mlp()
    optimizer = sgd(model)
    turns = count()

    def warm_up() -> None:
        optimizer.param_groups[0]["lr"] = 0.05 * min(1.0, (next(turns) + 1) / 500)

    fit(run, model, optimizer, before=warm_up)


@case(elastic=True, joiner_refused="parameter 2.weight is")
def a_second_optimizer_that_is_not_in_extra(run: Run) -> None:
    model = mlp()
    last = adamw(model[2])
    fit(run, model, sgd(model[0]), after=lambda: (last.step(), last.zero_grad()))


@case(
    elastic=True,
    joiner_warned="AveragedModel has a copy of the model's parameters that changes",
)
def an_average_of_weights_that_is_not_in_extra(run: Run) -> None:
    model = mlp()
    average = swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.99))
    fit(run, model, adamw(model), after=lambda: average.update_parameters(model))
    run.keep(average=dict(average.module.named_parameters()))


class Followed:
    """An average as it is often written: without a state, of new tensors in each update."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.shadow = {name: value.detach().clone() for name, value in model.named_parameters()}

    def update(self) -> None:
        for name, value in self.model.named_parameters():
            self.shadow[name] = 0.99 * self.shadow[name] + 0.01 * value.detach()


@case(elastic=True, joiner_warned="a dict of the script has a copy of the model's parameters")
def an_average_of_weights_in_a_class_without_a_state(run: Run) -> None:
    model = mlp()
    followed = Followed(model)
    fit(run, model, adamw(model), after=followed.update)
    run.keep(average=followed.shadow)


@case(elastic=True, joiner_warned="a list of the script has a copy of the model's parameters")
def an_average_of_weights_in_a_list(run: Run) -> None:
    model = mlp()
    average = [value.detach().clone() for value in model.parameters()]

    @torch.no_grad()
    def update() -> None:
        for value, parameter in zip(average, model.parameters(), strict=True):
            value.lerp_(parameter, 0.01)

    fit(run, model, adamw(model), after=update)
    run.keep(average=average)


# Averages of weights.


@case(quick=True, elastic=True)
def an_average_of_weights_in_extra(run: Run) -> None:
    model = mlp()
    average = swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9))
    fit(run, model, adamw(model), extra=[average], after=lambda: average.update_parameters(model))


@case(elastic=True)
def stochastic_weight_averaging(run: Run) -> None:
    model = mlp()
    optimizer = sgd(model)
    average = swa_utils.AveragedModel(model)
    schedule = swa_utils.SWALR(optimizer, 0.02, anneal_epochs=3)

    def update() -> None:
        average.update_parameters(model)
        schedule.step()

    fit(run, model, optimizer, extra=[average, schedule], after=update)


class Shadow:
    """An own average, with a state."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.values = {name: value.detach().clone() for name, value in model.named_parameters()}

    @torch.no_grad()
    def update(self) -> None:
        for name, value in self.model.named_parameters():
            self.values[name].lerp_(value, 0.1)

    def state_dict(self) -> dict[str, Any]:
        return {"values": dict(self.values)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.values = {name: value.clone() for name, value in state_dict["values"].items()}


@case(elastic=True)
def an_own_average_of_weights_in_extra(run: Run) -> None:
    model = mlp()
    shadow = Shadow(model)
    fit(run, model, adamw(model), extra=[shadow], after=shadow.update)
