from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from p2p.errors import JoinRefused, RemoteProtocolError
from p2p.net.parcels import PackedState
from p2p.net.trees import pack_tree, unpack_tree
from p2p.training.state.replica_state import (
    FlatState,
    Stateful,
    check_sendable,
    compare,
    describe,
    flatten_state,
    pack,
    unpack_into,
)

SAMPLES = ["a", [20, [[3, 4]]]]
"""An example of a packed `SampleTracker`."""


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Use one thread of torch: several would wait for each other on few cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Replica:
    """A model with buffers, its optimizer and schedule; different for each seed."""

    def __init__(self, seed: int, make: Callable[..., torch.optim.Optimizer]) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))
        for parameter in self.model.parameters():
            parameter.data.normal_(generator=generator)
        self.optimizer = make(self.model.parameters())
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda epoch: 0.9**epoch)
        self.inputs = torch.randn(8, 3, generator=generator)

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        return dict(self.model.state_dict())

    @property
    def parts(self) -> tuple[Stateful, ...]:
        return (self.optimizer, self.schedule)

    def train(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.optimizer.zero_grad()
            self.model(self.inputs).square().sum().backward()
            self.optimizer.step()
            self.schedule.step()

    def packed(self) -> PackedState:
        """The state as received."""
        state = pack(self.tensors, self.parts, SAMPLES)
        return PackedState(state.tree, [bytes(raw) for raw in state.tensors])

    def receive(self, state: PackedState) -> Any:
        return unpack_into(state, self.tensors, self.parts)


OPTIMIZERS: Mapping[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, amsgrad=True),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9, nesterov=True),
    "plain": lambda parameters: torch.optim.SGD(parameters, lr=0.01),
}


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=list(OPTIMIZERS))
@pytest.mark.parametrize("num_steps", [0, 3])
def test_a_replica_that_received_a_state_trains_on_with_the_same_bits(
    make: Callable[..., torch.optim.Optimizer], num_steps: int
) -> None:
    donor, joiner = Replica(1, make), Replica(2, make)
    donor.train(num_steps)
    assert joiner.receive(donor.packed()) == SAMPLES
    joiner.inputs = donor.inputs
    for _ in range(3):
        assert joiner.packed() == donor.packed()
        donor.train(1)
        joiner.train(1)


def test_a_joiner_that_has_trained_before_forgets_it() -> None:
    donor, joiner = (Replica(seed, OPTIMIZERS["adamw"]) for seed in (1, 2))
    donor.train(1)
    joiner.train(5)
    joiner.receive(donor.packed())
    assert joiner.packed() == donor.packed()


def test_what_was_received_shares_no_memory_with_what_came() -> None:
    donor, joiner = (Replica(seed, OPTIMIZERS["momentum"]) for seed in (1, 2))
    donor.train(1)
    state = pack(donor.tensors, donor.parts, SAMPLES)
    joiner.receive(state)
    before = joiner.packed()
    donor.train(1)
    assert joiner.packed() == before


dtypes = st.sampled_from(
    [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.uint8, torch.bool]
)


@given(st.lists(st.tuples(dtypes, st.lists(st.integers(0, 3), max_size=3), st.booleans()), max_size=4))
def test_tensors_of_any_type_shape_and_strides_arrive_with_their_bits(
    specifications: list[tuple[torch.dtype, list[int], bool]],
) -> None:
    def tensors(of: int) -> dict[str, torch.Tensor]:
        made = [torch.full(shape, of).mul(7).to(dtype) for dtype, shape, _ in specifications]
        turned = [
            each.T if flag and each.ndim == 2 else each for each, (*_, flag) in zip(made, specifications, strict=True)
        ]
        return {f"{index}": tensor for index, tensor in enumerate(turned)}

    ours, theirs = tensors(0), tensors(1)
    unpack_into(pack(theirs, (), SAMPLES), ours, ())
    assert all(ours[name].dtype == theirs[name].dtype and torch.equal(ours[name], theirs[name]) for name in theirs)


class Wide(torch.optim.Optimizer):
    """Momentum in float32, whatever the type of the parameters; a counter, a mask, and the last gradients."""

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        super().__init__(parameters, {"lr": 0.01})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            if not state:
                state["momentum"] = torch.zeros_like(parameter, dtype=torch.float32)
                state["count"] = torch.zeros((), dtype=torch.int64)
                state["last"] = []
            state["momentum"].mul_(0.9).add_(parameter.grad.float())
            state["count"] += 2**40 + 1
            state["mask"] = parameter.grad > 0
            state["last"] = [*state["last"][-1:], parameter.grad.float() / 3]
            parameter.add_(state["momentum"].to(parameter.dtype), alpha=-0.01)


@pytest.mark.parametrize("make", [Wide, torch.optim.NAdam, torch.optim.ASGD])
def test_the_state_of_an_optimizer_keeps_its_types_with_parameters_of_another_one(
    make: Callable[..., torch.optim.Optimizer],
) -> None:
    def made() -> tuple[nn.Linear, torch.optim.Optimizer]:
        model = nn.Linear(3, 2).bfloat16()
        return model, make(model.parameters())

    (donor, theirs), (joiner, ours) = made(), made()
    for _ in range(3):
        theirs.zero_grad()
        donor(torch.ones(1, 3).bfloat16()).square().sum().backward()
        theirs.step()
    unpack_into(pack(dict(donor.state_dict()), (theirs,), SAMPLES), dict(joiner.state_dict()), (ours,))
    assert pack({}, (ours,), SAMPLES) == pack({}, (theirs,), SAMPLES)


def test_moments_lie_in_memory_as_they_did() -> None:
    def make() -> tuple[nn.Conv2d, torch.optim.Optimizer]:
        model = nn.Conv2d(3, 4, 3)
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return model, torch.optim.AdamW(model.parameters(), fused=True)

    (donor, theirs), (joiner, ours) = make(), make()
    donor(torch.ones(1, 3, 4, 4)).mean().backward()
    theirs.step()
    state = pack(dict(donor.state_dict()), (theirs,), SAMPLES)
    assert bytes(state.tensors[0]) == donor.weight.detach().permute(0, 2, 3, 1).numpy().tobytes()
    unpack_into(state, dict(joiner.state_dict()), (ours,))
    assert torch.equal(joiner.weight, donor.weight) and joiner.weight.stride() == donor.weight.stride()
    for name, moment in theirs.state[donor.weight].items():
        assert torch.equal(ours.state[joiner.weight][name], moment)
        assert ours.state[joiner.weight][name].stride() == moment.stride()


def test_nothing_keeps_the_memory_that_a_state_came_in() -> None:
    donor, joiner = (Replica(seed, OPTIMIZERS["adamw"]) for seed in (1, 2))
    donor.train(2)
    memory = [bytearray(raw) for raw in donor.packed().tensors]
    joiner.receive(PackedState(donor.packed().tree, [memoryview(each) for each in memory]))
    for each in memory:
        each[:] = bytes(len(each))
    assert joiner.packed() == donor.packed()


def test_groups_that_a_script_holds_remain_those_of_the_optimizer() -> None:
    def make(lr: float) -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
        return model, torch.optim.AdamW([{"params": layer.parameters(), "lr": lr * i} for i, layer in enumerate(model)])

    (donor, theirs), (joiner, ours) = make(0.5), make(0.25)
    donor(torch.ones(1, 2)).mean().backward()
    theirs.step()
    groups, moments = ours.param_groups, ours.state
    first, second = groups
    unpack_into(pack(dict(donor.state_dict()), (theirs,), SAMPLES), dict(joiner.state_dict()), (ours,))
    assert ours.param_groups is groups and groups[0] is first and groups[1] is second and ours.state is moments
    assert [group["lr"] for group in groups] == [0.0, 0.5]
    assert [id(each) for group in groups for each in group["params"]] == [id(each) for each in joiner.parameters()]
    assert set(moments) == set(joiner.parameters())
    second["lr"] = 0.125
    joiner(torch.ones(1, 2)).mean().backward()
    before = joiner[1].bias.item()  # type: ignore[index]
    ours.step()
    assert abs(joiner[1].bias.item() - before) < 0.2  # type: ignore[index]


@pytest.mark.parametrize("is_capturable", [True, False])
def test_counters_of_steps_are_where_the_own_code_needs_them_whichever_code_has_written_them(
    is_capturable: bool,
) -> None:
    donor, parameter = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3, device="meta"))
    theirs = torch.optim.AdamW([donor], capturable=False)
    donor.grad = torch.ones(3)
    theirs.step()
    theirs.param_groups[0]["capturable"] = not is_capturable
    ours = torch.optim.AdamW([parameter], capturable=is_capturable)
    packed = pack({}, [theirs], SAMPLES)
    unpack_into(PackedState(packed.tree, [bytes(raw) for raw in packed.tensors]), {}, [ours])
    found = ours.state[parameter]
    assert found["exp_avg"].is_meta and found["step"].is_meta == is_capturable
    assert ours.param_groups[0]["capturable"] == is_capturable


def test_a_state_that_comes_while_a_buffer_lies_otherwise_is_taken_over() -> None:
    ours, theirs = torch.zeros(2, 3), torch.arange(6.0).view(3, 2).t()
    unpack_into(pack({"table": theirs}, (), SAMPLES), {"table": ours}, ())
    assert torch.equal(ours, theirs) and ours.is_contiguous()


class Holder:
    """A part whose state is its argument."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.state = state_dict


def test_plain_values_keep_their_types() -> None:
    plain: dict[Any, Any] = {
        "a": [1, 2.5, None, True, "x", b"y", (1, [2])],
        3: {"b": (), 4: []},
        "c": OrderedDict(d=(torch.ones(2),)),
    }
    holder = Holder({})
    unpack_into(pack({}, [Holder(plain)], SAMPLES), {}, [holder])
    received = holder.state
    (tensor,) = received.pop("c")["d"]
    assert torch.equal(tensor, torch.ones(2))
    del plain["c"]
    assert received == plain and repr(received) == repr(plain)


class Doubled(nn.Module):
    """States of its first version had half of its number."""

    _version = 2

    def __init__(self, number: float) -> None:
        super().__init__()
        self.register_buffer("number", torch.tensor(number))

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, known: dict[str, Any], *others: Any) -> None:
        if known.get("version", 1) < 2:
            state[f"{prefix}number"] = 2 * state[f"{prefix}number"]
        super()._load_from_state_dict(state, prefix, known, *others)


def test_dicts_that_a_part_has_made_remain_of_their_kinds() -> None:
    """Milestones of a schedule are counted, and a module finds in its own dict which version its state is of."""

    def make(number: float) -> tuple[Any, Any, Doubled, Holder]:
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
        steps = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 2, 4])
        rest = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3])
        chain = torch.optim.lr_scheduler.ChainedScheduler([steps, rest], optimizer)
        return optimizer, chain, Doubled(number), Holder({"by name": defaultdict(list, a=[number])})

    theirs, ours = make(3.0), make(0.0)
    for _ in range(2):
        theirs[0].step()
        theirs[1].step()
    unpack_into(pack({}, theirs, SAMPLES), {}, ours)
    assert ours[2].number == 3.0
    assert ours[3].state["by name"]["another"] == []
    steps = ours[1]._schedulers[0]
    assert steps.last_epoch == 2 and sorted(steps.milestones.elements()) == [2, 2, 4]


class Pair(NamedTuple):
    first: int
    second: int


@pytest.mark.parametrize(
    ("value", "path"),
    [({1, 2}, "set"), (Pair(1, 2), "Pair"), (1j, "complex"), (torch.float32, "dtype"), (print, "builtin"), (1.5, "")],
    ids=["set", "named tuple", "complex", "dtype", "function", "float as key"],
)
def test_a_value_of_another_type_is_refused_by_name_and_place(value: Any, path: str) -> None:
    state = {"deep": [0, {"here": value}]} if path else {"deep": [0, {value: 1}]}
    place = r"parts\[1\]\.deep\[1\]" + (r"\.here" if path else "")
    with pytest.raises(TypeError, match=f"{place}: {path or 'float'}"):
        pack({}, [Holder({}), Holder(state)], SAMPLES)


# States that do not fit


def other_shape(model: nn.Sequential) -> None:
    model[0] = nn.Linear(4, 5)


def other_type(model: nn.Sequential) -> None:
    model[2].double()


def other_strides(model: nn.Sequential) -> None:
    weight = model.get_parameter("0.weight").detach()
    model[0].weight = nn.Parameter(weight.t().contiguous().t())


def one_more(model: nn.Sequential) -> None:
    model.append(nn.Linear(2, 2))


def one_less(model: nn.Sequential) -> None:
    del model[2]


@pytest.mark.parametrize("change", [other_shape, other_type, one_more, one_less])
def test_the_state_of_another_layout_is_refused_and_changes_nothing(change: Callable[[nn.Sequential], None]) -> None:
    donor, joiner = (Replica(seed, OPTIMIZERS["adamw"]) for seed in (1, 2))
    donor.train(1)
    change(donor.model)
    before = joiner.packed()
    with pytest.raises(JoinRefused, match=r"this model is not the swarm's: tensor \d is .* here, .* in the swarm"):
        joiner.receive(donor.packed())
    assert joiner.packed() == before


def test_an_optimizer_may_have_a_state_of_its_own_form() -> None:
    class Lookahead(torch.optim.SGD):
        """An optimizer that keeps its own state beside that of another one."""

        def state_dict(self) -> dict[str, Any]:
            return {"inner": super().state_dict(), "slow": [1.0]}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            super().load_state_dict(state["inner"])

    donor, joiner = (Replica(seed, lambda given: Lookahead(given, lr=0.1)) for seed in (1, 2))
    joiner.receive(donor.packed())
    assert joiner.packed() == donor.packed()


def test_the_state_of_another_number_of_parts_is_refused_and_changes_nothing() -> None:
    donor, joiner = (Replica(seed, OPTIMIZERS["adamw"]) for seed in (1, 2))
    before = joiner.packed()
    with pytest.raises(RemoteProtocolError, match="does not fit this replica"):
        joiner.receive(pack(donor.tensors, donor.parts[:1], SAMPLES))
    assert joiner.packed() == before


def test_a_part_that_refuses_its_state_is_named_with_its_error_and_no_tensor_is_changed() -> None:
    class Vocabulary:
        def __init__(self, size: int) -> None:
            self.size = size

        def state_dict(self) -> dict[str, Any]:
            return {"size": self.size}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            if state["size"] != self.size:
                raise KeyError(f"{self.size} words, not {state['size']}")

    ours = torch.zeros(3)
    with pytest.raises(
        JoinRefused, match=r"`load_state_dict` of Vocabulary raised KeyError\('5 words, not 4'\)"
    ) as said:
        unpack_into(pack({"weight": torch.ones(3)}, [Vocabulary(4)], SAMPLES), {"weight": ours}, [Vocabulary(5)])
    assert isinstance(said.value.__cause__, KeyError) and not ours.any()


def test_the_state_of_an_optimizer_with_other_groups_is_refused_and_changes_nothing() -> None:
    def in_two_groups(parameters: Any) -> torch.optim.Optimizer:
        first, *others = parameters
        return torch.optim.AdamW([{"params": [first]}, {"params": others}], lr=0.01)

    donor, joiner = Replica(1, in_two_groups), Replica(2, OPTIMIZERS["adamw"])
    before = joiner.packed()
    with pytest.raises(
        JoinRefused, match="AdamW has 1 parameter groups here, but 2 in this state: make all groups bef"
    ):
        joiner.receive(donor.packed())
    assert joiner.packed() == before


Damage = Callable[[dict[str, Any]], object]
DAMAGES: Mapping[str, Damage] = {
    "no tensors": lambda tree: tree.pop("tensors"),
    "no slots": lambda tree: tree.pop("slots"),
    "too few slots": lambda tree: tree["slots"].pop(),
    "another shape": lambda tree: tree["slots"][0].__setitem__(0, [7, 7]),
    "no shape": lambda tree: tree["slots"][0].__setitem__(0, "wide"),
    "no elements": lambda tree: tree["slots"][0].__setitem__(0, [0, 3]),
    "strides beyond": lambda tree: tree["slots"][0].__setitem__(2, [300, 1]),
    "strides that overlap": lambda tree: tree["slots"][0].__setitem__(2, [0, 0]),
    "too few strides": lambda tree: tree["slots"][0].__setitem__(2, [1]),
    "no strides": lambda tree: tree["slots"][0].__setitem__(2, "wide"),
    "no dtype": lambda tree: tree["slots"][0].__setitem__(1, "nn"),
    "unknown dtype": lambda tree: tree["slots"][0].__setitem__(1, "float7"),
    "a number for a tensor": lambda tree: tree["tensors"].__setitem__("0.weight", 5),
    "numbers for tensors": lambda tree: tree.__setitem__("tensors", [1, 2]),
    "no samples": lambda tree: tree.__delitem__("samples"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=list(DAMAGES))
def test_a_state_that_nobody_packs_is_refused_and_changes_nothing(damage: Damage) -> None:
    replica = Replica(1, OPTIMIZERS["momentum"])
    before = replica.packed()
    tree = unpack_tree(before.tree)
    damage(tree)
    with pytest.raises(RemoteProtocolError):
        replica.receive(PackedState(pack_tree(tree), before.tensors))
    assert replica.packed() == before


def test_what_cannot_be_sent_is_refused_with_the_name_of_its_part() -> None:
    replica, names = Replica(1, OPTIMIZERS["adamw"]), ["Adam", "schedule"]

    def lowered() -> FlatState:
        return flatten_state(replica.tensors, replica.parts, SAMPLES)

    assert len(check_sendable(lowered, names).tensors) == len(replica.packed().tensors)
    replica.optimizer.param_groups[0]["tags"] = {3}
    with pytest.raises(
        TypeError, match=r"^the state_dict of Adam: param_groups\[0\]\.tags: set is not allowed: a joiner can"
    ):
        check_sendable(lowered, names)


def test_bytes_that_are_no_state_are_refused() -> None:
    for tree in (b"", b"\xc1", pack_tree(7), pack_tree([1])):
        with pytest.raises(RemoteProtocolError):
            unpack_into(PackedState(tree, ()), {}, ())


# Layouts in words


def layout(model: nn.Module) -> bytes:
    return describe(dict(model.state_dict()))


def test_equal_layouts_are_described_alike_and_others_are_not() -> None:
    models = [nn.Linear(2, 3), nn.Linear(2, 3), nn.Linear(3, 2), nn.Linear(2, 3, bias=False), nn.Linear(2, 3).double()]
    layouts = [layout(model) for model in models]
    assert layouts[0] == layouts[1] and len(set(layouts)) == 4


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        (other_shape, r"tensor 0 is 0\.weight float32\[5, 3\] here, 0\.weight float32\[5, 4\] in the swarm"),
        (other_type, r"tensor 7 is 2\.weight float32\[2, 5\] here, 2\.weight float64\[2, 5\] in the swarm"),
        (
            other_strides,
            r"tensor 0 is 0\.weight float32\[5, 3\] here, 0\.weight float32\[5, 3\] with strides \[1, 5\] in the swarm",
        ),
        (one_more, r"tensor 9 is missing here, 3\.weight float32\[2, 2\] in the swarm"),
        (one_less, r"tensor 7 is 2\.weight float32\[2, 5\] here, missing in the swarm"),
    ],
)
def test_the_first_tensor_that_differs_is_named(change: Callable[[nn.Sequential], None], difference: str) -> None:
    ours, theirs = (Replica(seed, OPTIMIZERS["plain"]).model for seed in (1, 2))
    change(theirs)
    with pytest.raises(AssertionError, match=difference):
        raise AssertionError(compare(layout(ours), layout(theirs)))
