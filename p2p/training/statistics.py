"""Running statistics of normalization layers, which each replica collects from its own samples: made one.

Floating-point ones (`running_mean`, `running_var`) are averaged over the samples of the step, whole numbers
(`num_batches_tracked`) are the greatest of all. Leaves out: other buffers; each replica computes its own.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from ..session.tensors import as_array
from ..step.collective import AllReduce
from ..step.operation import Operation
from .buckets import Bucket, make_bucket, views


class RunningStatistics:
    """The statistics of the layers of one model."""

    def __init__(self, module: nn.Module, algorithm: str | None) -> None:
        """Of the BatchNorm and InstanceNorm layers in `module` that keep any; the same layers on every peer."""
        layers = [layer for layer in module.modules() if isinstance(layer, _NormBase)]
        self._layer_of = {buffer: layer for layer in layers for buffer in layer.buffers(recurse=False)}
        by_type: dict[torch.dtype, list[Tensor]] = {}
        for buffer in self._layer_of:
            by_type.setdefault(buffer.dtype, []).append(buffer)
        self._buckets = [
            make_bucket(buffers, algorithm) if dtype.is_floating_point else _make_greatest(buffers, algorithm)
            for dtype, buffers in by_type.items()
        ]

    def operations(self) -> Iterator[Operation]:
        """What to submit once the forward passes of a step are over."""
        for bucket in self._buckets:
            for buffer, values in zip(bucket.tensors, bucket.inputs, strict=True):
                values.copy_(buffer)
            yield bucket.operation

    def hand_out(self, num_samples: int) -> None:
        """A step of `num_samples` is committed. Who is in eval mode keeps what it has, bit by bit.

        Where nobody counts there is no mean, and each replica keeps its own until the next step.
        """
        for bucket in self._buckets:
            if num_samples or not bucket.flat.is_floating_point():
                for buffer, result in zip(bucket.tensors, bucket.results, strict=True):
                    if self._layer_of[buffer].training:
                        buffer.copy_(result)


def _make_greatest(buffers: list[Tensor], algorithm: str | None) -> Bucket:
    """A bucket of whole numbers."""
    flat, result = (torch.zeros(sum(buffer.numel() for buffer in buffers), dtype=buffers[0].dtype) for _ in range(2))
    operation = Operation(AllReduce("max"), as_array(flat), as_array(result), tuple(flat.shape), algorithm)
    return Bucket(buffers, flat, views(flat, buffers), views(result, buffers), flat[:0], result[:0], operation)
