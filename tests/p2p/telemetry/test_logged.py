"""Values that `peer.log` accepts, and refusals with reasons."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from p2p.telemetry.logged import MOST_NUMBERS, MOST_RECORDED, Logged, name_in, record
from p2p.telemetry.records import RING_BYTES, Kind, RecordRing


def test_the_last_number_of_each_name_is_kept() -> None:
    logged = Logged()
    logged.update({"loss": torch.tensor(2.5, requires_grad=True), "lr": np.float32(0.5), "epoch": 3})
    logged.update({"loss": 2, "is_last": True, "bad": math.inf, "worse": torch.tensor(math.nan)})
    worse = logged.values.pop("worse")
    assert math.isnan(worse)
    assert logged.values == {"loss": 2.0, "lr": 0.5, "epoch": 3.0, "is_last": 1.0, "bad": math.inf}
    assert {type(value) for value in logged.values.values()} == {float}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (torch.ones(3), r"loss must be one number, got shape \(3,\): give its mean"),
        (np.ones((1, 1)), r"loss must be one number, got shape \(1, 1\)"),
        ("0.3", "loss must be a number, got str '0.3'"),
        (None, "loss must be a number, got NoneType None"),
        (1j, "loss must be a number, got complex"),
        (torch.tensor(1j), "loss must be a number, got complex"),
    ],
)
def test_what_is_no_number_is_refused_and_nothing_of_it_kept(value: Any, said: str) -> None:
    logged = Logged()
    with pytest.raises(TypeError, match=said):
        logged.update({"lr": 1, "loss": value})
    assert logged.values == {}


@pytest.mark.parametrize("name", ["", "x" * 33, "two\nlines"])
def test_a_name_that_cannot_be_shown_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="a name has 1 to 32 characters"):
        Logged().update({name: 1})


def test_too_many_names_are_refused_and_those_that_are_there_go_on() -> None:
    logged = Logged()
    logged.update({f"x{n}": n for n in range(MOST_NUMBERS)})
    with pytest.raises(ValueError, match="keeps 32 names at most, and with more they would be 33"):
        logged.update({"more": 1})
    logged.update({"x0": 7})
    assert logged.values["x0"] == 7


@pytest.mark.parametrize("name", ["loss", "x", "learning_rate_16", "verlust_ä", "l" * 32])
def test_a_number_is_in_the_recorder_with_the_first_bytes_of_its_name(name: str) -> None:
    half = RecordRing(memoryview(bytearray(RING_BYTES)), lambda: 5)
    record(half, 7, {name: 0.25, "nan": math.nan})
    first, second = half.latest()
    assert (first.kind, first.step, first.size, first.value) == (Kind.LOGGED, 7, 0, 0.25)
    assert name_in(first) == name[:16] and name_in(second) == "nan" and math.isnan(second.value)


def test_who_logs_a_lot_leaves_room_for_steps_in_the_recorder() -> None:
    half = RecordRing(memoryview(bytearray(RING_BYTES)), lambda: 5)
    record(half, 7, {f"x{number}": number for number in range(32)})
    assert [name_in(each) for each in half.latest()] == [f"x{number}" for number in range(MOST_RECORDED)]
