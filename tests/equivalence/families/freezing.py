"""Parameters that are frozen, used by some or nobody, or added while a run is under way."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..data import adamw, fit, mlp, mlp_with, sgd
from ..registry import case
from ..run import Run

FINDS: Final[dict[str, Any]] = {"find_unused_parameters": True}
FREEZE_AFTER: Final = 6


def steps(run: Run) -> Iterator[tuple[int, Any, Any]]:
    """(step, x, y) of the loader; the step is that of the swarm."""
    peer = getattr(run, "peer", None)
    for number, (x, y) in enumerate(run.loader()):
        yield (number if peer is None else peer.done), x, y


@case(quick=True)
def a_layer_frozen_from_the_start(run: Run) -> None:
    model = mlp()
    model[0].requires_grad_(False)
    fit(run, model, torch.optim.SGD(model[2].parameters(), lr=0.05))


@case()
def a_frozen_layer_that_the_optimizer_has(run: Run) -> None:
    model = mlp()
    model[0].requires_grad_(False)
    fit(run, model, adamw(model, weight_decay=0.1))


def frozen_later(run: Run, make: Any, is_now: Callable[[int], bool]) -> None:
    model = mlp()
    optimizer = make(model)
    parallel = run.wrap(model, optimizer, ddp=FINDS)
    for step, x, y in steps(run):
        if is_now(step):
            model[0].requires_grad_(False)
        optimizer.zero_grad()
        loss = functional.mse_loss(parallel(x), y)
        loss.backward()
        optimizer.step()
        run.log(loss)


@case(quick=True, elastic=True)
def a_layer_frozen_at_one_step(run: Run) -> None:
    frozen_later(run, lambda model: sgd(model, weight_decay=0.1), lambda step: step == FREEZE_AFTER)


@case(elastic=True)
def a_layer_frozen_from_a_step_on(run: Run) -> None:
    frozen_later(run, lambda model: adamw(model, weight_decay=0.1), lambda step: step >= FREEZE_AFTER)


def changed(run: Run, change: Callable[[Any, Any], None], model: Any, *, is_told: bool = False) -> None:
    """The model becomes another one in the middle."""
    optimizer = sgd(model)
    parallel = run.wrap(model, optimizer)
    for step, (x, y) in enumerate(run.loader()):
        if step == FREEZE_AFTER:
            change(model, optimizer)
            if is_told:
                parallel.refresh()
        optimizer.zero_grad()
        loss = functional.mse_loss(parallel(x), y)
        loss.backward()
        optimizer.step()
        run.log(loss)


def unfreeze(model: Any, optimizer: Any) -> None:
    model[0].requires_grad_(True)


def add_a_layer(model: Any, optimizer: Any) -> None:
    torch.manual_seed(2)
    model.append(nn.Linear(3, 3))
    optimizer.add_param_group({"params": model[3].parameters()})


def replace_a_layer(model: Any, optimizer: Any) -> None:
    torch.manual_seed(2)
    for parameter in model[2].parameters():
        optimizer.state.pop(parameter, None)
    model[2] = nn.Linear(8, 3)
    optimizer.param_groups[0]["params"][2:] = list(model[2].parameters())


def half_frozen() -> Any:
    model = mlp()
    model[0].requires_grad_(False)
    return model


@case(quick=True, refused="parameter 0.weight was unfrozen after the model was wrapped")
def a_layer_unfrozen_in_the_middle(run: Run) -> None:
    changed(run, unfreeze, half_frozen())


@case(refused="parameter 3.weight was added after the model was wrapped")
def a_layer_added_in_the_middle(run: Run) -> None:
    changed(run, add_a_layer, mlp())


@case(refused="parameter 2.weight was replaced after the model was wrapped")
def a_layer_replaced_in_the_middle(run: Run) -> None:
    changed(run, replace_a_layer, mlp())


@case(quick=True)
def a_layer_unfrozen_in_the_middle_and_refresh(run: Run) -> None:
    changed(run, unfreeze, half_frozen(), is_told=True)


@case()
def a_layer_added_in_the_middle_and_refresh(run: Run) -> None:
    changed(run, add_a_layer, mlp(), is_told=True)


@case(quick=True)
def a_layer_replaced_in_the_middle_and_refresh(run: Run) -> None:
    changed(run, replace_a_layer, mlp(), is_told=True)


def changed_as_planned(run: Run, change: Callable[[Any, Any], None], model: Any, batches: Any) -> None:
    """As `changed`, by the wrapper, which nobody but us has."""
    optimizer = adamw(model)
    parallel = run.wrap(model, optimizer, changes={FREEZE_AFTER: partial(change, model, optimizer)})
    for step, (x, y) in enumerate(batches):
        if step == FREEZE_AFTER and not hasattr(run, "peer"):
            change(model, optimizer)
        optimizer.zero_grad()
        loss = functional.mse_loss(parallel(x), y)
        loss.backward()
        optimizer.step()
        run.log(loss)


@case(quick=True, elastic=True)
def a_layer_unfrozen_as_planned(run: Run) -> None:
    changed_as_planned(run, unfreeze, half_frozen(), run.loader())


@case(elastic=True)
def a_layer_added_as_planned(run: Run) -> None:
    changed_as_planned(run, add_a_layer, mlp(), run.loader())


@case(quick=True, elastic=True)
def a_layer_replaced_as_planned(run: Run) -> None:
    changed_as_planned(run, replace_a_layer, mlp(), run.loader())


@case()
def a_layer_added_as_planned_with_data_of_ones_own(run: Run) -> None:
    changed_as_planned(run, add_a_layer, mlp(), run.own_loader())


class Mixture(nn.Module):
    """A trunk, and heads of which each sample uses one."""

    def __init__(self, number: int = 3) -> None:
        super().__init__()
        self.trunk = nn.Linear(4, 8)
        self.heads = nn.ModuleList([nn.Linear(8, 3) for _ in range(number)])

    def forward(self, x: Tensor, heads: Tensor) -> Tensor:
        hidden = torch.tanh(self.trunk(x))
        return torch.stack([self.heads[int(head)](row) for row, head in zip(hidden, heads, strict=True)])


def mixed(run: Run, optimizer: Any, model: nn.Module, *, by_sample: bool) -> None:
    parallel = run.wrap(model, optimizer, ddp=FINDS)
    for step, x, y in steps(run):
        heads = (x[:, 0] > 0).long() if by_sample else torch.full((len(x),), step % 2)
        optimizer.zero_grad()
        loss = functional.mse_loss(parallel(x, heads), y)
        loss.backward()
        optimizer.step()
        run.log(loss)


@case(quick=True)
def heads_chosen_by_sample_SGD(run: Run) -> None:
    model = Mixture()
    mixed(run, sgd(model, weight_decay=0.1), model, by_sample=True)


@case(elastic=True)
def heads_chosen_by_sample_AdamW(run: Run) -> None:
    model = Mixture()
    mixed(run, adamw(model, weight_decay=0.3), model, by_sample=True)


@case(quick=True)
def heads_in_turn_AdamW(run: Run) -> None:
    model = Mixture()
    mixed(run, adamw(model, weight_decay=0.3), model, by_sample=False)


@case()
def heads_in_turn_SGD_with_momentum(run: Run) -> None:
    model = Mixture()
    mixed(run, sgd(model, weight_decay=0.1), model, by_sample=False)


@case(quick=True)
def a_layer_that_nobody_uses(run: Run) -> None:
    model = mlp()
    model.register_module("spare", nn.Linear(4, 4))
    model.forward = lambda x: model[2](torch.tanh(model[0](x)))
    fit(run, model, adamw(model, weight_decay=0.3), ddp=FINDS)


@case(elastic=True)
def two_objectives_in_turn(run: Run) -> None:
    model = nn.ModuleDict({"left": mlp(), "right": mlp()})
    model.forward = lambda x, key: model[key](x)
    optimizer = adamw(model, weight_decay=0.1)
    parallel = run.wrap(model, optimizer, ddp=FINDS)
    for step, x, y in steps(run):
        optimizer.zero_grad()
        loss = functional.mse_loss(parallel(x, ("left", "right")[step % 2]), y)
        loss.backward()
        optimizer.step()
        run.log(loss)


@case()
def layers_left_out_at_random_by_one_seed(run: Run) -> None:
    """Stochastic depth."""
    blocks = nn.ModuleList([nn.Linear(8, 8) for _ in range(4)])
    model = mlp_with()
    model.blocks = blocks
    generator = torch.Generator().manual_seed(5)

    def forward(x: Tensor) -> Any:
        hidden = model[0](x)
        for block, draw in zip(blocks, torch.rand(4, generator=generator), strict=True):
            if draw > 0.4:
                hidden = hidden + torch.tanh(block(hidden))
        return model[2](torch.tanh(hidden))

    model.forward = forward
    fit(run, model, adamw(model, weight_decay=0.3), ddp=FINDS)


@case(quick=True)
def a_part_that_is_detached(run: Run) -> None:
    model = mlp_with(nn.Linear(8, 8))
    forward = model.forward
    model.forward = lambda x: forward(x) + 0.1 * model[3](model[1](model[0](x)).detach())
    fit(run, model, adamw(model))


@case()
def a_straight_through_estimate(run: Run) -> None:
    class Rounded(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + (x.round() - x).detach()

    model = mlp_with(Rounded())
    fit(run, model, sgd(model))


@case()
def a_layer_with_a_rate_of_its_own_from_a_further_group(run: Run) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.05)
    optimizer.add_param_group({"params": model[2].parameters(), "lr": 0.01})
    fit(run, model, optimizer)
