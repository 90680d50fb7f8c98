"""Plain attributes of modules that a script has changed since the wrap."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from p2p.training.state.comparison import check, show, unlike_settings
from p2p.training.state.module_settings import MOST_SHOWN, ModuleSettings, differences, plain_of
from tests.p2p.training.test_copies import RECEIPT


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tau, self.mode, self.rows = 4.0, "soft", [1, 2]
        self.drop = nn.Dropout(0.1)


def test_what_has_changed_is_shown_by_its_name_with_its_value() -> None:
    model = Scaled()
    settings = ModuleSettings(model)
    assert settings.changed() == {}
    model.eval()
    model.rows.append(3)
    model._private = 1  # type: ignore[assignment]
    assert settings.changed() == {}
    model.tau, model.mode, model.drop.p = 0.5, "hard", 0.2
    assert settings.changed() == {"tau": "0.5", "mode": "'hard'", "drop.p": "0.2"}
    model.tau, model.mode = 4.0, "soft"
    assert settings.changed() == {"drop.p": "0.2"}
    for number in range(2 * MOST_SHOWN):
        setattr(model, f"n{number}", number)
    assert len(settings.changed()) == MOST_SHOWN


def test_a_forward_pass_may_set_attributes_while_another_thread_looks() -> None:
    model = Scaled()
    look = plain_of(model)
    assert next(look) == ("tau", "4.0")
    model.cache = 1  # type: ignore[assignment]
    assert [*look] == [("mode", "'soft'"), ("drop.p", "0.1"), ("drop.inplace", "False")]


@pytest.mark.parametrize(
    "number", [np.exp(-0.1), np.float32(0.25), np.bool_(True), torch.tensor(0.5), torch.as_tensor([3])]
)
def test_numbers_of_numpy_and_torch_are_shown_as_numbers(number: Any) -> None:
    model = Scaled()
    settings = ModuleSettings(model)
    model.tau = number
    assert settings.changed() == {"tau": repr(number.item())}


def test_a_parameter_and_a_buffer_are_no_attributes() -> None:
    model = Scaled()
    settings = ModuleSettings(model)
    model.register_buffer("count", torch.zeros(1))
    model.scale = nn.Parameter(torch.zeros(1))
    model.table = torch.zeros(3)
    assert settings.changed() == {}


def test_of_more_than_can_be_shown_those_are_compared_that_both_have_shown() -> None:
    ours = {f"a{number:02}": "1" for number in range(MOST_SHOWN)}
    theirs = {"Z": "5", **{name: "1" for name in [*ours][:-1]}}
    assert differences(ours, theirs) == "Z is as it was here, 5 there"


def test_a_layer_that_is_new_at_a_refresh_is_as_it_is_then() -> None:
    model = Scaled()
    settings = ModuleSettings(model)
    model.tau, model.more = 0.5, nn.Dropout(0.3)
    assert settings.changed().keys() > {"tau", "more.p"}
    settings.refresh()
    assert settings.changed() == {"tau": "0.5"}
    model.more.p = 0.4
    assert settings.changed() == {"tau": "0.5", "more.p": "0.4"}


def committed(settings: ModuleSettings, caplog: pytest.LogCaptureFixture) -> list[str]:
    """Messages after a trained step."""
    caplog.clear()
    settings.on_commit(RECEIPT)
    return [*caplog.messages]


def test_what_a_script_does_not_change_again_where_it_goes_on_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    model = Scaled()
    settings = ModuleSettings(model)
    settings.expect({"tau": "0.5", "mode": "'hard'", "drop.p": "0.2", "made_later": "1"})
    model.drop.p = 0.2
    (said,) = committed(settings, caplog)
    assert (
        "made_later is as it was here, 1 there, mode is 'soft' here, 'hard' there, tau is 4.0 here, 0.5 there" in said
    )
    assert "drop.p" not in said
    assert committed(settings, caplog) == []


@pytest.mark.parametrize("number", [0.5, 0.49, 0.3, float("nan")])
def test_what_is_computed_goes_on_from_where_it_was(number: float, caplog: pytest.LogCaptureFixture) -> None:
    model = Scaled()
    settings = ModuleSettings(model)
    model.tau = number
    settings.expect({"tau": "0.5"})
    assert committed(settings, caplog) == []


def test_what_begins_anew_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """The script subtracts a hundredth after each step."""
    model = Scaled()
    settings = ModuleSettings(model)
    model.tau *= 0.99
    settings.expect({"tau": "0.5"})
    (said,) = committed(settings, caplog)
    assert "tau is 3.96 here, 0.5 there" in said


def test_both_values_of_what_differs_are_named() -> None:
    assert differences({}, {}) == differences({"a": "1"}, {"a": "1"}) == ""
    assert differences({"a": "1", "b": "2"}, {"b": "3"}) == "a is 1 here, as it was there, b is 2 here, 3 there"


def test_a_replica_with_other_settings_is_no_other_replica() -> None:
    ours, theirs = (show({}, {}, None, settings=settings) for settings in ({}, {"tau": "0.5"}))
    assert check(3, ours, theirs, []) is None
    assert unlike_settings(ours, theirs) == "tau is as it was here, 0.5 there"
    assert unlike_settings(ours, ours) == unlike_settings(ours, b"what?") == ""
