from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from p2p.checkpoint.resume import Offer, choose, misfit
from p2p.errors import ShoalError
from p2p.net.trees import unpack_tree
from p2p.training.state.forward_state import ForwardState
from p2p.training.state.module_state import ModuleState
from p2p.training.state.replica_state import Stateful, pack
from tests.p2p.checkpoint.states import SAMPLES, make_state


def offer(start: int, step: int, *, run: str = "r", is_forced: bool = False) -> Offer:
    return Offer(path=f"x/{step:08d}", id=f"{start}-{step}", run=run, start=start, step=step, is_forced=is_forced)


def test_nobody_has_any_so_the_run_begins() -> None:
    assert choose([("a", Offer()), ("b", Offer())]) is None


def test_the_latest_start_wins_over_more_steps_of_an_abandoned_branch() -> None:
    assert choose([("a", offer(1, 500)), ("b", offer(2, 300))]) == ("b", offer(2, 300))
    assert choose([("a", offer(2, 200)), ("b", Offer()), ("c", offer(2, 300))]) == ("c", offer(2, 300))


def test_one_that_is_named_wins_over_all() -> None:
    named = offer(1, 200, is_forced=True)
    assert choose([("a", offer(2, 500)), ("b", named), ("c", Offer(is_forced=True, trouble="not here"))]) == (
        "b",
        named,
    )


def test_of_equal_ones_the_first_member_sends_it() -> None:
    assert choose([("a", Offer()), ("b", offer(1, 5)), ("c", offer(1, 5))]) == ("b", offer(1, 5))


def test_nothing_that_can_be_used_is_no_new_run() -> None:
    with pytest.raises(ShoalError, match=r"no checkpoint can be resumed: its model differs; pass another folder"):
        choose([("a", Offer()), ("b", Offer(trouble="its model differs"))])
    with pytest.raises(ShoalError, match="no such folder"):
        choose([("a", Offer(is_forced=True, trouble="no such folder")), ("b", offer(1, 5))])


def test_two_runs_are_named() -> None:
    with pytest.raises(
        ShoalError, match=r"x/00000005 is of run r, step 5, and x/00000007 is of run s, step 7. Name one"
    ):
        choose([("a", offer(1, 5)), ("b", offer(1, 7, run="s"))])


@given(st.lists(st.builds(offer, st.integers(1, 3), st.integers(1, 9)), min_size=1))
def test_the_order_of_the_members_does_not_decide_which(offers: list[Offer]) -> None:
    chosen, other = choose([("a", each) for each in offers]), choose([("a", each) for each in offers[::-1]])
    assert chosen is not None and other is not None and chosen[1] == other[1]


def test_another_model_is_described_by_its_first_tensor_that_differs() -> None:
    ours = unpack_tree(make_state(0).tree)
    assert misfit(unpack_tree(make_state(1).tree), ours) == ""
    why = misfit(unpack_tree(make_state(0, width=5).tree), ours)
    assert why == (
        "its model differs: tensor 0 is 0.weight float32[3, 2, 2, 2] here, 0.weight float32[5, 2, 2, 2] there"
    )


def wrapped(num_extra: int, num_after: int) -> Any:
    """The state of a wrapper with an optimizer, `num_extra` schedules and `num_after` parts after that of the model."""
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters())
    schedules = [torch.optim.lr_scheduler.StepLR(optimizer, 1) for _ in range(num_extra)]
    of_model = ModuleState(model, ForwardState(model, lambda: -1), {})
    parts: list[Stateful] = [optimizer, *schedules, of_model, *[optimizer] * num_after]
    return unpack_tree(pack(dict(model.state_dict()), parts, SAMPLES).tree)


def test_another_number_of_objects_in_extra_is_said_with_both_numbers() -> None:
    assert misfit(wrapped(1, 1), wrapped(1, 1)) == ""
    why = "it has 2 optimizers and objects in `extra`, but this script passes 1"
    assert misfit(wrapped(1, 1), wrapped(0, 1)) == misfit(wrapped(1, 2), wrapped(0, 2)) == why


def test_a_checkpoint_of_the_other_wrapper_is_named_as_such() -> None:
    why = "this script trains with p2p.DiLoCo, and it is of p2p.DataParallel"
    assert misfit(wrapped(0, 1), wrapped(0, 2)) == why
    assert misfit(wrapped(0, 2), wrapped(0, 1)) == ("this script trains with p2p.DataParallel, and it is of p2p.DiLoCo")
