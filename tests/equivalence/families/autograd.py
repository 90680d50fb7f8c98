"""Hooks, checkpoints, own functions, ways to call a model, compilers."""

import threading
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from ..data import adamw, fit, mlp, mlp_with, sgd
from ..registry import add, case
from ..run import Run


class Checkpointed(nn.Module):
    def __init__(self, *, is_reentrant: bool) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
        self.is_reentrant = is_reentrant

    def forward(self, x: Tensor) -> Any:
        return checkpoint(self.inner, x, use_reentrant=self.is_reentrant)


@case(quick=True, elastic=True)
def a_checkpoint(run: Run) -> None:
    model = mlp_with(Checkpointed(is_reentrant=False))
    fit(run, model, adamw(model))


@case()
def a_checkpoint_in_the_middle_that_is_reentrant(run: Run) -> None:
    model = mlp_with(Checkpointed(is_reentrant=True))
    fit(run, model, adamw(model))


@case(refused="pass use_reentrant=False")
def a_checkpoint_at_the_end_that_is_reentrant(run: Run) -> None:
    model = nn.Sequential(nn.Linear(4, 8), Checkpointed(is_reentrant=True))
    fit(run, model, adamw(model), loss_of=lambda output, y: functional.mse_loss(output[:, :3], y))


@case()
def checkpoints_of_a_sequence(run: Run) -> None:
    model = mlp_with(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    model.forward = lambda x: checkpoint_sequential(list(model), 3, x, use_reentrant=False)
    fit(run, model, adamw(model))


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x.square() * weight

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return 2 * gradient * x * weight, (gradient * x.square()).sum(0)


class OwnFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Any:
        return Squared.apply(x, self.weight)


@case(quick=True)
def an_own_autograd_function(run: Run) -> None:
    model = mlp_with(OwnFunction())
    fit(run, model, adamw(model))


# Hooks.


@case()
def hooks_of_tensors(run: Run) -> None:
    model = mlp()
    model[0].weight.register_hook(lambda gradient: gradient * 0.5)
    forward = model.forward

    def hooked(x: Tensor) -> Any:
        output = forward(x)
        output.register_hook(lambda gradient: gradient.roll(1, 1))
        return output

    model.forward = hooked
    fit(run, model, sgd(model))


@case()
def hooks_of_modules(run: Run) -> None:
    model = mlp()
    model[0].register_forward_hook(lambda module, inputs, output: output * 0.5)
    model[0].register_forward_pre_hook(lambda module, inputs: (inputs[0] + 0.1,))
    model[1].register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * 0.5,))
    fit(run, model, sgd(model))


def halve(parameter: Any) -> None:
    parameter.grad.mul_(0.5)


@case(quick=True)
def hooks_after_accumulation_before_the_wrap(run: Run) -> None:
    model = mlp()
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(halve)
    fit(run, model, sgd(model))


@case(quick=True)
def hooks_after_accumulation_after_the_wrap(run: Run) -> None:
    model = mlp()
    optimizer = sgd(model)
    parallel = run.wrap(model, optimizer)
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(halve)
    for x, y in run.loader():
        optimizer.zero_grad()
        loss = functional.mse_loss(parallel(x), y)
        loss.backward()
        optimizer.step()
        run.log(loss)


@case()
def hooks_of_the_optimizer(run: Run) -> None:
    model = mlp()
    optimizer = sgd(model)

    def clip(*_: object) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)

    optimizer.register_step_pre_hook(clip)
    fit(run, model, optimizer)


@case()
def saved_tensors_packed(run: Run) -> None:
    model = mlp()
    optimizer = sgd(model)
    parallel = run.wrap(model, optimizer)
    for x, y in run.loader():
        optimizer.zero_grad()
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x.numpy(force=True), torch.from_numpy):
            loss = functional.mse_loss(parallel(x), y)
        loss.backward()
        optimizer.step()
        run.log(loss)


# How a model is called.


def called(how: str, run: Run) -> None:
    model = mlp()
    optimizer = adamw(model)
    parallel = run.wrap(model, optimizer)
    for x, y in run.loader():
        optimizer.zero_grad()
        if how == "inner":
            output = model(x)
        elif how == "functional":
            output = torch.func.functional_call(model, dict(model.named_parameters()), (x,))
        elif how == "by layers":
            output = model[2](torch.tanh(model[0](x)))
        else:
            with parallel.no_sync():
                output = parallel(x)
        loss = functional.mse_loss(output, y)
        loss.backward()
        optimizer.step()
        run.log(loss)


add("the_inner_model_is_called", partial(called, "inner"), quick=True, elastic=True)
add("the_model_is_called_by_functional_call", partial(called, "functional"))
add("the_layers_of_the_model_are_called", partial(called, "by layers"))
add("forward_under_no_sync_and_backward_outside", partial(called, "no_sync"))


@case()
def keyword_arguments_and_a_dict_of_outputs(run: Run) -> None:
    model = mlp()
    forward = model.forward
    model.forward = lambda *, inputs: {"output": forward(inputs), "none": None}
    optimizer = sgd(model)
    parallel = run.wrap(model, optimizer)
    for x, y in run.loader():
        optimizer.zero_grad()
        loss = functional.mse_loss(parallel(inputs=x)["output"], y)
        loss.backward()
        optimizer.step()
        run.log(loss)


@case()
def backward_in_another_thread(run: Run) -> None:
    model = mlp()
    optimizer = sgd(model)
    parallel = run.wrap(model, optimizer)
    for x, y in run.loader():
        optimizer.zero_grad()
        loss = functional.mse_loss(parallel(x), y)
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()
        optimizer.step()
        run.log(loss)


@case()
def detection_of_anomalies(run: Run) -> None:
    model = mlp()
    with torch.autograd.set_detect_anomaly(True):
        fit(run, model, sgd(model))


@case()
def several_outputs_of_which_one_is_used(run: Run) -> None:
    model = mlp()
    forward = model.forward
    model.forward = lambda x: (forward(x), x, x.sum())
    fit(run, model, sgd(model), loss_of=lambda outputs, y: functional.mse_loss(outputs[0], y))


# Compilers.


BACKENDS: Final = ("eager", "aot_eager")


def compiled(backend: str, run: Run) -> None:
    model = mlp()
    forward = torch.compile(model.forward, backend=backend)
    model.forward = forward
    fit(run, model, adamw(model))


def compiled_around(backend: str, run: Run) -> None:
    model = mlp()
    optimizer = adamw(model)
    parallel = torch.compile(run.wrap(model, optimizer), backend=backend)
    for x, y in run.loader():
        optimizer.zero_grad()
        loss = functional.mse_loss(parallel(x), y)
        loss.backward()
        optimizer.step()
        run.log(loss)


for _backend in BACKENDS:
    add(f"the_model_compiled_by_{_backend}", partial(compiled, _backend))
    add(f"the_wrapper_compiled_by_{_backend}", partial(compiled_around, _backend))


@case()
def a_scripted_model(run: Run) -> None:
    model = torch.jit.script(mlp())
    fit(run, model, sgd(model))


@case()
def a_traced_layer(run: Run) -> None:
    model = mlp_with(torch.jit.trace(nn.Linear(8, 8), torch.zeros(2, 8)))
    fit(run, model, sgd(model))
