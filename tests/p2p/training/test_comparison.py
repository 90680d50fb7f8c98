from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from p2p.errors import JoinRefused, RemoteProtocolError, RemovedFromView
from p2p.net.bounds import MAX_BYTES_LEN
from p2p.net.trees import pack_tree
from p2p.training.state.comparison import are_at, check, show
from p2p.training.steps.models import name_parts


class Replica:
    def __init__(self) -> None:
        torch.manual_seed(1)
        self.model = nn.Linear(2, 20)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 0.5**step)
        self.more: Any = torch.optim.AdamW([self.model.bias], lr=np.float64(0.2))
        self.average = nn.ParameterList([torch.zeros(3)])
        self.updated: str | None = "all"
        self.reached = "G"

    def show(self) -> bytes:
        parts = name_parts({"": self.optimizer}, [self.schedule, self.more, self.average])
        return show(parts, dict(self.model.named_parameters()), self.updated, self.reached)


def compared(change: Callable[[Replica], object]) -> object:
    ours, theirs = Replica(), Replica()
    change(ours)
    return check(7, ours.show(), theirs.show(), ["weight", "bias"])


def damage(replica: Replica) -> None:
    replica.model.weight.data[3, 1] += 1e-6


def exchange(replica: Replica) -> None:
    replica.more = torch.optim.AdamW([replica.model.weight, replica.model.bias], lr=0.2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda r: r.optimizer.param_groups[0].update(lr=0.05),
            "lr of group 0 of SGD is 0.05 here, 0.1 there; put whatever changes it",
        ),
        (lambda r: r.schedule.__dict__.update(last_epoch=5), "last_epoch of LambdaLR is 5 here, 0 there; put whatever"),
        (lambda r: r.optimizer.param_groups[0].update(momentum=0.9), "momentum of group 0 of SGD is 0.9 here, 0 there"),
        (lambda r: r.optimizer.param_groups[0].update(own=1), "own of group 0 of SGD is 1 here, missing there"),
        (exchange, "number of params of group 0 of AdamW is 2 here, 1 there"),
        (lambda r: r.average[0].data.fill_(3), "0 of ParameterList is [3.0, 3.0, 3.0] here, [0.0, 0.0, 0.0] there"),
        (
            lambda r: r.model.bias.requires_grad_(False),
            "requires_grad of bias is False here, True there; freeze and unf",
        ),
        (damage, "parameter weight is "),
        (lambda r: setattr(r, "updated", None), None),
        (lambda r: r.optimizer.param_groups[0].update(lr=torch.tensor(0.1, dtype=torch.float64)), None),
    ],
)
def test_the_first_difference_is_named_with_both_values(change: Callable[[Replica], object], words: str | None) -> None:
    error = compared(change)
    if words is None:
        assert error is None
    else:
        assert isinstance(error, JoinRefused)
        assert f"differs from them in step 7: {words}" in str(error), error


def test_who_has_made_other_updates_is_elsewhere_in_its_loop() -> None:
    error = compared(lambda replica: setattr(replica, "updated", ""))
    assert isinstance(error, RemovedFromView)
    assert "updated nothing, but those of the members updated all: it is at another point of its loop" in str(error)


def test_who_has_reached_other_models_is_elsewhere_in_its_loop() -> None:
    error = compared(lambda replica: setattr(replica, "reached", "D and G"))
    assert isinstance(error, RemovedFromView)
    assert "step 7 is one of D and G in the script of this peer, but one of G in those of the members" in str(error)


def test_what_is_too_long_to_be_shown_is_compared_as_a_whole() -> None:
    def lengthen(replica: Replica, value: int) -> None:
        replica.optimizer.param_groups[0].update({f"key {i}": value for i in range(60_000)})

    ours, theirs = Replica(), Replica()
    lengthen(ours, 1)
    lengthen(theirs, 1)
    assert len(ours.show()) < MAX_BYTES_LEN and check(7, ours.show(), theirs.show(), ["weight", "bias"]) is None
    lengthen(theirs, 2)
    error = check(7, ours.show(), theirs.show(), ["weight", "bias"])
    assert "param_groups and extra (too long to show)" in str(error)
    assert "too long to show" in str(check(7, Replica().show(), theirs.show(), ["weight", "bias"]))


@pytest.mark.parametrize("shown", [b"", b"\x00", pack_tree(3), pack_tree({"updated": None}), pack_tree({})])
def test_what_no_replica_shows_is_named(shown: bytes) -> None:
    assert isinstance(check(7, Replica().show(), shown, ["weight"]), RemoteProtocolError)


def test_values_of_all_kinds_are_shown() -> None:
    values = {
        "set": {1},
        "tensor": torch.arange(40),
        "sparse": torch.zeros(3).to_sparse(),
        "bytes": b"ab",
        "long bytes": bytes(40),
        "nested": {"a": (1, 2), 3: list(range(40))},
        "none": None,
        "function": partial(int),
        "nan": float("nan"),
        "large": 2**70,
        "flag": True,
    }
    ours, theirs = Replica(), Replica()
    for replica in (ours, theirs):
        replica.optimizer.param_groups[0].update(values)
    assert check(7, ours.show(), theirs.show(), ["weight", "bias"]) is None
    theirs.optimizer.param_groups[0]["nested"] = {"a": (1, 3)}
    assert "nested of group 0 of SGD is {'a': [1, 2]," in str(check(7, ours.show(), theirs.show(), ["weight", "bias"]))


def test_a_script_is_where_those_of_the_members_were_if_it_updates_and_trains_the_same_in_all_steps() -> None:
    here, elsewhere, further, frozen = Replica(), Replica(), Replica(), Replica()
    elsewhere.updated, further.reached = "AdamW", "G and D"
    frozen.model.bias.requires_grad_(False)
    damage(here)

    def are_here(*replicas: Replica, updated: str | None = here.updated) -> bool:
        steps = [each.show() for each in replicas]
        return are_at(steps, dict(here.model.named_parameters()), updated, here.reached)

    assert are_here(here, here) and not are_here()
    assert [are_here(here, each) for each in (elsewhere, further, frozen)] == [False] * 3
    assert not are_at([b"another form"], {}, None)


def test_a_step_without_an_update_does_not_say_that_a_script_is_elsewhere() -> None:
    here, left_out, unknown, elsewhere = Replica(), Replica(), Replica(), Replica()
    left_out.updated, unknown.updated, elsewhere.updated = "", None, "AdamW"
    named = dict(here.model.named_parameters())
    steps = [each.show() for each in (here, left_out, unknown, elsewhere)]
    for updated in (here.updated, "", None):
        assert are_at(steps[:3], named, updated, here.reached)
        assert not are_at(steps, named, updated, here.reached)
