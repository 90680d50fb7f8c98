"""What scripts do with gradients between backward and the update."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..data import adamw, fit, mlp, sgd
from ..registry import add, case
from ..run import Run


def gradients(model: nn.Module) -> list[Tensor]:
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def changed(change: Callable[[nn.Module], object], run: Run) -> None:
    model = mlp()
    fit(run, model, sgd(model), before=lambda: change(model))


def adaptively(model: nn.Module) -> None:
    """Clips each row by the norm of its weights (AGC, Brock et al. 2021)."""
    for parameter in model.parameters():
        assert parameter.grad is not None
        limit = parameter.detach().norm(dim=-1, keepdim=True).clamp(min=1e-3) * 0.05
        norm = parameter.grad.norm(dim=-1, keepdim=True)
        parameter.grad.mul_((limit / norm.clamp(min=1e-6)).clamp(max=1.0))


def replace(model: nn.Module) -> None:
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad = parameter.grad * 0.5


def centralize(model: nn.Module) -> None:
    for each in gradients(model):
        if each.ndim > 1:
            each.sub_(each.mean(dim=1, keepdim=True))


def add_noise(model: nn.Module) -> None:
    generator = torch.Generator().manual_seed(3)
    for each in gradients(model):
        each.add_(torch.randn(each.shape, generator=generator), alpha=1e-2)


def clip_by_hand(model: nn.Module) -> None:
    total = torch.stack([each.norm() for each in gradients(model)]).norm()
    for each in gradients(model):
        each.mul_((0.1 / (total + 1e-6)).clamp(max=1.0))


def clip_by_total_norm(model: nn.Module) -> None:
    norm = nn.utils.get_total_norm(gradients(model))
    nn.utils.clip_grads_with_norm_(model.parameters(), 0.1, norm)


def drop_some(model: Any) -> None:
    model[0].bias.grad = None


CHANGES: Final[dict[str, Callable[[Any], object]]] = {
    "clipped_by_norm": lambda model: nn.utils.clip_grad_norm_(model.parameters(), 0.1),
    "clipped_by_norm_with_foreach": lambda model: nn.utils.clip_grad_norm_(model.parameters(), 0.1, foreach=True),
    "clipped_by_the_largest": lambda model: nn.utils.clip_grad_norm_(model.parameters(), 0.1, norm_type=float("inf")),
    "clipped_by_norm_or_an_error": lambda m: nn.utils.clip_grad_norm_(m.parameters(), 0.1, error_if_nonfinite=True),
    "clipped_by_value": lambda model: nn.utils.clip_grad_value_(model.parameters(), 0.02),
    "clipped_by_layer": lambda model: [
        nn.utils.clip_grad_norm_(layer.parameters(), 0.1) for layer in (model[0], model[2])
    ],
    "clipped_by_total_norm": clip_by_total_norm,
    "clipped_by_hand": clip_by_hand,
    "clipped_adaptively": adaptively,
    "gradients_replaced": replace,
    "gradients_centralized": centralize,
    "noise_of_one_seed_added": add_noise,
    "the_gradient_of_a_layer_dropped": drop_some,
}
for _name, _change in CHANGES.items():
    add(
        _name,
        partial(changed, _change),
        quick=_name in {"clipped_by_norm", "gradients_replaced"},
        elastic=_name in {"clipped_by_norm", "clipped_adaptively"},
    )


# When gradients are zeroed.


def zeroed(place: str, is_to_none: bool, run: Run) -> None:
    model = mlp()
    optimizer = sgd(model)
    parallel = run.wrap(model, optimizer)
    for x, y in run.loader():
        if place == "first":
            optimizer.zero_grad(set_to_none=is_to_none)
        loss = functional.mse_loss(parallel(x), y)
        if place == "between":
            optimizer.zero_grad(set_to_none=is_to_none)
        loss.backward()
        optimizer.step()
        if place == "last":
            optimizer.zero_grad(set_to_none=is_to_none)
        run.log(loss)


for _place in ("first", "between", "last"):
    for _is_to_none in (True, False):
        _how = "set_to_None" if _is_to_none else "filled_with_zeros"
        _where = {"first": "before_forward", "between": "before_backward", "last": "after_the_update"}[_place]
        add(
            f"gradients_{_how}_{_where}",
            partial(zeroed, _place, _is_to_none),
            quick=_how[0] == "f" and _place == "last",
        )


@case()
def gradients_that_are_never_zeroed(run: Run) -> None:
    model = mlp()
    optimizer = sgd(model, lr=0.001)
    parallel = run.wrap(model, optimizer)
    for x, y in run.loader():
        loss = functional.mse_loss(parallel(x), y)
        loss.backward()
        optimizer.step()
        run.log(loss)


# Gradients that are looked at, or kept.


@case(quick=True)
def the_gradient_of_the_step_before(run: Run) -> None:
    model = mlp()
    optimizer = sgd(model)
    parallel = run.wrap(model, optimizer)
    before: list[Tensor] = []
    angles = []
    for x, y in run.loader():
        optimizer.zero_grad()
        loss = functional.mse_loss(parallel(x), y)
        loss.backward()
        now = gradients(model)
        angles += [functional.cosine_similarity(a.flatten(), b.flatten(), 0) for a, b in zip(now, before, strict=False)]
        before = now
        optimizer.step()
        run.log(loss)
    run.keep(angles=torch.stack(angles))


@case()
def gradients_of_two_tasks_projected(run: Run) -> None:
    """As PCGrad does it (Yu et al. 2020)."""
    model = mlp()
    optimizer = sgd(model)
    parallel = run.wrap(model, optimizer)
    for step, (x, y) in enumerate(run.own_loader()):
        optimizer.zero_grad()
        loss = functional.mse_loss(parallel(x)[:, step % 2], y[:, step % 2])
        loss.backward()
        if step % 2 == 0:
            first = gradients(model)
            continue
        for mine, other in zip(gradients(model), first, strict=True):
            product = (mine * other).sum().clamp(max=0.0)
            mine.sub_(other, alpha=float(product / other.square().sum().clamp(min=1e-9)))
        optimizer.step()
        run.log(loss)


@case()
def norms_that_are_logged(run: Run) -> None:
    model = mlp()
    norms: list[Tensor] = []
    fit(run, model, adamw(model), before=lambda: norms.extend(each.norm() for each in gradients(model)))
    run.keep(norms=torch.stack(norms))


@case(quick=True)
def a_gradient_that_is_given(run: Run) -> None:
    """`backward(gradient)` of a tensor that is no number."""
    model = mlp()
    optimizer = sgd(model)
    parallel = run.wrap(model, optimizer)
    for x, y in run.loader():
        optimizer.zero_grad()
        output = parallel(x)
        output.backward((output - y).detach() / len(x))
        optimizer.step()


@case()
def backward_of_several_tensors(run: Run) -> None:
    model = mlp()
    optimizer = sgd(model)
    parallel = run.wrap(model, optimizer)
    for x, y in run.loader():
        optimizer.zero_grad()
        output = parallel(x)
        losses = [functional.mse_loss(output, y), output.square().mean()]
        torch.autograd.backward(losses)
        optimizer.step()
        run.log(losses[0])
