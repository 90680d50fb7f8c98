"""Several updates per batch, several models."""

from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from ..data import adamw, fit, mlp, sgd
from ..registry import case
from ..run import Run

RATIO: Final = (1e-5, "an exponent and AdamW's division make more of last digits, which depend on the processor")
ONE_MODEL: Final = "this peer trains a model already: wrap all models at once"


def ppo(run: Run, batches: Iterator[Any]) -> None:
    """Four clipped updates on each batch (Schulman et al. 2017)."""
    model = mlp()
    optimizer = adamw(model)
    parallel = run.wrap(model, optimizer)
    for x, y in batches:
        old = model(x).detach()
        for _ in range(4):
            ratio = (parallel(x) - old).exp()
            optimizer.zero_grad()
            loss = -torch.min(ratio * y, ratio.clamp(0.8, 1.2) * y).mean()
            loss.backward()
            optimizer.step()


@case(quick=True, rounding=RATIO)
def PPO_several_updates_on_a_batch_of_the_loader(run: Run) -> None:
    ppo(run, run.loader())


@case(quick=True, rounding=RATIO)
def PPO_several_updates_on_a_batch_of_an_own_loader(run: Run) -> None:
    ppo(run, run.own_loader())


def sharpness_aware(run: Run, batches: Iterator[Any]) -> None:
    """SAM (Foret et al. 2021): a step up, the gradient there, a step down from where it began."""
    model = mlp()
    optimizer = sgd(model)
    parallel = run.wrap(model, optimizer)
    for x, y in batches:
        optimizer.zero_grad()
        loss = functional.mse_loss(parallel(x), y)
        loss.backward()
        norm = nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
        steps = [0.05 * p.grad / norm for p in model.parameters() if p.grad is not None]
        with torch.no_grad():
            for parameter, step in zip(model.parameters(), steps, strict=True):
                parameter += step
        optimizer.zero_grad()
        functional.mse_loss(parallel(x), y).backward()
        with torch.no_grad():
            for parameter, step in zip(model.parameters(), steps, strict=True):
                parameter -= step
        optimizer.step()
        run.log(loss)


@case()
def SAM_with_the_loader(run: Run) -> None:
    sharpness_aware(run, run.loader())


@case()
def SAM_with_an_own_loader(run: Run) -> None:
    sharpness_aware(run, run.own_loader())


def adversarial(run: Run, batches: Iterator[Any]) -> None:
    """FGSM (Goodfellow et al. 2015), its inputs' gradient by a backward pass through the wrapper."""
    model = mlp()
    optimizer = sgd(model)
    parallel = run.wrap(model, optimizer)
    for x, y in batches:
        probe = x.clone().requires_grad_()
        functional.mse_loss(parallel(probe), y).backward()
        assert probe.grad is not None
        optimizer.zero_grad()
        loss = functional.mse_loss(parallel(x + 0.01 * probe.grad.sign()), y)
        loss.backward()
        optimizer.step()


@case()
def adversarial_inputs_by_backward(run: Run) -> None:
    adversarial(run, run.loader())


@case(quick=True)
def adversarial_inputs_by_autograd_grad(run: Run) -> None:
    model = mlp()
    optimizer = sgd(model)
    parallel = run.wrap(model, optimizer)
    for x, y in run.loader():
        probe = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(functional.mse_loss(model(probe), y, reduction="sum"), probe)
        optimizer.zero_grad()
        loss = functional.mse_loss(parallel(x + 0.01 * slope.sign()), y)
        loss.backward()
        optimizer.step()
        run.log(loss)


# Generators and discriminators.


class Game(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.G, self.D = nn.Linear(4, 3), nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1))

    def forward(self, x: Tensor, y: Tensor, turn: str) -> Any:
        fake = self.G(x)
        if turn == "D":
            return functional.softplus(self.D(fake.detach())).mean() + functional.softplus(-self.D(y)).mean()
        return functional.softplus(-self.D(fake)).mean()


def gan(run: Run, batches: Iterator[Any], order: str = "DG") -> None:
    model = Game()
    optimizers = {"G": adamw(model.G), "D": adamw(model.D)}
    parallel = run.wrap(
        model, optimizers[order[-1]], extra=[optimizers[order[0]]], ddp={"find_unused_parameters": True}
    )
    for x, y in batches:
        for turn in "DG":
            model.zero_grad()
            loss = parallel(x, y, turn)
            loss.backward()
            optimizers[turn].step()


@case(quick=True)
def a_GAN_in_one_wrapper_with_an_own_loader(run: Run) -> None:
    gan(run, run.own_loader())


@case()
def a_GAN_whose_first_optimizer_is_the_wrappers(run: Run) -> None:
    gan(run, run.own_loader(), order="GD")


@case()
def a_GAN_in_one_wrapper_with_the_loader(run: Run) -> None:
    gan(run, run.loader())


@case(quick=True, refused=ONE_MODEL)
def a_GAN_in_two_wrappers(run: Run) -> None:
    model = Game()
    optimizers = {"G": adamw(model.G), "D": adamw(model.D)}
    G, D = run.wrap(model.G, optimizers["G"]), run.wrap(model.D, optimizers["D"])
    for x, _ in run.own_loader():
        for turn, optimizer in optimizers.items():
            model.zero_grad()
            fake = D(G(x) if turn == "G" else G(x).detach())
            loss = functional.softplus(-fake if turn == "G" else fake).mean()
            loss.backward()
            optimizer.step()


@case()
def a_GAN_whose_losses_are_added(run: Run) -> None:
    """One update of both, with the discriminator's gradient turned around."""

    class Turned(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return -gradient

    model = Game()
    model.forward = lambda x: model.D(Turned.apply(model.G(x)))
    fit(run, model, adamw(model), loss_of=lambda output, y: functional.softplus(output).mean())


# Teachers and twins.


@case(elastic=True)
def a_teacher_that_is_an_average_of_the_student(run: Run) -> None:
    model = mlp()
    teacher = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = adamw(model)
    parallel = run.wrap(model, optimizer, extra=[teacher])
    for x, _ in run.loader():
        with torch.no_grad():
            target = teacher(x)
        optimizer.zero_grad()
        loss = functional.mse_loss(parallel(x + 0.1), target)
        loss.backward()
        optimizer.step()
        teacher.update_parameters(model)
        run.log(loss)


@case()
def a_frozen_teacher(run: Run) -> None:
    teacher, model = mlp().eval().requires_grad_(False), mlp()
    optimizer = adamw(model)
    parallel = run.wrap(model, optimizer)
    for x, _ in run.loader():
        optimizer.zero_grad()
        loss = functional.mse_loss(parallel(x), teacher(x))
        loss.backward()
        optimizer.step()
        run.log(loss)


@case(quick=True)
def twins(run: Run) -> None:
    """Two passes of one model, one loss (a Siamese network)."""
    model = mlp()
    optimizer = sgd(model)
    parallel = run.wrap(model, optimizer)
    for x, y in run.loader():
        optimizer.zero_grad()
        loss = functional.cosine_embedding_loss(parallel(x), parallel(x.flip(1)), y[:, 0].sign())
        loss.backward()
        optimizer.step()
        run.log(loss)


@case(as_ddp="pairs of samples of one rank only")
def contrasts_within_a_batch(run: Run) -> None:
    model = mlp()
    optimizer = sgd(model)
    parallel = run.wrap(model, optimizer)
    for x, y in run.loader():
        optimizer.zero_grad()
        products = functional.normalize(parallel(x)) @ functional.normalize(y).t()
        loss = functional.cross_entropy(products, torch.arange(len(x)))
        loss.backward()
        optimizer.step()
