"""Synchronisation of the running statistics of normalization layers, which each replica collects from its samples.

Floating-point ones (`running_mean`, `running_var`) are averaged over the samples of the step; of integers
(`num_batches_tracked`) the maximum is taken. For other buffers see buffers.py.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from collectives import Array

from ...session.tensors import as_array
from ...step.collective import AllReduce
from ...step.operation import Operation
from ..state.mirrors import Mirror


@dataclass(frozen=True, slots=True)
class _Statistics:
    """Buffers of one type, and one operation on their concatenation, in memory order."""

    buffers: Sequence[Tensor]
    operation: Operation

    @property
    def results(self) -> list[Array]:
        """The bytes of each buffer in the result."""
        ends = np.cumsum([buffer.nbytes for buffer in self.buffers])
        return np.split(self.operation.result.view(np.uint8), ends[:-1])


class RunningStatistics:
    """The statistics of the layers of one model."""

    def __init__(self, module: nn.Module, algorithm: str | None, mirror: Mirror) -> None:
        """Find the BatchNorm and InstanceNorm layers of `module` with statistics; the same layers on every peer.

        Raises:
            ValueError: a layer exchanges statistics in its forward pass.
        """
        for name, layer in module.named_modules():
            if isinstance(layer, nn.SyncBatchNorm):
                raise ValueError(
                    f"layer {name or type(layer).__name__} is a SyncBatchNorm, which exchanges statistics through "
                    "torch.distributed. Here it would use the statistics of this peer alone: use BatchNorm, whose "
                    "running statistics are averaged, or GroupNorm, which needs none"
                )
        layers = [layer for layer in module.modules() if isinstance(layer, _NormBase)]
        self._layer_of = {buffer: layer for layer in layers for buffer in layer.buffers(recurse=False)}
        by_type: dict[torch.dtype, list[Tensor]] = {}
        for buffer in self._layer_of:
            by_type.setdefault(buffer.dtype, []).append(buffer)
        self._of_types = [_join(buffers, algorithm) for buffers in by_type.values()]
        self._mirror = mirror
        self._noted: dict[nn.Module, bool] = {}

    def note_modes(self) -> None:
        """Note which layers are in training mode now, for the next commit."""
        self._noted = {layer: layer.training for layer in self._layer_of.values()}

    def begin(self) -> None:
        """Begin to read the statistics: the forward passes of a step are over."""
        self._mirror.begin([buffer for each in self._of_types for buffer in each.buffers])

    def operations(self) -> Iterator[Operation]:
        """The operations to submit, one per type."""
        raws = self._mirror.read()
        for each in self._of_types:
            own, raws = raws[: len(each.buffers)], raws[len(each.buffers) :]
            np.concatenate(own, out=each.operation.input.view(np.uint8))
            yield each.operation

    def hand_out(self, *, has_mean: bool) -> None:
        """Write the results of a committed step. Layers in evaluation mode keep their statistics, bit for bit.

        `has_mean`: a member counts. Otherwise each replica keeps its own means until the next step.
        """
        noted, self._noted = self._noted, {}
        trains = {layer for layer in self._layer_of.values() if noted.get(layer, layer.training)}
        pairs = [
            pair
            for each in self._of_types
            if has_mean or not each.buffers[0].is_floating_point()
            for pair in zip(each.buffers, each.results, strict=True)
            if self._layer_of[pair[0]] in trains  # `data` below: backward passes of such layers read none
        ]
        buffers = [buffer for buffer, _ in pairs]
        for buffer, found in zip(buffers, self._mirror.write([raw for _, raw in pairs], buffers), strict=True):
            buffer.data.copy_(found)


def _join(buffers: list[Tensor], algorithm: str | None) -> _Statistics:
    collective = AllReduce("mean", is_weighted=True) if buffers[0].is_floating_point() else AllReduce("max")
    size = sum(buffer.numel() for buffer in buffers)
    flat, result = (torch.zeros(size, dtype=buffers[0].dtype, device="cpu") for _ in range(2))
    operation = Operation(collective, as_array(flat), as_array(result), tuple(flat.shape), algorithm)
    return _Statistics(buffers, operation)
