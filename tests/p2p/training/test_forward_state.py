"""Changes by forward passes, in a state that is lent meanwhile; at a peer that is alone."""

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import p2p
from p2p.net.parcels import PackedState
from p2p.training.state.forward_state import LARGE_BYTES, NUM_TURNS, ForwardState
from p2p.training.state.module_state import ModuleState, tensors_of
from p2p.training.state.replica_state import Stateful, pack, unpack_into

Change = Callable[[Tensor], object]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Counted(nn.Module):
    """A model that counts its forward passes in all possible ways."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
        self.register_buffer("number", torch.zeros(()))
        self.register_buffer("hidden", torch.zeros(()), persistent=False)
        self.in_words = "0"

    def forward(self, x: Tensor) -> Tensor:
        for name in ("number", "hidden"):
            self.get_buffer(name).data.add_(1)  # does not change `_version`
        self.in_words = str(int(self.in_words) + 1)
        return x * self.scale

    def get_extra_state(self) -> Any:
        return {"passes": self.in_words}

    def set_extra_state(self, state: Any) -> None:
        self.in_words = state["passes"]

    @property
    def counts(self) -> list[int]:
        return [int(self.get_buffer("number")), int(self.get_buffer("hidden")), int(self.in_words)]


def make() -> tuple[nn.Sequential, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(2, 3), Counted())
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def loaded(state: PackedState, *, is_amid_step: bool) -> list[int]:
    """The counts of a joiner with `state`."""
    model, optimizer = make()
    module_state = ModuleState(model, ForwardState(model, lambda: -1), {})
    unpack_into(state, tensors_of(model), [optimizer, module_state])
    if is_amid_step:
        module_state.load_after_forward()
    counted = model[1]
    assert isinstance(counted, Counted)
    return counted.counts


@pytest.mark.parametrize("calls", ["the wrapper", "the model", "the model, with a loader"])
def test_the_state_has_what_the_forward_pass_changes_as_the_step_begins_with_it(calls: str) -> None:
    """A joiner in the middle of a step has run its forward passes, so it also gets the values after them."""
    model, optimizer = make()
    lent: dict[str, list[list[int]]] = {"before": [], "amid": []}

    def lend(_: Tensor) -> None:
        state = parallel._session.membership.replica.pack()
        lent["before"].append(loaded(state, is_amid_step=False))
        lent["amid"].append(loaded(state, is_amid_step=True))

    with (
        TemporaryDirectory(prefix="shoal") as home,
        p2p.join(swarm="pond", home=Path(home), min_peers=1, step_timeout_s=20.0) as peer,
    ):
        parallel: Any = p2p.DataParallel(peer, model, optimizer)
        weight: Any = model[0].get_parameter("weight")
        weight.register_hook(lend)
        batches = [torch.ones(4, 2)] * 3
        wrapped = parallel if calls == "the wrapper" else model
        for x in peer.loader(batches, global_batch=1) if "loader" in calls else batches:
            optimizer.zero_grad()
            wrapped(x).sum().backward()
            optimizer.step()
    after = [[number] * 3 for number in (1, 2, 3)]
    before = after if calls == "the model" else [[number] * 3 for number in (0, 1, 2)]  # its begin is not observable
    assert lent == {"before": before, "amid": after}


CHANGES: dict[str, Change] = {
    "in place": lambda table: table.add_(1),
    "through data": lambda table: table.data.add_(1),
    "by numpy": lambda table: np.add(table, 1, out=table.numpy()),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_large_table_is_copied_once_it_was_seen_to_change(change: Change) -> None:
    module, steps = nn.Module(), [0]
    module.register_buffer("table", torch.zeros(LARGE_BYTES // 4 + 1))
    edge = ForwardState(module, lambda: steps[-1])
    assert edge.changes, "as far as is known"
    for _ in range(2):
        steps.append(len(steps))
        edge.snapshot()
    assert edge.before_forward() == ({}, {}) and not edge.changes
    change(module.get_buffer("table"))
    for _ in range(NUM_TURNS):
        steps.append(len(steps))
        edge.snapshot()
    buffers, _ = edge.before_forward()
    assert torch.equal(buffers["table"], module.get_buffer("table")) and edge.changes
    change(module.get_buffer("table"))
    assert not torch.equal(buffers["table"], module.get_buffer("table")) and edge.after_forward() == ({}, {})
    edge.is_over = True
    assert edge.after_forward()[0]["table"] is module.get_buffer("table")
    steps.append(len(steps))
    assert edge.before_forward() == edge.after_forward() == ({}, {}), "of another step"


def test_a_small_constant_is_copied_once() -> None:
    module = nn.Module()
    module.register_buffer("mask", torch.ones(4))
    edge = ForwardState(module, lambda: 3)
    edge.snapshot()
    (first, _) = edge.before_forward()
    edge.snapshot()
    assert edge.before_forward()[0]["mask"] is first["mask"] and not edge.changes


def test_buffers_are_kept_bit_by_bit_and_one_without_numbers_is_copied_once() -> None:
    module, steps = nn.Module(), [0]
    module.register_buffer("sign", torch.zeros(2))
    module.register_buffer("unknown", torch.full((2,), torch.nan))
    edge = ForwardState(module, lambda: steps[-1])
    edge.snapshot()
    (before, _) = edge.before_forward()
    module.get_buffer("sign").neg_()
    steps.append(1)
    edge.snapshot()
    (after, _) = edge.before_forward()
    assert torch.signbit(after["sign"]).all() and not torch.signbit(before["sign"]).any()
    assert after["unknown"] is before["unknown"]


def test_what_has_no_edge_is_lent_as_it_is() -> None:
    model, optimizer = make()
    parts: list[Stateful] = [optimizer, ModuleState(model, ForwardState(model, lambda: 0), {})]
    model(torch.ones(4, 2))
    state = pack(tensors_of(model), parts, [])
    assert loaded(state, is_amid_step=False) == loaded(state, is_amid_step=True) == [1, 1, 1]


class MomentumEncoder(nn.Module):
    """A model that averages its encoder in each forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.average = nn.Linear(4, 3), nn.Linear(4, 3).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        for each, average in zip(self.encoder.parameters(), self.average.parameters(), strict=True):
            average.data.mul_(0.9).add_(each.data, alpha=0.1)
        result: Tensor = self.encoder(x) + self.average(x)
        return result


def test_parameters_without_a_gradient_that_forward_passes_change_are_given_as_the_step_began_with_them() -> None:
    model, steps = MomentumEncoder(), [0]
    edge = ForwardState(model, lambda: len(steps))
    for _ in range(NUM_TURNS + 1):
        steps.append(0)
        edge.snapshot()
        before = {name: each.clone() for name, each in model.average.named_parameters("average")}
        model(torch.ones(2, 4))
    kept, _ = edge.before_forward()
    assert edge.changes and kept.keys() == before.keys()
    assert all(torch.equal(kept[name], before[name]) for name in kept)
    edge.is_over = True
    after = {name: each.clone() for name, each in edge.after_forward()[0].items()}
    assert after.keys() == before.keys() and not any(torch.equal(after[name], before[name]) for name in after)
    state = ModuleState(model, edge, {})
    state.load_state_dict({**state.state_dict(), "after": ({name: each + 1 for name, each in after.items()}, {})})
    state.load_after_forward()
    assert all(torch.equal(model.get_parameter(name), each + 1) for name, each in after.items())


class Lazy(nn.Module):
    """A model whose first forward pass makes a buffer, which each pass changes; `is_named`: it is None before."""

    def __init__(self, is_named: bool) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))
        if is_named:
            self.register_buffer("mean", None, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if getattr(self, "mean", None) is None:
            self.register_buffer("mean", torch.zeros(2), persistent=False)
        self.get_buffer("mean").add_(x.mean())
        return x * self.scale


@pytest.mark.parametrize("is_named", [True, False])
def test_a_buffer_that_forward_passes_have_made_is_given_as_it_was_before_the_next_pass(is_named: bool) -> None:
    donor, joiner = (nn.Sequential(Lazy(is_named)) for _ in range(2))
    edge = ForwardState(donor, lambda: 0)
    donor(torch.ones(1, 2))
    edge.snapshot()
    donor(torch.ones(1, 2))
    ModuleState(joiner, ForwardState(joiner, lambda: -1), {}).load_state_dict(ModuleState(donor, edge, {}).state_dict())
    assert joiner.get_buffer("0.mean").tolist() == [1.0, 1.0] and "0.mean" not in joiner.state_dict()
