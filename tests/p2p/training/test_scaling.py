"""Scaling of learning rates by a step's counted samples."""

import math
from typing import Any

import pytest
import torch

from p2p.training.steps.scaling import LrScaling, ScaledRates


def optimizer_of(lr: float | torch.Tensor = 0.5) -> torch.optim.Optimizer:
    first, second = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
    groups: list[dict[str, Any]] = [{"params": [first]}, {"params": [second], "lr": 4 * lr}]
    return torch.optim.SGD(groups, lr=lr)


def rates(optimizer: torch.optim.Optimizer) -> list[float]:
    return [float(group["lr"]) for group in optimizer.param_groups]


def test_a_factor_is_a_function_of_what_a_step_has_counted() -> None:
    assert LrScaling().factor(7) == 1.0
    assert [LrScaling("linear", 8).factor(weight) for weight in (0, 4, 24)] == [0, 0.5, 3]
    assert [LrScaling("sqrt", 8).factor(weight) for weight in (0, 2, 24)] == [0, 0.5, math.sqrt(3)]


@pytest.mark.parametrize("lr", [0.5, torch.tensor(0.5)])
def test_rates_are_scaled_in_an_update_and_as_they_were_after_it(lr: float | torch.Tensor) -> None:
    optimizer, other = optimizer_of(lr), optimizer_of()
    scaled = ScaledRates(LrScaling("linear", 8), [optimizer, other, object()])
    scaled.apply(optimizer)
    assert rates(optimizer) == [0.5, 2.0], "no step has counted anything yet"
    scaled.committed([optimizer], 24)
    scaled.apply(optimizer)
    assert (rates(optimizer), rates(other), scaled.factor) == ([1.5, 6.0], [0.5, 2.0], 3)
    scaled.restore()
    scaled.restore()
    assert rates(optimizer) == [0.5, 2.0] and optimizer.param_groups[0]["lr"] is lr
    scaled.committed([other], 4)
    scaled.apply(optimizer)  # with the gradients of the previous step
    assert rates(optimizer) == [1.5, 6.0]


def test_rates_that_an_update_which_raised_has_left_are_put_back_before_the_next() -> None:
    optimizer = optimizer_of()
    scaled = ScaledRates(LrScaling("linear", 8), [optimizer])
    scaled.committed([optimizer], 16)
    for _ in range(2):
        scaled.apply(optimizer)
        assert rates(optimizer) == [1.0, 4.0]


def test_rates_of_a_state_that_was_loaded_stay() -> None:
    optimizer = optimizer_of()
    scaled = ScaledRates(LrScaling("linear", 8), [optimizer])
    scaled.committed([optimizer], 16)
    scaled.apply(optimizer)
    optimizer.param_groups[0]["lr"] = 0.25
    scaled.forget()
    scaled.restore()
    assert rates(optimizer)[0] == 0.25


@pytest.mark.parametrize(
    ("rule", "batch", "why"),
    [
        ("cubic", 8, "lr_scaling must be linear or sqrt, is 'cubic'"),
        ("linear", None, "lr_scaling is 'linear' and lr_batch is None: pass both"),
        (None, 8, "lr_scaling is None and lr_batch is 8: pass both"),
        ("sqrt", 0, "lr_batch must be at least 1, is 0"),
    ],
)
def test_half_a_rule_is_refused(rule: str | None, batch: int | None, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        LrScaling(rule, batch)


def test_an_optimizer_without_a_rate_is_refused_only_where_one_is_to_be_scaled() -> None:
    optimizer = optimizer_of()
    optimizer.param_groups[1]["lr"] = None
    ScaledRates(LrScaling(), [optimizer])
    with pytest.raises(ValueError, match="group 1 of SGD has no lr that lr_scaling='linear' could scale"):
        ScaledRates(LrScaling("linear", 8), [optimizer])
