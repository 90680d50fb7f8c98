"""Copies of a model that are reported: those that change, and that joiners do not receive."""

import copy
import logging
import threading
from collections.abc import Callable
from itertools import count, pairwise
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import swa_utils

from p2p.step.receipts import Receipt
from p2p.training.checks.copies import FIRST_LOOKS, MOST_BETWEEN, MOST_SHARE, ModelCopies, _alive

pytestmark = pytest.mark.light

RECEIPT = Receipt(lineage="", view_number=1, step=1, contributions=(), algorithms=(), digest="", state_digest="")


def standing() -> float:
    """A clock by which looks take no time."""
    return 0.0


class Average:
    """A moving average as in libraries: with a state, and its tensors in an attribute."""

    def __init__(self, kept: Any) -> None:
        self.kept = kept

    def state_dict(self) -> dict[str, Any]:
        return {"number": 1}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def model_of(*sizes: int) -> nn.Module:
    return nn.Sequential(*(nn.Linear(inputs, outputs) for inputs, outputs in pairwise(sizes)))


def clones(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: each.detach().clone() for name, each in model.named_parameters()}


def tensors(holder: Any) -> list[torch.Tensor]:
    if isinstance(holder, nn.Module):
        return [*holder.parameters()]
    return tensors(holder.kept) if isinstance(holder.kept, nn.Module) else [*dict(holder.kept).values()]


def named(copies: ModelCopies, holder: Any, caplog: pytest.LogCaptureFixture, num_steps: int = 9) -> list[str]:
    caplog.set_level(logging.WARNING, logger="p2p")
    for _ in range(num_steps):
        assert list(copies.operations(1)) == []
        copies.on_commit(RECEIPT)
        with torch.no_grad():
            tensors(holder)[0].data.add_(1)
    return [record.getMessage().split(" has a copy")[0] for record in caplog.records]


def train(
    copies: ModelCopies, model: nn.Module, num_steps: int, update: Callable[[], None] = lambda: None
) -> list[int]:
    """Train, with `update` after each step; returns the steps after which a copy was reported."""
    found = []
    for step in range(1, num_steps + 1):
        copies.on_commit(RECEIPT)
        found += [step] if copies._has_warned else []
        with torch.no_grad():
            for each in model.parameters():
                each.add_(0.01 * torch.randn_like(each))
        update()
    return found[:1]


def looks(copies: ModelCopies, num_steps: int) -> list[int]:
    """The steps in which the search runs."""
    found = []
    for step in range(1, num_steps + 1):
        before = copies._known
        copies.on_commit(RECEIPT)
        found += [step] if copies._known is not before else []
    return found


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (swa_utils.AveragedModel, "AveragedModel"),
        (copy.deepcopy, "Sequential"),
        (lambda model: Average(clones(model)), "Average"),
        (lambda model: Average(copy.deepcopy(model)), "Sequential"),
    ],
)
def test_a_copy_that_changes_is_named_once(
    make: Callable[[nn.Module], Any], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = model_of(3, 5, 2)
    holder = make(model)
    assert named(ModelCopies(model, {}, standing), holder, caplog) == [name]


def test_a_copy_of_one_of_several_models_is_named(caplog: pytest.LogCaptureFixture) -> None:
    models = nn.ModuleDict({"actor": model_of(3, 4, 2), "critic": model_of(3, 9, 1)})
    target = copy.deepcopy(models["critic"])
    assert named(ModelCopies(models, {}, standing), target, caplog) == ["Sequential"]


class Shadow:
    """A moving average as often written: without a state, and with new tensors in each update."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.values = clones(model)

    def update(self) -> None:
        for name, each in self.model.named_parameters():
            self.values[name] = 0.9 * self.values[name] + 0.1 * each.detach()


def shadow_of(model: nn.Module) -> Callable[[], None]:
    return Shadow(model).update


def dict_of(model: nn.Module) -> Callable[[], None]:
    """A dict of averages, including statistics; returns its update."""
    values = copy.deepcopy(model.state_dict())

    def update() -> None:
        for name, each in model.state_dict().items():
            values[name] = 0.9 * values[name] + 0.1 * each if each.is_floating_point() else each

    return update


def list_of(model: nn.Module) -> Callable[[], None]:
    """A list of averages of trained parameters; returns its update."""
    originals: list[torch.Tensor] = [each for each in model.parameters() if each.requires_grad]
    values = [each.detach().clone() for each in originals]

    def update() -> None:
        with torch.no_grad():
            torch._foreach_lerp_(values, originals, 0.1)

    return update


@pytest.mark.parametrize(
    ("begin", "name"),
    [(shadow_of, "a dict of the script"), (dict_of, "a dict of the script"), (list_of, "a list of the script")],
)
@pytest.mark.parametrize("is_one_of_two", [False, True])
def test_a_list_or_dict_that_follows_the_model_is_named(
    begin: Callable[[nn.Module], Callable[[], None]], name: str, is_one_of_two: bool, caplog: pytest.LogCaptureFixture
) -> None:
    model = nn.Sequential(nn.Linear(3, 9), nn.BatchNorm1d(9), nn.Linear(9, 2))
    model[0].weight.requires_grad_(False)
    twin = copy.deepcopy(model)
    for each in twin.parameters():
        nn.init.normal_(each)
    copies = ModelCopies(nn.ModuleDict({"one": model, "other": twin}) if is_one_of_two else model, {}, standing)
    assert train(copies, model, 20, begin(model)) == [4]
    assert [record.getMessage().split(" has a copy")[0] for record in caplog.records] == [name]


def test_a_list_or_dict_that_is_made_anew_or_is_no_copy_is_not_named() -> None:
    """Snapshots before each update, moments, sums of gradients, trial weights, and a constant model."""
    model = model_of(3, 10, 2)
    moments = [torch.zeros_like(each) for each in model.parameters()]
    frozen = copy.deepcopy(model.state_dict())
    kept: dict[str, Any] = {}

    def update() -> None:
        kept["before"] = {name: each.detach().clone() for name, each in model.named_parameters()}
        kept["tried"] = [each + 0.01 * torch.randn_like(each) for each in kept["before"].values()]
        for moment, each in zip(moments, model.parameters(), strict=True):
            moment.mul_(0.9).add_(each.detach(), alpha=0.01)

    assert train(ModelCopies(model, {}, standing), model, 70, update) == []
    assert [each.shape for each in frozen.values()] == [each.shape for each in moments]


def test_a_thousand_tensors_of_one_shape_hide_no_copy() -> None:
    """The samples of a dataset are as long as a bias; another shape of the model occurs less often."""
    model = model_of(11, 12, 12)
    samples = [torch.zeros(12) for _ in range(1000)]
    assert train(ModelCopies(model, {}, standing), model, 20, list_of(model)) == [4]
    assert len(samples) == 1000


def test_what_a_joiner_is_given_is_not_named(caplog: pytest.LogCaptureFixture) -> None:
    model = model_of(3, 6, 2)
    averages: list[Any] = [swa_utils.AveragedModel(model), Average(clones(model)), Average(copy.deepcopy(model))]
    copies = ModelCopies(model, {str(number): each for number, each in enumerate(averages)}, standing)
    assert [line for each in averages for line in named(copies, each, caplog)] == []


@pytest.mark.parametrize("number", [1, 4])
def test_copies_that_an_optimizer_in_extra_changes_are_named(number: int, caplog: pytest.LogCaptureFixture) -> None:
    """Its state has moments, and no parameters: masters in float32, for a model in bfloat16, or for some of it.

    Other tensors of the same shapes hide none.
    """
    model = model_of(3, 6, 4).to(torch.bfloat16)
    masters = [each.detach().float() for each in model.parameters()][:number]
    optimizer, others = torch.optim.SGD(masters, lr=0.01), [[torch.zeros_like(each)] * 99 for each in masters]

    def update() -> None:
        for master in masters:
            master.grad = torch.ones_like(master)
        optimizer.step()

    samples = [torch.zeros_like(each) for row in others for each in row]
    assert train(ModelCopies(model, {"SGD in extra=": optimizer}, standing), model, 20, update) == [4]
    assert [record.getMessage().split(" has a copy")[0] for record in caplog.records] == ["SGD"]
    assert samples


def test_tensors_without_elements_are_no_copies() -> None:
    """A lazy module that has seen nothing, in whatever holds it; sparse ones, and those of the device `meta`."""
    model = model_of(4, 5)
    lazy = nn.LazyLinear(5)
    held: list[Any] = [lazy, [torch.zeros(5, 4), lazy.bias], {"meta": torch.zeros(5, 4), "b": nn.Linear(4, 5).bias}]
    held[2]["meta"] = held[2]["meta"].to("meta")
    sparse = nn.Module()
    sparse.weight, sparse.bias = nn.Parameter(torch.eye(5, 4).to_sparse()), nn.Parameter(torch.zeros(5))
    assert train(ModelCopies(model, {"extra": Average(lazy)}, standing), model, 20) == []
    assert len(held) == 3 and sparse.weight.is_sparse


def test_what_is_no_copy_is_not_named(caplog: pytest.LogCaptureFixture) -> None:
    model = model_of(3, 7, 2)
    around = nn.ModuleDict({"the same parameters": model})
    other, frozen = model_of(3, 7, 2, 2), copy.deepcopy(model)
    copies = ModelCopies(model, {}, standing)
    for each in (model, around, other):
        assert named(copies, each, caplog) == []
    assert all(torch.isfinite(each).all() for each in frozen.parameters())


def test_looks_become_rare_and_do_not_end(caplog: pytest.LogCaptureFixture) -> None:
    model = model_of(3, 8, 2)
    copies, late = ModelCopies(model, {}, standing), copy.deepcopy(model)
    assert looks(copies, 2 * MOST_BETWEEN) == [4**power for power in range(7)] + [2 * MOST_BETWEEN]
    assert named(copies, late, caplog, MOST_BETWEEN) == ["Sequential"]


def test_later_looks_take_a_hundredth_of_the_time() -> None:
    seconds = count()  # one second per look, and per step in which a look is due
    found = looks(ModelCopies(model_of(3, 8, 2), {}, lambda: float(next(seconds))), 1000)
    assert found[:3] == list(FIRST_LOOKS)
    waits_s = 1 / MOST_SHARE
    assert found[3:] == [64 + waits_s - 1, 4 * (64 + waits_s - 1) + waits_s - 1]


def test_a_look_at_all_objects_lets_other_threads_make_theirs() -> None:
    """A tuple under construction cannot be resized while the search refers to it."""
    kept, is_over = Average([]), threading.Event()
    failed: list[BaseException] = []

    def make() -> None:
        try:
            while not is_over.is_set():
                tuple(each for each in range(100))
        except SystemError as error:
            failed.append(error)

    maker = threading.Thread(target=make)
    try:
        maker.start()
        for _ in range(300):
            assert any(each is kept for each in _alive()[0])
    finally:
        is_over.set()
        maker.join()
    assert failed == []
