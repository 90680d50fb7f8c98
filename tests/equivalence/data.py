"""Data sets of the cases, the small models that many of them train, and the loop that most of them share."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

if TYPE_CHECKING:
    from .run import Run

GLOBAL_BATCH: Final = 12
NUM_SAMPLES: Final = 120
"""Ten steps."""

NUM_TOKENS: Final = 11


def dataset(name: str) -> TensorDataset:
    """Inputs, and targets of 3 numbers or a class: `points` of 4 numbers, `images`, `series`, `tokens`."""
    generator = torch.Generator().manual_seed(1)

    def draw(*shape: int) -> Tensor:
        return torch.randn(NUM_SAMPLES, *shape, generator=generator)

    if name == "tokens":
        tokens = torch.randint(0, NUM_TOKENS, (NUM_SAMPLES, 7), generator=generator)
        return TensorDataset(tokens[:, :-1], tokens[:, 1:])
    if name == "classes":
        points = draw(4)
        return TensorDataset(points, points[:, :3].argmax(1))
    inputs = {"points": (4,), "images": (2, 6, 6), "volumes": (1, 4, 4, 4), "series": (5, 4)}[name]
    x = draw(*inputs)
    return TensorDataset(x, torch.tanh(x.flatten(1)[:, :3] + x.flatten(1)[:, 1:4].square()))


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def mlp_with(*layers: nn.Module) -> nn.Sequential:
    """`layers` take and give 8 numbers."""
    return nn.Sequential(nn.Linear(4, 8), *layers, nn.Tanh(), nn.Linear(8, 3))


def convolutional(*layers: nn.Module) -> nn.Sequential:
    """For images; `layers` are behind the first convolution, of 6 channels."""
    return nn.Sequential(
        nn.Conv2d(2, 6, 3), *layers, nn.Tanh(), nn.Conv2d(6, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(16, 3)
    )


def adamw(model: nn.Module, **options: Any) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), **{"lr": 0.01, **options})


def sgd(model: nn.Module, **options: Any) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), **{"lr": 0.05, "momentum": 0.9, **options})


def nothing() -> None:
    pass


def fit(
    run: "Run",
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    data: str = "points",
    loss_of: Callable[[Any, Tensor], Any] = functional.mse_loss,
    before: Callable[[], object] = nothing,
    after: Callable[[], object] = nothing,
    extra: Sequence[Any] = (),
    **options: Any,
) -> Any:
    """The usual loop; `before` and `after` are called around each update, `options` are of `Run.wrap`."""
    parallel = run.wrap(model, optimizer, extra=extra, **options)
    for x, y in run.loader(data):
        optimizer.zero_grad()
        loss = loss_of(parallel(x), y)
        loss.backward()
        before()
        optimizer.step()
        after()
        run.log(loss)
    return parallel
