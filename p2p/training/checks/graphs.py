"""Gradients with a graph (`create_graph=True`), which averages lack: a penalty on `grad` would be a constant."""

from typing import Final

import torch

CUT: Final = (
    "backward was called with create_graph=True outside `no_sync`, but `grad` of parameter {0} is going to be the mean "
    "over all peers, which has no graph: what is computed from it would have no gradient. Take the gradients for a "
    "penalty by `torch.autograd.grad(loss, parameters, create_graph=True)`, and call backward once for the loss with "
    "the penalty; or leave out create_graph"
)


def is_cut(gradient: torch.Tensor) -> bool:
    """Whether the current backward pass has made `gradient` with a graph. `no_sync` leaves one in `grad`, too."""
    return gradient.requires_grad and torch.is_grad_enabled() and torch._C._current_graph_task_id() >= 0
