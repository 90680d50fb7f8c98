"""Several backward passes per update, and parts of different sizes."""

from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..data import GLOBAL_BATCH, adamw, mlp, sgd
from ..registry import case
from ..run import Run

OVER_PARTS: Final = "the mean of the ranks' means, each of its own part: DDP weighs ranks alike, too"


def in_parts(parallel: Any, x: Tensor, y: Tensor, number: int = 2) -> Any:
    """Backward on each of the parts of a batch, all but the last under no_sync."""
    total: Any = 0.0
    for index in range(number):
        part = slice(index * len(x) // number, (index + 1) * len(x) // number)
        loss = functional.mse_loss(parallel(x[part]), y[part]) * ((part.stop - part.start) / len(x))
        if index < number - 1:
            with parallel.no_sync():
                # forward has been called outside, as in scripts that only think of backward
                loss.backward()
        else:
            loss.backward()
        total += loss.detach()
    return total


@case(quick=True)
def parts_of_a_batch_under_no_sync(run: Run) -> None:
    model = mlp()
    optimizer = sgd(model)
    parallel = run.wrap(model, optimizer)
    for x, y in run.loader():
        optimizer.zero_grad()
        halves = [(x[:2], y[:2]), (x[2:], y[2:])]
        with parallel.no_sync():
            first = functional.mse_loss(parallel(halves[0][0]), halves[0][1]) * (2 / len(x))
            first.backward()
        last = functional.mse_loss(parallel(halves[1][0]), halves[1][1]) * (1 - 2 / len(x))
        last.backward()
        optimizer.step()
        run.log(first + last)


@case(elastic=True)
def two_parts_of_a_batch_with_only_backward_under_no_sync(run: Run) -> None:
    model = mlp()
    optimizer = adamw(model)
    parallel = run.wrap(model, optimizer)
    for x, y in run.loader():
        optimizer.zero_grad()
        loss = in_parts(parallel, x, y)
        optimizer.step()
        run.log(loss)


@case(quick=True, elastic=True)
def micro_batches_of_the_loader(run: Run) -> None:
    model = mlp()
    optimizer = adamw(model)
    parallel = run.wrap(model, optimizer)
    for x, y in run.loader(max_local_batch=2):
        optimizer.zero_grad()
        functional.mse_loss(parallel(x), y).backward()
        optimizer.step()


@case(elastic=True)
def uneven_micro_batches_clipping_and_a_schedule(run: Run) -> None:
    model = mlp()
    optimizer = adamw(model)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.95)
    parallel = run.wrap(model, optimizer, extra=[schedule])
    for x, y in run.loader(max_local_batch=3):
        optimizer.zero_grad()
        functional.mse_loss(parallel(x), y).backward()
        if parallel.has_committed:
            nn.utils.clip_grad_norm_(model.parameters(), 0.3)
            optimizer.step()
            schedule.step()


@case()
def batches_accumulated_under_no_sync(run: Run) -> None:
    model = mlp()
    optimizer = sgd(model)
    parallel = run.wrap(model, optimizer)
    for step, (x, y) in enumerate(run.own_loader(), start=1):
        if step % 2:
            with parallel.no_sync():
                (functional.mse_loss(parallel(x), y) / 2).backward()
            continue
        (functional.mse_loss(parallel(x), y) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()


@case(quick=True)
def a_pass_under_no_sync_whose_gradients_one_rank_fills_with_zeros(run: Run) -> None:
    model = mlp()
    optimizer = sgd(model)
    parallel = run.wrap(model, optimizer)
    for x, y in run.own_loader(number=6 * GLOBAL_BATCH):
        optimizer.zero_grad()
        if run.rank == 0:  # it looks at the gradients of its part
            with parallel.no_sync():
                functional.mse_loss(parallel(x), y).backward()
            optimizer.zero_grad(set_to_none=False)
        functional.mse_loss(parallel(x), y).backward()
        optimizer.step()


@case(refused="no step was committed between two batches")
def batches_of_the_loader_accumulated_under_no_sync(run: Run) -> None:
    model = mlp()
    optimizer = sgd(model)
    parallel = run.wrap(model, optimizer)
    for step, (x, y) in enumerate(run.loader(), start=1):
        if step % 2:
            with parallel.no_sync():
                (functional.mse_loss(parallel(x), y) / 2).backward()
            continue
        (functional.mse_loss(parallel(x), y) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()


@case(quick=True, refused="backward was called twice for one `optimizer.step`")
def batches_accumulated_by_hand_without_no_sync(run: Run) -> None:
    model = mlp()
    optimizer = sgd(model)
    parallel = run.wrap(model, optimizer)
    for step, (x, y) in enumerate(run.own_loader(), start=1):
        (functional.mse_loss(parallel(x), y) / 2).backward()
        if step % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()


@case()
def batches_accumulated_with_a_scaler(run: Run) -> None:
    model = mlp()
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    parallel = run.wrap(model, optimizer, extra=[scaler])
    for step, (x, y) in enumerate(run.own_loader(), start=1):
        if step % 2:
            with parallel.no_sync():
                scaler.scale(functional.mse_loss(parallel(x), y) / 2).backward()
            continue
        scaler.scale(functional.mse_loss(parallel(x), y) / 2).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


@case(quick=True)
def two_losses_summed(run: Run) -> None:
    model = mlp()
    optimizer = sgd(model)
    parallel = run.wrap(model, optimizer)
    for x, y in run.loader():
        optimizer.zero_grad()
        loss = functional.mse_loss(parallel(x), y) + 0.1 * parallel(x.flip(1)).square().mean()
        loss.backward()
        optimizer.step()
        run.log(loss)


@case()
def two_losses_of_one_graph_the_first_under_no_sync(run: Run) -> None:
    model = mlp()
    optimizer = sgd(model)
    parallel = run.wrap(model, optimizer)
    for x, y in run.loader():
        optimizer.zero_grad()
        output = parallel(x)
        with parallel.no_sync():
            functional.mse_loss(output, y).backward(retain_graph=True)
        output.square().mean().backward()
        optimizer.step()


@case(refused="backward was called twice for one `optimizer.step`")
def two_losses_of_one_graph_without_no_sync(run: Run) -> None:
    model = mlp()
    optimizer = sgd(model)
    parallel = run.wrap(model, optimizer)
    for x, y in run.own_loader():
        optimizer.zero_grad()
        output = parallel(x)
        functional.mse_loss(output, y).backward(retain_graph=True)
        output.square().mean().backward()
        optimizer.step()


# Parts of different sizes and weights.


@case(quick=True)
def a_shorter_last_batch(run: Run) -> None:
    model = mlp()
    optimizer = adamw(model)
    parallel = run.wrap(model, optimizer)
    for x, y in run.loader(number=101):
        optimizer.zero_grad()
        loss = functional.mse_loss(parallel(x), y)
        loss.backward()
        optimizer.step()
        run.log(loss)


def uneven(run: Run, *, says_so: bool) -> None:
    model = mlp()
    optimizer = sgd(model)
    parallel = run.wrap(model, optimizer)
    for x, y in run.own_loader(batch=11):
        if says_so:
            parallel.num_samples(len(x))
        optimizer.zero_grad()
        loss = functional.mse_loss(parallel(x), y)
        loss.backward()
        optimizer.step()


@case(quick=True)
def uneven_parts_that_say_their_number(run: Run) -> None:
    uneven(run, says_so=True)


@case(as_ddp=OVER_PARTS)
def uneven_parts_that_do_not_say_their_number(run: Run) -> None:
    uneven(run, says_so=False)


def summed(output: Tensor, y: Tensor, lengths: Tensor) -> Any:
    is_token = torch.arange(output.shape[1]) < lengths[:, None]
    return ((output - y).square() * is_token).sum()


def of_tokens(run: Run, **options: Any) -> None:
    """The mean over tokens, of which samples have 0 to 3."""
    model = mlp()
    optimizer = sgd(model)
    parallel = run.wrap(model, optimizer)
    for x, y in run.loader(**options):
        lengths = (x[:, 0].abs() * 2).long().clamp(max=3)
        number = int(lengths.sum())
        parallel.num_samples(number)
        optimizer.zero_grad()
        loss = summed(parallel(x), y, lengths) / max(number, 1)
        loss.backward()
        optimizer.step()
        if parallel.has_committed and not options:
            run.log(loss)


@case(quick=True, elastic=True)
def a_mean_over_tokens_of_which_samples_have_different_numbers(run: Run) -> None:
    of_tokens(run)


@case()
def a_mean_over_tokens_in_micro_batches(run: Run) -> None:
    of_tokens(run, max_local_batch=2)


@case()
def a_rank_that_weighs_nothing(run: Run) -> None:
    model = mlp()
    optimizer = sgd(model)
    parallel = run.wrap(model, optimizer)
    for x, y in run.own_loader():
        is_used = y[:, 0] > 0.6  # by hardly any
        parallel.num_samples(int(is_used.sum()))
        optimizer.zero_grad()
        error = (parallel(x) - y).square().mean(1)
        loss: Any = (error * is_used).sum() / max(int(is_used.sum()), 1)
        loss.backward()
        optimizer.step()


@case(as_ddp="a sum over the rank's part, of which the mean is taken")
def a_loss_that_is_a_sum(run: Run) -> None:
    model = mlp()
    optimizer = sgd(model, lr=0.001)
    parallel = run.wrap(model, optimizer)
    for x, y in run.loader():
        optimizer.zero_grad()
        functional.mse_loss(parallel(x), y, reduction="sum").backward()
        optimizer.step()


@case()
def a_loss_that_is_a_sum_divided_by_the_global_batch(run: Run) -> None:
    model = mlp()
    optimizer = sgd(model)
    parallel = run.wrap(model, optimizer)
    for x, y in run.loader():
        optimizer.zero_grad()
        loss = functional.mse_loss(parallel(x), y, reduction="sum") * run.world_size / 12
        loss.backward()
        optimizer.step()
        run.log(loss)
