"""What becomes of a model after it was wrapped is found, and named; what needs no gradient may come and go."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from p2p.errors import ShoalError
from p2p.training.changes import Watch


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
    for _ in range(2):  # it is found again, until something is done about it
        with pytest.raises(ShoalError, match=words):
            watched.check()


def test_what_needs_no_gradient_may_come_and_go_and_what_is_summed_may_be_frozen_or_moved() -> None:
    found = model()
    watched = watch(found)
    found[1] = nn.Sequential(nn.ReLU(), nn.Dropout())
    found.append(nn.Linear(1, 1).requires_grad_(False))
    found[2].requires_grad_(False)
    watched.check()
    found[2].requires_grad_(True)
    found.insert(1, found[2])
    del found[3]
    watched.check()
    found[3].requires_grad_(True)
    with pytest.raises(ShoalError, match=r"parameter 3\.weight was added"):
        watched.check()


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
