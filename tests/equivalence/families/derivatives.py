"""Gradients of gradients, and gradients that scripts compute themselves."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..data import adamw, mlp, sgd
from ..registry import case
from ..run import Run


@case(quick=True)
def a_penalty_on_the_gradient_of_inputs(run: Run) -> None:
    model = mlp()
    optimizer = sgd(model)
    parallel = run.wrap(model, optimizer)
    for x, y in run.loader():
        x.requires_grad_()
        optimizer.zero_grad()
        output = parallel(x)
        (slope,) = torch.autograd.grad(output.sum(), x, create_graph=True)
        loss = functional.mse_loss(output, y) + 0.1 * slope.square().sum(1).mean()
        loss.backward()
        optimizer.step()
        run.log(loss)


@case(as_ddp="the norm of the rank's gradient, not of all")
def a_penalty_on_the_gradient_of_parameters(run: Run) -> None:
    model = mlp()
    optimizer = sgd(model)
    parallel = run.wrap(model, optimizer)
    for x, y in run.loader():
        optimizer.zero_grad()
        loss = functional.mse_loss(parallel(x), y)
        slopes = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        (loss + 0.1 * torch.stack([each.square().sum() for each in slopes]).sum()).backward()
        optimizer.step()


@case(quick=True, refused="`grad` of parameter 2.bias is going to be the mean over all peers, which has no graph")
def a_penalty_on_grad_after_backward_with_create_graph(run: Run) -> None:
    model = mlp()
    optimizer = sgd(model)
    parallel = run.wrap(model, optimizer)
    for x, y in run.loader():
        functional.mse_loss(parallel(x), y).backward(create_graph=True)
        penalty = torch.stack([p.grad.square().sum() for p in model.parameters() if p.grad is not None]).sum()
        optimizer.zero_grad()
        loss = functional.mse_loss(parallel(x), y) + 0.1 * penalty
        loss.backward()
        optimizer.step()
        run.log(loss)


@case(quick=True)
def autograd_grad_and_reduce_gradients(run: Run) -> None:
    model = mlp()
    optimizer = sgd(model)
    parallel = run.wrap(model, optimizer)
    for x, y in run.loader():
        loss = functional.mse_loss(parallel(x), y)
        parallel.reduce_gradients(torch.autograd.grad(loss, list(model.parameters())))
        optimizer.step()
        run.log(loss)


@case(quick=True, refused="that no step committed")
def autograd_grad_without_reduce_gradients(run: Run) -> None:
    model = mlp()
    optimizer = sgd(model)
    parallel = run.wrap(model, optimizer)
    for x, y in run.own_loader():
        loss = functional.mse_loss(parallel(x), y)
        for parameter, gradient in zip(model.parameters(), torch.autograd.grad(loss, model.parameters()), strict=True):
            parameter.grad = gradient
        optimizer.step()
        run.log(loss)


@case(quick=True, elastic=True)
def torch_func_and_reduce_gradients(run: Run) -> None:
    model = mlp()
    optimizer = adamw(model)
    parallel = run.wrap(model, optimizer)

    def loss_of(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return functional.mse_loss(torch.func.functional_call(model, parameters, (x,)), y)

    for x, y in run.loader():
        named = {name: parameter.detach() for name, parameter in model.named_parameters()}
        gradients, loss = torch.func.grad_and_value(loss_of)(named, x, y)
        parallel.reduce_gradients(gradients)
        optimizer.step()
        run.log(loss)


@case()
def gradients_of_each_sample_clipped(run: Run) -> None:
    """As in DP-SGD, without its noise."""
    model = mlp()
    optimizer = sgd(model)
    parallel = run.wrap(model, optimizer)

    def loss_of(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return functional.mse_loss(torch.func.functional_call(model, parameters, (x[None],)), y[None])

    for x, y in run.loader():
        named = {name: parameter.detach() for name, parameter in model.named_parameters()}
        each = torch.func.vmap(torch.func.grad(loss_of), (None, 0, 0))(named, x, y)
        norms = torch.stack([values.flatten(1).square().sum(1) for values in each.values()]).sum(0).sqrt()
        scales = (0.3 / norms).clamp(max=1.0)
        clipped = {name: torch.einsum("i,i...->...", scales, values) / len(x) for name, values in each.items()}
        parallel.reduce_gradients(clipped)
        optimizer.step()


@case()
def an_inner_update_of_which_the_gradient_is_taken(run: Run) -> None:
    """As MAML does it (Finn et al. 2017)."""
    model = mlp()
    optimizer = sgd(model)
    parallel = run.wrap(model, optimizer)
    for x, y in run.loader():
        optimizer.zero_grad()
        total: Any = 0.0
        for row, target in zip(x, y, strict=True):
            inner = functional.mse_loss(parallel(row[None]), target[None])
            slopes = torch.autograd.grad(inner, list(model.parameters()), create_graph=True)
            named = zip(model.named_parameters(), slopes, strict=True)
            fast = {name: parameter - 0.1 * slope for (name, parameter), slope in named}
            total = total + functional.mse_loss(torch.func.functional_call(model, fast, (row[None],)), target[None])
        loss = total / len(x)
        loss.backward()
        optimizer.step()
        run.log(loss)
