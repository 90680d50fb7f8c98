from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from gossip import Member, Seat, View
from p2p.device import HOST
from p2p.step.collective import AllReduce
from p2p.step.operation import Operation
from p2p.training.steps.resync import LEAST_BYTES, NUM_SLICES, Resynchronisation, are_far

ONE, OTHER = b"one     ", b"another "
PLAIN, MIXED = (
    View(bytes(16), 1, 1, (Seat(Member("a", 1), 1, numerics=ONE), Seat(Member("b", 1), 1, numerics=each)), b"")
    for each in (ONE, OTHER)
)


class Replica:
    """A model with moments, and its re-synchronisation."""

    def __init__(self, seed: int, *sizes: int, view: View = MIXED) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.parameters = [torch.nn.Parameter(torch.randn(size, generator=generator)) for size in sizes]
        self.parameters.append(torch.nn.Parameter(torch.randn(3, 5, generator=generator).t()))
        self.optimizer = torch.optim.AdamW(self.parameters)
        for each in self.parameters:
            each.grad = torch.randn(each.shape, generator=generator)
        self.optimizer.step()
        session: Any = SimpleNamespace(num_submitted=2, history=SimpleNamespace(view=view), empty=np.empty)
        gradients: Any = SimpleNamespace(parameters=self.parameters, device=HOST)
        self.resync = Resynchronisation(session, gradients, [self.optimizer])

    def values(self) -> list[torch.Tensor]:
        moments = [state[key] for state in self.optimizer.state.values() for key in sorted(state)]
        return [each.detach().clone() for each in (*self.parameters, *moments)]


def take(source: Replica, *others: Replica, step: int) -> list[bool]:
    """Run a step; returns which of the others are far from the source."""
    (given,) = source.resync.operations(step)
    taken = [next(each.resync.operations(step)) for each in others]
    for operation in (given, *taken):
        operation.result[:] = given.input
    far = [bool(operation.is_far and operation.is_far()) for operation in taken]
    for each in (source, *others):
        each.resync.on_commit(None)  # type: ignore[arg-type]
    return far


@pytest.mark.long
def test_every_slice_in_turn_makes_the_replica_that_of_the_source() -> None:
    one, other = Replica(0, 800_000, 7), Replica(1, 800_000, 7)
    before = one.values()
    (operation,) = one.resync.operations(0)
    assert operation.input.nbytes * NUM_SLICES >= sum(each.nbytes for each in before)
    for step in range(NUM_SLICES):
        assert step < NUM_SLICES - 1 or not all(map(torch.equal, other.values(), before))
        take(one, other, step=step)
    assert all(map(torch.equal, other.values(), before))
    assert all(map(torch.equal, one.values(), before))


def test_a_small_replica_is_one_slice() -> None:
    one, other = Replica(0, 40), Replica(1, 40)
    assert take(one, other, step=77) == [True]
    assert all(map(torch.equal, one.values(), other.values()))
    (operation,) = one.resync.operations(1)
    assert operation.input.nbytes < LEAST_BYTES


def test_nothing_is_sent_where_the_last_receipt_is_of_one_class() -> None:
    one = Replica(0, 40, view=PLAIN)
    assert [*one.resync.operations(3)] == []
    one.resync.on_commit(None)  # type: ignore[arg-type]


def test_who_is_given_a_state_in_the_middle_of_a_step_sends_what_that_is() -> None:
    one = Replica(0, 40)
    around = [Operation(AllReduce(), np.zeros(1), np.zeros(1), (1,)) for _ in range(3)]
    (mine,) = one.resync.operations(3)
    before = mine.input.copy()
    one.parameters[0].data.zero_()
    submitted = [*around[:2], mine, around[2]]
    renewed = one.resync.rebuild_operations(submitted, 9, MIXED)
    assert renewed[:2] + renewed[3:] == around and not np.array_equal(renewed[2].input, before)
    assert one.resync.rebuild_operations(renewed, 9, PLAIN) == around
    assert [each.collective.is_of_one for each in one.resync.rebuild_operations(around, 9, MIXED)] == [
        False,
        False,
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("change", "is_far"),
    [
        (lambda t: t, False),
        (lambda t: t * (1 + 2**-20), False),
        (lambda t: t + 2**-13, False),
        (lambda t: t + 2**-9, True),
        (lambda t: t * 0.9, True),
        (lambda t: t * float("nan"), True),
        (lambda t: t.index_fill(0, torch.tensor([3]), float("inf")), True),
    ],
)
def test_far_is_more_than_roundings_of_the_largest_magnitude(
    change: Callable[[torch.Tensor], torch.Tensor], is_far: bool
) -> None:
    theirs = torch.linspace(-1, 1, 100)
    assert are_far(change(theirs), theirs) is is_far


def test_what_is_not_finite_at_both_is_not_far() -> None:
    odd = torch.tensor([float("nan"), float("inf"), 1.0])
    assert not are_far(odd, odd.clone())
    assert are_far(torch.tensor([1, 2]), torch.tensor([1, 3])) and not are_far(torch.tensor([1]), torch.tensor([1]))
    assert not are_far(torch.zeros(2), torch.tensor([0.0, 1e-45]))


def test_a_tensor_with_gaps_is_written_in_its_place() -> None:
    one, other = Replica(0, 40), Replica(1, 40)
    for each in (one, other):
        wide = torch.nn.Parameter((torch.arange(20.0) * (1 if each is one else 2)).reshape(4, 5)[:, ::2])
        each.parameters.append(wide)
    take(one, other, step=0)
    assert torch.equal(one.parameters[-1], other.parameters[-1]) and not other.parameters[-1].is_contiguous()
