"""Forward passes without a backward pass: a script that skips a batch with `continue` makes one more than others."""

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...data.sample_tracker import SampleTracker


class Forwards:
    """The forward passes of one wrapper since the last commit whose result no backward pass has reached yet.

    Followed only without `peer.loader`, which knows the batches; not in evaluation, nor under `no_grad`, nor within a
    backward pass (checkpointing).
    """

    def __init__(self, share: SampleTracker) -> None:
        """`share`: the samples of this peer."""
        self._share = share
        self._open: dict[object, str] = {}

    def follow(self, model: str, output: Any) -> None:
        """Follow `output`, the result of a forward pass of `model`."""
        if torch.compiler.is_compiling() or self._share.is_of_loader or torch._C._current_graph_task_id() >= 0:
            return
        made = object()
        for tensor in _tensors(output):
            if tensor.grad_fn is not None:
                self._open[made] = model
                tensor.grad_fn.register_prehook(partial(self._reach, made))

    def _reach(self, made: object, _: object) -> None:
        self._open.pop(made, None)

    def use(self, models: Collection[str]) -> None:
        """Count the passes of `models` for the step, although autograd's backward pass does not reach them."""
        self._open = {made: model for made, model in self._open.items() if model not in models}

    def end_step(self) -> None:
        """After a commit: report the passes that no backward pass has reached, and start over."""
        self._share.num_unused = len(self._open)
        self._open.clear()


def _tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        yield from _tensors(list(output.values()))
    elif isinstance(output, list | tuple):
        for each in output:
            yield from _tensors(each)
