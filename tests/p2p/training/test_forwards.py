from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from p2p.data.sample_tracker import SampleTracker
from p2p.training.steps.forwards import Forwards


def layer(x: Tensor) -> Tensor:
    return x @ torch.ones(3, 3, requires_grad=True)


def unused(train: Callable[[Forwards], Any]) -> int:
    """Number of forward passes of this step without a backward pass."""
    share = SampleTracker()
    forwards = Forwards(share)
    train(forwards)
    forwards.end_step()
    return share.num_unused


def follow(forwards: Forwards, output: Any, model: str = "") -> Any:
    forwards.follow(model, output)
    return output


X = torch.ones(2, 3)


@pytest.mark.parametrize(
    "output",
    [
        lambda: layer(X),
        lambda: {"loss": layer(X).sum(), "logits": layer(X)},
        lambda: (torch.ones(2), [layer(X)]),
    ],
)
def test_a_pass_is_used_once_backward_has_reached_a_tensor_of_its_result(output: Callable[[], Any]) -> None:
    def train(forwards: Forwards) -> None:
        follow(forwards, output())
        last = follow(forwards, output())
        tensors = list(last.values()) if isinstance(last, dict) else [last] if isinstance(last, Tensor) else last[1]
        tensors[-1].sum().backward()

    assert unused(train) == 1
    assert unused(lambda forwards: follow(forwards, output())) == 1


def test_passes_that_share_one_backward_pass_are_used() -> None:
    def train(forwards: Forwards) -> None:
        one, other = (follow(forwards, layer(X)) for _ in range(2))
        other = other.squeeze()
        other += 1
        (one * other).sum().backward()

    assert unused(train) == 0


def test_what_is_not_to_be_trained_on_is_not_followed() -> None:
    def train(forwards: Forwards) -> None:
        with torch.no_grad():
            follow(forwards, layer(X))
        follow(forwards, torch.ones(2))
        follow(forwards, [layer(X).detach(), "words"])

    assert unused(train) == 0


def test_passes_that_are_made_again_for_their_gradient_are_part_of_it() -> None:
    def train(forwards: Forwards) -> None:
        start = torch.ones(2, 3, requires_grad=True)
        checkpoint(lambda x: follow(forwards, layer(x)), start, use_reentrant=False).sum().backward()

    assert unused(train) == 0


def test_gradients_by_hand_use_the_passes_of_their_models() -> None:
    def train(forwards: Forwards) -> None:
        for model in ("D", "G", "D"):
            follow(forwards, layer(X), model)
        forwards.use(["D"])

    assert unused(train) == 1


def test_a_step_begins_with_none() -> None:
    share = SampleTracker()
    forwards = Forwards(share)
    follow(forwards, layer(X))
    forwards.end_step()
    assert share.collective.name == (
        "a training step on samples of its own, after a step with 1 forward pass in training without a backward pass "
        "(to leave out a batch, call `model.skip_step()` instead of `continue`; run all other forward passes under "
        "torch.no_grad())"
    )
    forwards.end_step()
    assert share.num_unused == 0 and share.collective.name == "a training step"
