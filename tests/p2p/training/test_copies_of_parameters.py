"""Which optimizers keep copies of parameters, from which their next update would set them."""

from typing import Any, cast

import pytest
import torch

from p2p.errors import ShoalError
from p2p.training.checks.copies_of_parameters import check_keeps_no_copies

OPTIMIZERS = {
    name: each
    for name, each in vars(torch.optim).items()
    if isinstance(each, type) and issubclass(each, torch.optim.Optimizer) and each is not torch.optim.Optimizer
}


def updated(kind: Any) -> torch.optim.Optimizer:
    layer = torch.nn.Linear(3, 2, bias=False)
    optimizer: Any = kind(layer.parameters(), lr=0.1)

    def loss() -> torch.Tensor:
        found: torch.Tensor = layer(torch.ones(4, 3)).pow(2).mean()
        return found

    for _ in range(2):
        gradient = torch.autograd.grad(loss(), layer.weight)[0]
        layer.weight.grad = gradient.to_sparse() if kind is torch.optim.SparseAdam else gradient
        optimizer.step(loss if kind is torch.optim.LBFGS else None)
    return cast(torch.optim.Optimizer, optimizer)


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_no_optimizer_of_torch_keeps_copies(name: str) -> None:
    check_keeps_no_copies([updated(OPTIMIZERS[name])])


def test_a_copy_is_named() -> None:
    optimizer = updated(torch.optim.SGD)
    (weight,) = optimizer.param_groups[0]["params"]
    optimizer.state[weight]["master"] = weight.detach().clone()
    with pytest.raises(ShoalError, match=r"SGD keeps a copy of its parameters \('master' in its state\)"):
        check_keeps_no_copies([optimizer])
