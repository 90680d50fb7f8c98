"""A checkpoint of another script: its frozen parameters, its optimizers, and their settings."""

import logging
from typing import Any

import pytest
import torch
from torch import nn

from p2p.errors import JoinRefused
from p2p.training.state.initial_settings import InitialSettings


def make(
    *, frozen: bool = False, lr: float = 0.1, kind: Any = torch.optim.Adam, swaps: bool = False, extra: Any = ()
) -> Any:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].requires_grad_(not frozen)
    groups = [{"params": [*model[place].parameters()]} for place in ((1, 0) if swaps else (0, 1))]
    optimizer = kind(groups, lr=lr)
    others = {each.__name__: each(optimizer, 5) for each in extra}
    return model, InitialSettings(model, {kind.__name__: optimizer, **others})


def resume(saved: Any, begun: InitialSettings, caplog: pytest.LogCaptureFixture) -> tuple[str, list[str]]:
    with caplog.at_level(logging.WARNING, "p2p"):
        begun.load_state_dict(saved)
        return begun.resume(), [record.getMessage() for record in caplog.records]


def test_the_same_script_goes_on_as_the_checkpoint_has_it(caplog: pytest.LogCaptureFixture) -> None:
    model, begun = make()
    (loaded, again) = make()
    model[0].requires_grad_(False)  # in the middle of the run
    loaded[0].requires_grad_(False)  # as in its state
    assert resume(begun.state_dict(), again, caplog) == ("", []) and not loaded[0].weight.requires_grad
    assert resume(None, again, caplog) == ("", []), "an older checkpoint does not say how its script began"


@pytest.mark.parametrize("frozen", [True, False])
def test_what_this_script_trains_is_trained_and_what_it_freezes_is_frozen(
    frozen: bool, caplog: pytest.LogCaptureFixture
) -> None:
    _, before = make(frozen=frozen)
    model, begun = make(frozen=not frozen)
    model[0].requires_grad_(not frozen)  # as in the state of the checkpoint
    said, _ = resume(before.state_dict(), begun, caplog)
    now, then = ("trained", "frozen") if frozen else ("frozen", "trained")
    assert said == (
        f"2 parameters, the first 0.weight, are {now} in this script, but were {then} in the one that wrote the "
        "checkpoint"
    )
    assert model[0].weight.requires_grad is frozen


def test_another_rate_or_optimizer_is_said_with_both(caplog: pytest.LogCaptureFixture) -> None:
    _, before = make()
    _, (line,) = resume(before.state_dict(), make(lr=0.2)[1], caplog)
    assert line.startswith("lr of group 0 of Adam was 0.1 in the script that wrote the checkpoint, but is 0.2 in this")
    caplog.clear()
    _, (line,) = resume(before.state_dict(), make(kind=torch.optim.AdamW)[1], caplog)
    assert line.startswith("the checkpoint is of Adam, but this script has AdamW:")


def test_moments_are_not_given_to_other_parameters() -> None:
    _, before = make()
    _, begun = make(swaps=True)
    begun.load_state_dict(before.state_dict())
    with pytest.raises(JoinRefused, match=r"^group 0 of Adam has other .* first 1.weight .* here, .* first 0.weight"):
        begun.resume()


def test_a_state_is_not_given_to_another_part_of_extra(caplog: pytest.LogCaptureFixture) -> None:
    pair = [torch.optim.lr_scheduler.StepLR, torch.optim.lr_scheduler.CosineAnnealingLR]
    _, before = make(extra=pair)
    _, begun = make(extra=pair[::-1])
    begun.load_state_dict(before.state_dict())
    with pytest.raises(JoinRefused, match=r"of Adam, StepLR, CosineAnnealingLR, but .* has Adam, Cosine.*, StepLR\. "):
        begun.resume()
    _, (line,) = resume(before.state_dict(), make(extra=[*pair[:1], torch.optim.lr_scheduler.ExponentialLR])[1], caplog)
    assert line.startswith("the checkpoint has the states of Adam, StepLR, CosineAnnealingLR, but this script has Adam")
