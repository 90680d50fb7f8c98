"""Several models by name, each with its optimizer: generators, critics, students."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from ..data import adamw, mlp, sgd
from ..registry import add, case
from ..run import Ddp, NotThere, Run

UNUSED: Final = {"find_unused_parameters": True}


def generator() -> nn.Module:
    return nn.Linear(4, 3)


def discriminator(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 6), *layers, nn.Tanh(), nn.Linear(6, 1))


def game(run: Run, make: Callable[[Any], torch.optim.Optimizer] = adamw, **options: Any) -> tuple[Any, Any, Any]:
    """The wrapper, and the optimizers of the generator and of the discriminator."""
    models: dict[str, nn.Module] = {"G": generator(), "D": discriminator()}
    optimizers = {name: make(model) for name, model in models.items()}
    return run.wrap(models, optimizers, ddp=UNUSED, **options), optimizers["G"], optimizers["D"]


def real(output: Tensor) -> Tensor:
    return functional.softplus(-output).mean()


def fake(output: Tensor) -> Tensor:
    return functional.softplus(output).mean()


def gan(run: Run, batches: Iterator[Any]) -> None:
    """Goodfellow et al. 2014: a step of the discriminator, then one of the generator, through the former."""
    model, of_g, of_d = game(run)
    for x, y in batches:
        made = model["G"](x)
        of_d.zero_grad()
        (real(model["D"](y)) + fake(model["D"](made.detach()))).backward()
        of_d.step()
        of_g.zero_grad()
        real(model["D"](made)).backward()
        of_g.step()


@case(quick=True, elastic=True)
def a_GAN_by_name(run: Run) -> None:
    gan(run, run.loader())


@case()
def a_GAN_by_name_with_an_own_loader(run: Run) -> None:
    gan(run, run.own_loader())


def gan_that_zeroes(run: Run, *, set_to_none: bool) -> None:
    """Just before each backward pass, as in many scripts; the models are called as they are."""
    models: dict[str, nn.Module] = {"G": generator(), "D": discriminator()}
    of_g, of_d = (sgd(each, lr=0.01) for each in models.values())  # at 0.05 rounding grows tenfold in 20 batches
    run.wrap(models, {"G": of_g, "D": of_d}, ddp=UNUSED)
    for x, y in run.loader():
        for turn in ("D", "G"):
            made = models["G"](x)
            loss = real(models["D"](made))
            if turn == "D":
                loss = real(models["D"](y)) + fake(models["D"](made.detach()))
            (of_d if turn == "D" else of_g).zero_grad(set_to_none=set_to_none)
            loss.backward()
            (of_d if turn == "D" else of_g).step()


add("a_GAN_that_drops_gradients_late", partial(gan_that_zeroes, set_to_none=True), elastic=True)
add("a_GAN_that_fills_gradients_with_zeros", partial(gan_that_zeroes, set_to_none=False), elastic=True)


@case(quick=True)
def a_GAN_whose_discriminator_is_frozen_for_the_generator(run: Run) -> None:
    """As in pix2pix, with one update of the generator first."""
    model, of_g, of_d = game(run)
    for x, y in run.loader():
        made = model["G"](x)
        model["D"].requires_grad_(False)
        of_g.zero_grad()
        (real(model["D"](made)) + functional.l1_loss(made, y)).backward()
        of_g.step()
        model["D"].requires_grad_(True)
        of_d.zero_grad()
        (real(model["D"](y)) + fake(model["D"](made.detach()))).backward()
        of_d.step()


def gan_of_two_passes(run: Run, *, is_summed: bool) -> None:
    """As in PyTorch's tutorial: backward of the real and of the made samples, one update."""
    model, of_g, of_d = game(run)
    for x, y in run.loader():
        of_d.zero_grad()
        loss, made = real(model["D"](y)), model["G"](x)
        if is_summed:
            with model.no_sync():
                loss.backward()
        else:
            loss.backward()
        fake(model["D"](made.detach())).backward()
        of_d.step()
        of_g.zero_grad()
        real(model["D"](made)).backward()
        of_g.step()


add("a_GAN_of_two_passes_the_first_under_no_sync", partial(gan_of_two_passes, is_summed=True), quick=True)
add(
    "a_GAN_of_two_passes_without_no_sync",
    partial(gan_of_two_passes, is_summed=False),
    refused="neither used nor dropped",
)


@case()
def a_critic_with_a_gradient_penalty(run: Run) -> None:
    """WGAN-GP (Gulrajani et al. 2017), two updates of the critic per batch, and one of the generator in each third."""
    model, of_g, of_d = game(run)
    for number, (x, y) in enumerate(run.loader()):
        for _ in range(2):
            made = model["G"](x).detach()
            between = (0.3 * y + 0.7 * made).requires_grad_()
            (slopes,) = torch.autograd.grad(model["D"](between).sum(), between, create_graph=True)
            of_d.zero_grad()
            penalty = (slopes.norm(dim=1) - 1).square().mean()
            (model["D"](made).mean() - model["D"](y).mean() + 10 * penalty).backward()
            of_d.step()
        if number % 3 == 2:
            of_g.zero_grad()
            (-model["D"](model["G"](x))).mean().backward()
            of_g.step()


@case()
def a_critic_whose_weights_are_clipped(run: Run) -> None:
    """WGAN (Arjovsky et al. 2017)."""
    model, of_g, of_d = game(run, lambda each: torch.optim.RMSprop(each.parameters(), lr=0.01))
    for x, y in run.loader():
        of_d.zero_grad()
        (model["D"](model["G"](x).detach()).mean() - model["D"](y).mean()).backward()
        of_d.step()
        with torch.no_grad():
            for parameter in model["D"].parameters():
                parameter.clamp_(-0.1, 0.1)
        of_g.zero_grad()
        (-model["D"](model["G"](x))).mean().backward()
        of_g.step()


@case(as_ddp="normalized over the rank's part, as DDP does; the statistics are averaged")
def a_GAN_with_BatchNorm(run: Run) -> None:
    """What the generator has made before the discriminator's update is differentiated after it."""
    models: dict[str, nn.Module] = {"G": nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), "D": discriminator()}
    of_g, of_d = sgd(models["G"]), sgd(models["D"])
    model = run.wrap(models, {"G": of_g, "D": of_d}, ddp={**UNUSED, "broadcast_buffers": False})
    for x, y in run.loader():
        made = model["G"](x)
        of_d.zero_grad()
        (real(model["D"](y)) + fake(model["D"](made.detach()))).backward()
        of_d.step()
        of_g.zero_grad()
        real(model["D"](made)).backward()
        of_g.step()


@case(elastic=True)
def a_cycle_of_generators_with_one_optimizer(run: Run) -> None:
    """CycleGAN (Zhu et al. 2017): four models, two optimizers, their schedules in `extra`."""
    models: dict[str, nn.Module] = {"there": nn.Linear(3, 3), "back": nn.Linear(3, 3)}
    models |= {"D": discriminator(), "E": discriminator()}
    of_g = torch.optim.Adam([*models["there"].parameters(), *models["back"].parameters()], lr=0.01)
    of_d = torch.optim.Adam([*models["D"].parameters(), *models["E"].parameters()], lr=0.01)
    schedules = [torch.optim.lr_scheduler.StepLR(each, 3, 0.9) for each in (of_g, of_d)]
    model = run.wrap(models, {"both G": of_g, "both D": of_d}, extra=schedules, ddp=UNUSED)
    for x, y in run.loader():
        made, found = model["there"](x[:, :3]), model["back"](y)
        of_d.zero_grad()
        losses = [real(model["D"](y)), fake(model["D"](made.detach()))]
        losses += [real(model["E"](x[:, :3])), fake(model["E"](found.detach()))]
        torch.stack(losses).sum().backward()
        of_d.step()
        of_g.zero_grad()
        again = functional.l1_loss(model["back"](made), x[:, :3]) + functional.l1_loss(model["there"](found), y)
        (real(model["D"](made)) + real(model["E"](found)) + again).backward()
        of_g.step()
        for schedule in schedules:
            schedule.step()


# Actors and critics.


def actor_and_critic(run: Run, updates: Callable[[Any, Any, Any, Tensor, Tensor], None]) -> None:
    """PPO's losses (Schulman et al. 2017), four rounds per batch."""
    models: dict[str, nn.Module] = {"critic": mlp(), "actor": mlp()}
    of_actor, of_critic = adamw(models["actor"]), adamw(models["critic"])
    model = run.wrap(models, {"critic": of_critic, "actor": of_actor}, ddp=UNUSED)
    for x, y in run.loader():
        old = models["actor"](x).detach()
        for _ in range(4):
            value = model["critic"](x)
            ratio = (model["actor"](x) - old).exp()
            better = y - value.detach()
            loss = -torch.min(ratio * better, ratio.clamp(0.8, 1.2) * better).mean()
            updates(of_actor, of_critic, model, loss, functional.mse_loss(value, y))


@case(quick=True)
def an_actor_and_a_critic_in_turn(run: Run) -> None:
    def updates(of_actor: Any, of_critic: Any, model: Any, loss: Tensor, of_value: Tensor) -> None:
        of_actor.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model["actor"].parameters(), 0.5)
        of_actor.step()
        of_critic.zero_grad()
        of_value.backward()
        of_critic.step()

    actor_and_critic(run, updates)


@case()
def an_actor_and_a_critic_of_one_loss(run: Run) -> None:
    def updates(of_actor: Any, of_critic: Any, model: Any, loss: Tensor, of_value: Tensor) -> None:
        of_actor.zero_grad()
        of_critic.zero_grad()
        (loss + 0.5 * of_value).backward()
        of_actor.step()
        of_critic.step()

    actor_and_critic(run, updates)


@case()
def an_actor_and_a_critic_whose_updates_come_last(run: Run) -> None:
    """Both backward passes, then both updates."""

    def updates(of_actor: Any, of_critic: Any, model: Any, loss: Tensor, of_value: Tensor) -> None:
        of_actor.zero_grad()
        of_critic.zero_grad()
        loss.backward()
        of_value.backward()
        of_actor.step()
        of_critic.step()

    actor_and_critic(run, updates)


@case(elastic=True)
def an_actor_a_critic_and_a_temperature(run: Run) -> None:
    """As in SAC (Haarnoja et al. 2018): three optimizers, a critic that is an average."""
    models: dict[str, nn.Module] = {"alpha": nn.ParameterList([torch.zeros(())]), "critic": mlp(), "actor": mlp()}
    optimizers = {name: adamw(model) for name, model in models.items()}
    average = AveragedModel(models["critic"], multi_avg_fn=get_ema_multi_avg_fn(0.9))
    model = run.wrap(models, optimizers, extra=[average], ddp=UNUSED)
    for x, y in run.loader():
        chosen = model["actor"](x)
        optimizers["critic"].zero_grad()
        functional.mse_loss(model["critic"](x), y + 0.9 * average(x).detach()).backward()
        optimizers["critic"].step()
        alpha = models["alpha"][0].exp()
        optimizers["actor"].zero_grad()
        (alpha.detach() * chosen.square() - model["critic"](x).tanh() * chosen).mean().backward()
        optimizers["actor"].step()
        optimizers["alpha"].zero_grad()
        (alpha * (1 - chosen.detach().square().mean())).backward()
        optimizers["alpha"].step()
        average.update_parameters(models["critic"])


@case()
def two_models_of_one_optimizer(run: Run) -> None:
    models: dict[str, nn.Module] = {"actor": mlp(), "critic": mlp()}
    optimizer = adamw(nn.ModuleList(models.values()))
    model = run.wrap(models, {"both": optimizer}, ddp=UNUSED)
    for x, y in run.loader():
        value = model["critic"](x)
        optimizer.zero_grad()
        (functional.mse_loss(value, y) - (model["actor"](x) * (y - value.detach())).mean()).backward()
        optimizer.step()


# Other turns, and what is wrong.


@case(quick=True)
def an_adversary_that_is_trained_too(run: Run) -> None:
    """It moves inputs to where the model is worst, and the model learns from these; in several phases."""
    models: dict[str, nn.Module] = {"model": mlp(), "adversary": nn.Sequential(nn.Linear(4, 4), nn.Tanh())}
    optimizers = {name: sgd(model) for name, model in models.items()}
    model = run.wrap(models, optimizers, ddp=UNUSED)
    for number, (x, y) in enumerate(run.loader()):
        turn = "adversary" if number % 4 == 3 else "model"
        loss = functional.mse_loss(model["model"](x + 0.1 * model["adversary"](x)), y)
        for optimizer in optimizers.values():
            optimizer.zero_grad()
        (-loss if turn == "adversary" else loss).backward()
        optimizers[turn].step()
        run.log(loss)


@case()
def a_GAN_with_a_scaler(run: Run) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    model, of_g, of_d = game(run, extra=[scaler])
    for x, y in run.loader():
        made = model["G"](x)
        of_d.zero_grad()
        scaler.scale(real(model["D"](y)) + fake(model["D"](made.detach()))).backward()
        scaler.step(of_d)
        of_g.zero_grad()
        scaler.scale(real(model["D"](made))).backward()
        scaler.step(of_g)
        scaler.update()


@case()
def a_step_of_one_model_that_all_leave_out(run: Run) -> None:
    model, of_g, of_d = game(run, sgd)
    for number, (x, y) in enumerate(run.loader()):
        of_d.zero_grad()
        loss = real(model["D"](y)) + fake(model["D"](model["G"](x).detach()))
        model.skip_step("D") if number == 3 else loss.backward()
        of_d.step()
        of_g.zero_grad()
        real(model["D"](model["G"](x))).backward()
        of_g.step()


@case()
def gradients_by_hand_of_one_model(run: Run) -> None:
    model, of_g, of_d = game(run)
    for x, y in run.loader():
        loss = real(model["D"](y)) + fake(model["D"](model["G"](x).detach()))
        model.reduce_gradients({"D": torch.autograd.grad(loss, [*model["D"].parameters()])})
        of_d.step()
        of_g.zero_grad()
        real(model["D"](model["G"](x))).backward()
        of_g.step()


@case(quick=True, refused="that no step committed")
def an_update_of_a_model_that_no_step_was_of(run: Run) -> None:
    model, of_g, of_d = game(run)
    for x, y in run.loader():
        of_g.zero_grad()
        functional.mse_loss(model["G"](x), y).backward()
        of_g.step()
        slopes = torch.autograd.grad(real(model["D"](y)), [*model["D"].parameters()])
        for parameter, slope in zip(model["D"].parameters(), slopes, strict=True):
            parameter.grad = slope
        of_d.step()


@case(quick=True, refused="gradients of G")
def one_peer_trains_another_model_than_the_others(run: Run) -> None:
    if isinstance(run, Ddp):
        raise NotThere("Gloo ends the process")
    model, of_g, of_d = game(run)
    for number, (x, y) in enumerate(run.loader()):
        of_d.zero_grad()
        of_g.zero_grad()
        if number < 3 or run.rank == 0:
            (real(model["D"](y)) + fake(model["D"](model["G"](x).detach()))).backward()
            of_d.step()
        else:
            real(model["D"](model["G"](x))).backward()
            of_g.step()


@case(refused="is also actor.0.weight, so no optimizer has it alone")
def two_models_with_a_trunk_in_common(run: Run) -> None:
    trunk = nn.Linear(4, 8)
    models: dict[str, nn.Module] = {name: nn.Sequential(trunk, nn.Linear(8, 3)) for name in ("actor", "critic")}
    optimizers = {name: sgd(model) for name, model in models.items()}
    model = run.wrap(models, optimizers, ddp=UNUSED)
    for x, y in run.loader():
        optimizers["actor"].zero_grad()
        optimizers["critic"].zero_grad()
        (functional.mse_loss(model["critic"](x), y) + functional.mse_loss(model["actor"](x), y)).backward()
        optimizers["actor"].step()
