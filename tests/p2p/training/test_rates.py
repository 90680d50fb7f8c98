import logging
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

from p2p.training.checks.rates import Rates, unwrapped


class Around(torch.optim.Optimizer):
    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer


class Several:
    def __init__(self, *optimizers: torch.optim.Optimizer) -> None:
        self.optimizers = optimizers


class Unknown:
    """A possible schedule that holds its optimizer under another name."""


def make() -> torch.optim.Optimizer:
    return torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=0.1)


def said(caplog: pytest.LogCaptureFixture, optimizer: torch.optim.Optimizer, *parts: Any, forgets: bool = False) -> int:
    """Number of messages in four updates between which the rate changes."""
    rates = Rates({"optimizer G (SGD)": optimizer, **{f"part {i}": part for i, part in enumerate(parts)}})
    with caplog.at_level(logging.WARNING, "p2p"):
        for _ in range(4):
            rates.check(optimizer)
            optimizer.param_groups[0]["lr"] *= 0.5
            if forgets:
                rates.forget()
    return len(caplog.records)


def test_a_rate_that_changes_by_nothing_a_joiner_is_given_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    optimizer = make()
    assert said(caplog, optimizer, torch.amp.GradScaler("cpu"), nn.Linear(1, 1), StepLR(make(), 1)) == 1
    assert "lr of group 0 of optimizer G (SGD) changed to 0.05, it was 0.1" in caplog.text


def test_a_part_that_may_be_its_schedule_explains_it(caplog: pytest.LogCaptureFixture) -> None:
    optimizer = make()
    for part in (StepLR(optimizer, 1), ReduceLROnPlateau(optimizer), Several(make(), Around(optimizer)), Unknown()):
        assert said(caplog, optimizer, part) == 0


def test_a_rate_that_came_with_a_state_is_no_change(caplog: pytest.LogCaptureFixture) -> None:
    assert said(caplog, make(), forgets=True) == 0


def test_the_optimizer_that_makes_the_updates_is_found_behind_others() -> None:
    optimizer, other = make(), Unknown()
    assert unwrapped(Around(Around(optimizer))) is optimizer
    assert unwrapped(optimizer) is optimizer and unwrapped(other) is other


def test_a_rate_that_changes_in_a_round_by_time_is_named_once_and_one_between_rounds_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    optimizer = make()
    rates = Rates({"SGD": optimizer, "StepLR (extra[0])": StepLR(optimizer, 1)})
    with caplog.at_level(logging.WARNING, "p2p"):
        for turn in range(6):
            optimizer.param_groups[0]["lr"] = 0.1 / (1 + turn)
            if turn < 3:
                rates.forget()
            rates.check_in_round(optimizer)
            assert len(caplog.records) == (turn >= 3)
    assert "lr of group 0 of SGD changed to 0.025 in the middle of a round, it was 0.0333333" in caplog.text
    assert "peer.samples" in caplog.text
