"""Several models in one wrapper."""

from typing import Any

import pytest
import torch
from torch import nn

from p2p.step.collective import AllReduce
from p2p.training.steps.models import collect_models, name_parts


def sgd(*models: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD([parameter for model in models for parameter in model.parameters()], lr=0.1)


G, D = nn.Linear(4, 3), nn.Linear(3, 1)


def test_one_model_has_no_name() -> None:
    optimizer = sgd(G)
    models = collect_models(G, optimizer)
    assert models.module is G and models.named == {"": G} and models.optimizers == {"": optimizer}
    models.check({"SGD": optimizer})


def test_several_models_are_one_module_under_their_names() -> None:
    optimizers = {"D": sgd(D), "G": sgd(G)}
    models = collect_models({"G": G, "D": D}, optimizers)
    assert [name for name, _ in models.module.named_parameters()] == ["G.weight", "G.bias", "D.weight", "D.bias"]
    assert models.optimizers == optimizers and list(models.named) == ["G", "D"]
    models.check(optimizers)


def test_an_optimizer_of_another_name_may_be_of_several_models() -> None:
    for optimizers in ({"both": sgd(G, D)}, sgd(G, D)):
        models = collect_models({"G": G, "D": D}, optimizers)
        models.check(models.optimizers)


@pytest.mark.parametrize(
    ("models", "optimizers", "kind", "words"),
    [
        (G, {"G": sgd(G)}, TypeError, "the optimizers have names, but the model has none"),
        ("model", sgd(G), TypeError, "the model must be a torch.nn.Module, or a dict of them, is a str"),
        ({}, {}, ValueError, "the dict of models is empty"),
        ({"G": G}, {}, ValueError, "the dict of optimizers is empty; the models are G"),
        ({"G": G, "D": "D"}, sgd(G), TypeError, "model 'D' must be a torch.nn.Module, is a str"),
        ({"G": G, "keys": D}, sgd(G), ValueError, "models cannot be called 'G', 'keys': attribute 'keys' already"),
        ({"G.a": G}, sgd(G), ValueError, "models cannot be called 'G.a'"),
        ({1: G}, sgd(G), ValueError, "models cannot be called 1"),
        ({"G": G, "D": nn.Sequential(G)}, sgd(G), ValueError, "parameter D.0.weight is also G.weight, so"),
    ],
)
def test_what_cannot_be_wrapped_is_said(models: Any, optimizers: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        collect_models(models, optimizers)


def test_the_optimizer_of_another_model_is_named() -> None:
    words = r"parameter 0 of group 0 of optimizer G, torch.float32 \[1, 3\], is not in its model"
    optimizers = {"G": sgd(D), "D": sgd(D)}
    with pytest.raises(ValueError, match=words):
        collect_models({"G": G, "D": D}, optimizers).check(optimizers)
    with pytest.raises(TypeError, match=r"optimizer D must be a torch.optim.Optimizer, is a str"):
        collect_models({"G": G, "D": D}, {"G": sgd(G), "D": "D"}).check({"G": sgd(G)})


def test_messages_name_what_a_joiner_is_given_as_the_script_does() -> None:
    adams = [torch.optim.Adam(model.parameters()) for model in (G, D)]
    schedules = [torch.optim.lr_scheduler.StepLR(adam, 1) for adam in adams]
    average = torch.optim.swa_utils.AveragedModel(G)
    names = name_parts(dict(zip("GD", adams, strict=True)), [*schedules, average])
    assert [*names] == [
        "optimizer G (Adam)",
        "optimizer D (Adam)",
        "StepLR (extra[0])",
        "StepLR (extra[1])",
        "AveragedModel",
    ]
    assert [*names.values()] == [*adams, *schedules, average]
    assert [*name_parts({"": adams[0]}, [adams[1]])] == ["Adam", "Adam (extra[0])"]
    assert [*name_parts({"": adams[0]}, schedules[:1])] == ["Adam", "StepLR"]


def test_operations_of_two_models_are_not_the_same() -> None:
    of_one, of_other, of_none = (AllReduce("mean", is_weighted=True, label=label) for label in ("of G", "of D", ""))
    assert of_one.name == "all_reduce weighted mean (of G)" != of_other.name
    assert of_none.name == "all_reduce weighted mean"


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ({"schedule": 1}, "is {'schedule': 1}"),
        (7, r"scaler\], is 7"),
        (["schedule"], "load_state_dict, got 'schedule'"),
    ],
)
def test_what_has_no_state_is_no_part(extra: Any, named: str) -> None:
    with pytest.raises(TypeError, match=named):
        name_parts({}, extra)
