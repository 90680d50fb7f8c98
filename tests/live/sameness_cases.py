"""Cases of tensors that differ between peers and are not averaged: named once. Layers added after wrapping: refused."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import swa_utils

import p2p
from p2p import Peer
from tests.live.raising_cases import CASES, Said, main, only
from tests.live.training_cases import assert_same_everywhere, case, linear, raises, wrap

__all__ = ["CASES", "main"]


class Prototypes(nn.Module):
    """An average of features in a parameter without gradient, and a constant one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.constant = nn.Parameter(torch.ones(3), requires_grad=False)
        self.average = nn.Parameter(torch.zeros(5000, 3), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.layer(x) * self.constant
        self.average.data.mul_(0.9).add_(features.detach().mean(0), alpha=0.1)
        return features - self.average[:1]


def train(peer: Peer, parallel: Any, optimizer: torch.optim.Optimizer, num_steps: int = 20) -> None:
    """Train each peer on its own samples."""
    for x in torch.randn(num_steps, 2, 6, 4):
        optimizer.zero_grad()
        parallel(x[peer.rank]).square().mean().backward()
        optimizer.step()


@case
def a_parameter_without_a_gradient_that_differs_is_named_once(peer: Peer) -> None:
    model = Prototypes()
    optimizer = torch.optim.SGD(model.layer.parameters(), lr=0.1)
    parallel = wrap(peer, model, optimizer)
    with Said() as lines:
        train(peer, parallel, optimizer, 40)
    line = only(lines)
    assert line.startswith("parameter average differs between peers ") and "buffers='mean'" in line, line


@case
def a_model_in_extra_that_differs_is_named_once_and_one_that_does_not_is_not(peer: Peer) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    average, own = (swa_utils.AveragedModel(model, use_buffers=True) for _ in range(2))
    parallel = wrap(peer, model, optimizer, extra=[average, own])
    inputs = torch.randn(40, 2, 6, 4)
    with Said() as lines:
        for x in inputs:
            optimizer.zero_grad()
            parallel(x[peer.rank]).square().mean().backward()
            optimizer.step()
            average.update_parameters(model)
            own(x[peer.rank])  # its statistics depend on this peer's samples
    line = only(lines)
    assert " of AveragedModel (extra[1]) differs between peers " in line, line


@case
def the_same_samples_at_all_peers_are_named_once_and_others_are_not(peer: Peer) -> None:
    model, optimizer = linear()
    parallel = wrap(peer, model, optimizer)
    with Said() as lines:
        for x in torch.randn(4, 6, 4):
            optimizer.zero_grad()
            parallel(x).square().mean().backward()
            optimizer.step()
    line = only(lines)
    assert line.startswith("all 2 members computed the same gradients in the first 2 steps"), line


@case
def one_step_on_the_same_samples_is_nothing_to_speak_of(peer: Peer) -> None:
    model, optimizer = linear()
    parallel = wrap(peer, model, optimizer)
    with Said() as lines:
        parallel(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        train(peer, parallel, optimizer, 3)
    assert lines == []


@case
def a_bias_whose_gradient_follows_from_no_sample_says_nothing(peer: Peer) -> None:
    model, optimizer = linear()
    parallel = wrap(peer, model, optimizer)
    with Said() as lines:
        for x in torch.randn(3, 2, 6, 4):
            optimizer.zero_grad()
            (parallel(x[peer.rank]) - 100).abs().mean().backward()
            optimizer.step()
    assert lines == []


@case
def the_same_samples_in_rounds_are_named_once(peer: Peer) -> None:
    model, optimizer = linear()
    parallel: Any = p2p.DiLoCo(peer, model, optimizer, inner_steps=2)
    with Said() as lines:
        for x in torch.randn(8, 6, 4):
            optimizer.zero_grad()
            parallel(x).square().mean().backward()
            optimizer.step()
    line = only(lines)
    assert line.startswith("all 2 members sent the same changes in the first 2 rounds"), line


class Criterion(nn.Module):
    """A loss that refers to the model."""

    def __init__(self, student: nn.Module) -> None:
        super().__init__()
        self.student = student
        self.register_buffer("scale", torch.ones(3))


@case
def the_model_itself_in_a_part_of_extra_is_the_models(peer: Peer) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parallel = wrap(peer, model, optimizer, extra=[Criterion(model)])
    with Said() as lines:
        train(peer, parallel, optimizer, 40)
    assert lines == []


@case
def layers_that_came_behind_the_wrap_are_trained_by_no_peer_alone(peer: Peer) -> None:
    model, optimizer = linear()
    wrap(peer, model, optimizer)
    model.requires_grad_(False)
    layers: Any = model
    layers[2] = nn.Linear(8, 3)
    later = torch.optim.SGD(layers[2].parameters(), lr=0.1)
    model(torch.randn(6, 4)).square().mean().backward()
    raises(p2p.ShoalError, "parameter 2.weight was replaced after the model was wrapped", later.step)


@case
def statistics_that_came_behind_the_wrap_are_refused_until_refresh(peer: Peer) -> None:
    model, optimizer = linear()
    parallel = wrap(peer, model, optimizer)
    layers: Any = model
    layers.append(nn.BatchNorm1d(3, affine=False))
    raises(p2p.ShoalError, "3.running_mean was added after", lambda: train(peer, parallel, optimizer, 1))
    parallel.refresh()
    train(peer, parallel, optimizer)
    least = layers[3].running_mean.clone()
    peer.all_reduce(least, op="min")
    assert torch.equal(least, layers[3].running_mean), "they are averaged"


@case
def every_parameter_has_its_turn_where_each_step_has_another_operation_beside_it(peer: Peer) -> None:
    for turn in range(2):
        model = nn.Sequential(*(nn.Linear(1, 1) for _ in range(16)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        with p2p.join(swarm=f"turns-{turn}") as another:
            parallel = wrap(another, model, optimizer, state_digest="part")
            damaged = list(model.parameters())[turn]

            def steps(peer: Peer = another, parallel: Any = parallel, damaged: Tensor = damaged) -> None:
                for step in range(20):
                    parallel(torch.randn(2, 1)).square().mean().backward()
                    peer.all_reduce(torch.ones(1))
                    parallel.zero_grad()
                    if step == 1 and peer.rank == 1:
                        damaged.data += 1

            raises(p2p.ReplicasDiverged, "", steps)


@case
def gradients_that_are_never_dropped_are_named_once(peer: Peer) -> None:
    """Of one of two optimizers; the other one's are dropped, or filled with zeros."""
    for name, forgotten in (("none", ""), ("head", "head"), ("table", "table")):
        table, head = nn.Embedding(5, 4, sparse=True), nn.Linear(4, 3)
        optimizers = {
            "table": torch.optim.SparseAdam(table.parameters(), lr=0.1),
            "head": torch.optim.SGD(head.parameters(), lr=0.1),
        }
        with p2p.join(swarm=f"never-{name}") as another, Said() as lines:
            parallel = wrap(another, nn.Sequential(table, head), optimizers["head"], extra=[optimizers["table"]])
            words = torch.Generator().manual_seed(another.rank)
            for _ in range(6):
                for key, each in optimizers.items():
                    if key != forgotten:
                        each.zero_grad(set_to_none=key == "table")
                parallel(torch.randint(5, (4,), generator=words)).square().mean().backward()
                nn.utils.clip_grad_norm_(head.parameters(), 1.0)
                for each in optimizers.values():
                    each.step()
        said = [line.split()[0] for line in lines if "makes an update with gradients that were added to" in line]
        assert said == {"": [], "head": ["SGD"], "table": ["SparseAdam"]}[forgotten], lines


@case
def a_script_whose_tensors_are_made_elsewhere_by_default_trains_as_any(peer: Peer) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.randn(3, 2, 6, 4)
    with torch.device("meta"):  # as `torch.set_default_device`, to a device that every host has
        parallel = wrap(peer, model, optimizer)
        for x in inputs:
            optimizer.zero_grad()
            parallel(x[peer.rank]).square().mean().backward()
            optimizer.step()
        lent = peer.empty(5)
    peer.all_reduce(lent.fill_(1))
    assert lent.tolist() == [2] * 5
    assert_same_everywhere(peer, torch.cat([tensor.flatten() for tensor in (*model.parameters(), *model.buffers())]))


@case
def who_evaluates_in_inference_mode_adds_half_types_up_behind_it_too(peer: Peer) -> None:
    score, gradient = torch.ones(7, dtype=torch.bfloat16), torch.ones(7, dtype=torch.bfloat16)
    with torch.inference_mode():
        peer.all_reduce(score)
    peer.all_reduce(gradient, async_op=True)
    peer.wait()
    assert score.tolist() == gradient.tolist() == [2] * 7
