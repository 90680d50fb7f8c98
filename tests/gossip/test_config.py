"""Invalid timers are refused; the error has name, value and rule."""

import math
from dataclasses import fields
from typing import Any

import pytest

from gossip import CoreConfig
from gossip.admission import AdmissionConfig
from gossip.reports import ReportsConfig
from gossip.swim_config import SwimConfig

TIMERS = [field.name for field in fields(CoreConfig) if field.name.endswith("_s")]


def configured(**config: Any) -> CoreConfig:
    return CoreConfig(**config)


def test_the_defaults_make_sense() -> None:
    config = CoreConfig()
    assert config.beat_s * 4 < config.reports.silent_s < config.reports.force_cut_s
    assert config.death_stagger_s < config.join_stagger_s


@pytest.mark.parametrize("name", TIMERS)
@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_every_timer_is_positive_and_finite(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be positive and finite, is {value}$"):
        configured(**{name: value})


@pytest.mark.parametrize("name", ["most_fed", "most_fed_bytes"])
def test_there_is_room_for_a_fed_step(name: str) -> None:
    with pytest.raises(ValueError, match=r"^most_fed and most_fed_bytes must be positive, are .*\b0\b"):
        configured(**{name: 0})


@pytest.mark.parametrize("name", ["stale_s", "pause_s", "stall_s"])
def test_what_beats_end_lasts_at_least_one_beat(name: str) -> None:
    configured(**{name: 0.25}, beat_s=0.25)
    with pytest.raises(ValueError, match=f"^{name} must be at least beat_s, got 0.2 and 0.25$"):
        configured(**{name: 0.2}, beat_s=0.25)


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("reports.silent_s", {"reports": ReportsConfig(silent_s=0.5)}),
        ("reports.lease_s", {"reports": ReportsConfig(lease_s=0.5)}),
        ("admission.lease_s", {"admission": AdmissionConfig(lease_s=0.5)}),
        ("swim.gap_s", {"swim": SwimConfig(gap_s=0.5)}),
    ],
)
def test_what_beats_renew_outlasts_the_loss_of_one(name: str, config: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{name} must outlast two beats, got 0.5 and beat_s 0.25$"):
        configured(beat_s=0.25, **config)
    configured(beat_s=0.24, **config)
