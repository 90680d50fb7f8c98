"""What loops do around a step: leave one out, evaluate, save and load."""

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..data import GLOBAL_BATCH, adamw, dataset, mlp, sgd
from ..registry import case
from ..run import Run
from .accumulation import in_parts


def damaged(x: Tensor, step: int) -> Tensor:
    """In some steps, all samples; in others those whose first number is above 1."""
    if step in (2, 5):
        return x * math.nan
    return torch.where(x[:, :1] > 1, math.nan, x) if step in (3, 7) else x


@case(quick=True)
def a_step_that_all_leave_out(run: Run) -> None:
    model = mlp()
    optimizer = sgd(model)
    parallel = run.wrap(model, optimizer)
    for step, (x, y) in enumerate(run.loader()):
        optimizer.zero_grad()
        loss = functional.mse_loss(parallel(damaged(x, step) if step in (2, 5) else x), y)
        loss.backward() if loss.isfinite() else parallel.skip_step()
        optimizer.step()


@case(elastic=True)
def samples_that_are_left_out(run: Run) -> None:
    model = mlp()
    optimizer = sgd(model)
    parallel = run.wrap(model, optimizer)
    for x, y in run.loader():
        good = x[:, 0] < 0.7
        optimizer.zero_grad()
        parallel.num_samples(int(good.sum()))
        if good.any():
            functional.mse_loss(parallel(x[good]), y[good]).backward()
        else:
            parallel.skip_step()
        optimizer.step()


@case(quick=True, refused="the gradients of the step that `skip_step` ended were not used")
def skip_step_and_continue(run: Run) -> None:
    model = mlp()
    optimizer = sgd(model)
    parallel = run.wrap(model, optimizer)
    for step, (x, y) in enumerate(run.own_loader()):
        optimizer.zero_grad()
        if step == 3 and run.rank == 0:
            parallel.skip_step()
            continue
        functional.mse_loss(parallel(x), y).backward()
        optimizer.step()


@case(refused="no step was committed between two batches")
def continue_on_a_bad_loss_with_the_loader(run: Run) -> None:
    model = mlp()
    optimizer = sgd(model)
    parallel = run.wrap(model, optimizer)
    for step, (x, y) in enumerate(run.loader()):
        optimizer.zero_grad()
        loss = functional.mse_loss(parallel(x), y)
        if step == 3 and run.rank == 0:
            continue
        loss.backward()
        optimizer.step()


@case(quick=True, refused="to leave out a batch, call `model.skip_step()` instead of `continue`")
def continue_on_a_bad_loss_with_an_own_loader(run: Run) -> None:
    model = mlp()
    optimizer = sgd(model)
    parallel = run.wrap(model, optimizer)
    for step, (x, y) in enumerate(run.own_loader()):
        optimizer.zero_grad()
        loss = functional.mse_loss(parallel(x), y)
        if step == 3 and run.rank == 0:
            continue
        loss.backward()
        optimizer.step()


@case()
def continue_on_all_peers_with_an_own_loader(run: Run) -> None:
    model = mlp()
    optimizer = sgd(model)
    parallel = run.wrap(model, optimizer)
    for step, (x, y) in enumerate(run.own_loader()):
        optimizer.zero_grad()
        loss = functional.mse_loss(parallel(x), y)
        if step in (3, 7):
            continue
        loss.backward()
        optimizer.step()


@case()
def a_forward_pass_that_all_drop(run: Run) -> None:
    model = mlp()
    optimizer = sgd(model)
    parallel = run.wrap(model, optimizer)
    for x, y in run.own_loader():
        optimizer.zero_grad()
        shown = parallel(x).detach()
        functional.mse_loss(parallel(x), y + 0.1 * shown).backward()
        optimizer.step()


@case(quick=True, refused="NonFiniteGradient")
def not_a_number(run: Run) -> None:
    model = mlp()
    optimizer = sgd(model)
    parallel = run.wrap(model, optimizer)
    for step, (x, y) in enumerate(run.loader()):
        optimizer.zero_grad()
        functional.mse_loss(parallel(damaged(x, step) if step == 2 else x), y).backward()
        optimizer.step()


@case()
def not_a_number_skipped(run: Run) -> None:
    model = mlp()
    optimizer = sgd(model)
    parallel = run.wrap(model, optimizer, nonfinite="skip")
    for step, (x, y) in enumerate(run.own_loader()):
        if run.is_alone and step == 2:
            continue
        optimizer.zero_grad()
        functional.mse_loss(parallel(damaged(x, step) if step == 2 else x), y).backward()
        optimizer.step()


@case(quick=True)
def samples_that_are_not_a_number_skipped(run: Run) -> None:
    """Those of one batch, whichever step they come in."""
    model = mlp()
    optimizer = sgd(model)
    parallel = run.wrap(model, optimizer, nonfinite="skip")
    bad, _ = dataset("points")[2 * GLOBAL_BATCH : 3 * GLOBAL_BATCH]
    for step, (x, y) in enumerate(run.loader()):
        is_bad = torch.isin(x, bad).any()
        if run.is_alone and is_bad:
            continue
        optimizer.zero_grad()
        loss = functional.mse_loss(parallel(x), y) * (math.nan if is_bad else 1.0)
        loss.backward()
        optimizer.step()
        if step == 100:
            break
    run.keep(has_ended=step < 100)


@case(elastic=True)
def a_batch_that_has_no_memory_in_backward_tried_again_in_parts(run: Run) -> None:
    model = mlp()
    optimizer = adamw(model)
    parallel = run.wrap(model, optimizer)
    fails = [False]

    def fail(gradient: Tensor) -> None:
        if fails[-1]:
            raise RuntimeError("no memory")

    next(model.parameters()).register_hook(fail)  # of the gradient that comes last
    for step, (x, y) in enumerate(run.loader()):
        optimizer.zero_grad()
        fails.append(step in (2, 3))
        try:
            functional.mse_loss(parallel(x), y).backward()
        except RuntimeError as error:
            assert str(error) == "no memory"
            fails.append(False)
            optimizer.zero_grad()
            in_parts(parallel, x, y)
        optimizer.step()


@case(quick=True, elastic=True)
def an_evaluation_after_each_step(run: Run) -> None:
    model = mlp()
    optimizer = adamw(model)
    parallel = run.wrap(model, optimizer)
    for x, y in run.loader():
        optimizer.zero_grad()
        loss = functional.mse_loss(parallel(x), y)
        loss.backward()
        optimizer.step()
        parallel.eval()
        with torch.no_grad():
            parallel(x)
        parallel.train()
        run.log(loss)


@case()
def an_evaluation_between_backward_and_the_update(run: Run) -> None:
    model = mlp()
    optimizer = adamw(model)
    parallel = run.wrap(model, optimizer)
    for x, y in run.loader():
        optimizer.zero_grad()
        loss = functional.mse_loss(parallel(x), y)
        loss.backward()
        with torch.inference_mode():
            parallel(x)
        optimizer.step()
        run.log(loss)


@case(quick=True)
def the_best_model_loaded_again(run: Run) -> None:
    model = mlp()
    optimizer = sgd(model, lr=0.3)
    parallel = run.wrap(model, optimizer)
    kept: Any = None
    for step, (x, y) in enumerate(run.loader()):
        if step == 4:
            kept = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        if step == 7:
            model.load_state_dict(kept[0])
            optimizer.load_state_dict(kept[1])
        optimizer.zero_grad()
        loss = functional.mse_loss(parallel(x), y)
        loss.backward()
        optimizer.step()
        run.log(loss)


@case()
def weights_from_a_checkpoint_before_the_wrap(run: Run) -> None:
    model = mlp()
    torch.manual_seed(7)
    model.load_state_dict(mlp().state_dict(), assign=True)
    optimizer = adamw(model)
    parallel = run.wrap(model, optimizer)
    for x, y in run.loader():
        optimizer.zero_grad()
        loss = functional.mse_loss(parallel(x), y)
        loss.backward()
        optimizer.step()
        run.log(loss)


@case()
def early_stopping_on_the_mean_loss_of_all(run: Run) -> None:
    model = mlp()
    optimizer = sgd(model)
    parallel = run.wrap(model, optimizer)
    best = math.inf
    for step, (x, y) in enumerate(run.own_loader()):
        optimizer.zero_grad()
        loss = functional.mse_loss(parallel(x), y)
        loss.backward()
        optimizer.step()
        run.log(loss)
        mean = run.mean(loss.item())
        if step > 3 and mean > 1.2 * best:
            break
        best = min(best, mean)


@case()
def two_epochs(run: Run) -> None:
    model = mlp()
    optimizer = adamw(model)
    parallel = run.wrap(model, optimizer)
    for _ in range(2):
        for x, y in run.own_loader(number=60):
            optimizer.zero_grad()
            loss = functional.mse_loss(parallel(x), y)
            loss.backward()
            optimizer.step()
            run.log(loss)


@case(elastic=True, joiner_refused=" is ... here, ... there; put whatever changes it")
def a_new_optimizer_in_the_middle(run: Run) -> None:
    model = mlp()
    optimizer: torch.optim.Optimizer = sgd(model)
    parallel = run.wrap(model, optimizer, extra=[])
    for step, (x, y) in enumerate(run.loader()):
        if step == 5:
            optimizer = adamw(model)
        optimizer.zero_grad()
        loss = functional.mse_loss(parallel(x), y)
        loss.backward()
        optimizer.step()
        run.log(loss)


@case(quick=True)
def noise_in_the_weights(run: Run) -> None:
    """Weights changed by the script, alike everywhere."""
    model: nn.Module = mlp()
    optimizer = sgd(model)
    parallel = run.wrap(model, optimizer)
    generator = torch.Generator().manual_seed(9)
    for x, y in run.loader():
        optimizer.zero_grad()
        loss = functional.mse_loss(parallel(x), y)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=1e-3)
        run.log(loss)
