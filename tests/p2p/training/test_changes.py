"""Changes of a model after wrapping are detected and named; tensors without gradients may change freely."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from p2p.errors import ShoalError
from p2p.training.state.changes import OF_ROUNDS, OF_STEPS, Watch, is_training


def model() -> Any:
    found: Any = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1)))
    found[0].requires_grad_(False)
    return found


def watch(found: nn.Module) -> Watch:
    return Watch(found, [each for each in found.parameters() if each.requires_grad])


def unfreeze(found: Any) -> None:
    found[0].bias.requires_grad_(True)


def add(found: Any) -> None:
    found[2].append(nn.Linear(1, 1))


def replace(found: Any) -> None:
    found[2][1] = nn.Linear(3, 1)


def put_another_parameter(found: Any) -> None:
    found[2][0].bias = nn.Parameter(torch.zeros(3))


def remove(found: Any) -> None:
    del found[2][1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (unfreeze, "parameter 0.bias was unfrozen"),
        (add, "parameter 2.2.weight was added"),
        (replace, "parameter 2.1.weight was replaced"),
        (put_another_parameter, "parameter 2.0.bias was replaced"),
        (remove, "parameter 2.1.weight was removed"),
    ],
)
def test_a_change_is_found_and_named(change: Callable[[Any], None], words: str) -> None:
    found = model()
    watched = watch(found)
    watched.check()
    change(found)
    for _ in range(2):  # it is reported again until it is corrected
        with pytest.raises(ShoalError, match=words):
            watched.check()


def add_frozen(found: Any) -> None:
    found.append(nn.Linear(1, 1).requires_grad_(False))


def move(found: Any) -> None:
    found.insert(1, found[2])
    del found[3]


def add_statistics(found: Any) -> None:
    found[2].append(nn.BatchNorm1d(1, affine=False))


def prune_weights(found: Any) -> None:
    prune.l1_unstructured(found[2][1], "weight", 0.5)  # type: ignore[no-untyped-call]


def fill_buffer(found: Any) -> None:
    found.scale = torch.ones(1)


def remove_frozen(found: Any) -> None:
    del found[0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (add_frozen, "3.weight was added"),
        (move, "1.0.weight was added"),
        (add_statistics, "2.2.running_mean was added"),
        (prune_weights, "2.1.weight_orig was added"),
        (fill_buffer, "scale was added"),
        (remove_frozen, "1.0.weight was added"),
    ],
)
@pytest.mark.parametrize("advice", [OF_STEPS, OF_ROUNDS])
def test_a_change_of_what_a_joiner_is_given_is_named(change: Callable[[Any], None], words: str, advice: str) -> None:
    found = model()
    found.register_buffer("scale", None)
    watched = Watch(found, [each for each in found.parameters() if each.requires_grad], advice)
    watched.check()
    change(found)
    for _ in range(2):
        with pytest.raises(ShoalError, match=words) as raised:
            watched.check()
        assert ("call `refresh()`" in str(raised.value)) == (advice is OF_STEPS)


def test_what_is_no_state_may_come_and_go_and_what_is_summed_may_be_frozen() -> None:
    found = model()
    found.register_buffer("scale", torch.ones(1))
    watched = watch(found)
    found[1] = nn.Sequential(nn.ReLU(), nn.Dropout())
    found.scale = torch.zeros(1)
    found.register_buffer("cache", torch.ones(3), persistent=False)
    found[2].requires_grad_(False)
    watched.check()
    found[2].requires_grad_(True)
    watched.check()


def optimizer_of(*parameters: nn.Parameter) -> torch.optim.Optimizer:
    for each in parameters:
        each.grad = torch.ones_like(each)
    return torch.optim.SGD(parameters, lr=0.1)


def test_an_optimizer_of_layers_that_came_later_or_were_frozen_is_refused_and_any_other_is_not() -> None:
    found, beside = model(), nn.Linear(2, 2)
    watched, own = watch(found), optimizer_of(*beside.parameters())
    watched.check_other(own)
    found[2][1] = nn.Linear(3, 1)
    watched.check_other(own)
    with pytest.raises(ShoalError, match=r"parameter 2\.1\.weight was replaced"):
        watched.check_other(optimizer_of(*found[2][1].parameters()))
    found = model()
    watched, layer = watch(found), found[0]
    found[0] = nn.Identity()
    with pytest.raises(ShoalError, match=r"0\.weight was"):
        watched.check_other(optimizer_of(*layer.requires_grad_(True).parameters()))


def test_what_is_frozen_behind_the_wrap_is_said_in_words_that_are_its_own() -> None:
    found = model()
    watched = watch(found)
    assert watched.frozen() == ""
    found[2][0].requires_grad_(False)
    both = watched.frozen()
    assert both.startswith("2 parameters, the first 2.0.weight, are frozen (digest ")
    found[2][0].weight.requires_grad_(True)
    assert watched.frozen() != both and watched.frozen().startswith("1 parameters, the first 2.0.bias,")
    found[2][0].requires_grad_(True)
    assert watched.frozen() == ""


def test_which_layers_are_in_evaluation_mode_is_said_in_words_that_are_their_own() -> None:
    found = model()
    watched = watch(found)
    assert watched.evaluates() == ""
    found[2].eval()
    both = watched.evaluates()
    assert both.startswith("2 layers, the first 2.0, are in evaluation mode (digest ")
    found[2].train()
    assert watched.evaluates() == ""
    found.eval()
    assert watched.evaluates() not in (both, "") and watched.evaluates() == watched.evaluates()
    for layer in (found[0], found[1], *found[2]):  # not the containers, which compute nothing
        layer.train()
    assert watched.evaluates() == ""
    found.append(nn.Dropout())
    watched.check()
    found[-1].eval()
    assert watched.evaluates().startswith("1 layers, the first 3,")


def test_how_a_step_is_trained_is_as_at_its_first_update_and_who_skips_it_in_an_evaluation_says_what_it_said() -> None:
    found = model()
    watched = watch(found)
    assert watched.in_words() == watched.in_words(is_skipped=True) == ""
    watched.note_modes()
    found.eval()
    assert watched.in_words() == watched.in_words(is_skipped=True) == ""
    assert watched.in_words() == watched.in_words(is_skipped=True) == watched.evaluates() != ""
    found.train()
    found[0].eval()
    assert watched.in_words(is_skipped=True) == watched.evaluates(), "all peers have set this one"
    found[2].requires_grad_(False)
    assert watched.in_words() == f"{watched.frozen()}, while {watched.evaluates()}"


def test_a_model_trains_if_any_layer_of_it_does() -> None:
    found = model()
    assert is_training(found)
    found.eval()
    assert not is_training(found)
    found[2][0].train()
    assert is_training(found)
