from functools import partial

import pytest
import torch
from torch import nn

from p2p.training.checks.outside import Outside


@pytest.mark.parametrize("is_of_one_pass", [True, False])
def test_an_optimizer_of_parameters_that_the_same_passes_train_is_found_once(is_of_one_pass: bool) -> None:
    last, found = [-1], list[str]()
    model, centers = nn.Linear(3, 2), nn.Parameter(torch.zeros(2))
    follow = partial(model.weight.register_post_accumulate_grad_hook)  # untyped
    follow(lambda _: last.__setitem__(0, torch._C._current_graph_task_id()))
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1)), centers], lr=0.1)
    outside = Outside(lambda: last[0], found.append)
    for turn in range(4):
        output = model(torch.ones(4, 3))
        optimizer.zero_grad()
        if is_of_one_pass:
            (output - centers).square().sum().backward()
        else:
            output.sum().backward()
            (output.detach() - centers).square().sum().backward()
        outside.check(optimizer)
        optimizer.step()
        assert found == ["SGD"] * (is_of_one_pass and turn > 0)


def test_an_optimizer_that_has_nothing_to_do_is_not_looked_at() -> None:
    found: list[str] = []
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    outside = Outside(lambda: -1, found.append)
    for _ in range(3):
        outside.check(optimizer)
    assert not found
