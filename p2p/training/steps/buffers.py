"""Buffers other than running statistics, which each replica computes from its own samples: compared or synchronised."""

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Literal, get_args

import numpy as np
import torch
import xxhash
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from collectives import Array
from gossip import View

from ...step.collective import AllGather
from ...step.operation import Operation
from ...step.receipts import Receipt
from ..side_operations import SideOperations, first_difference
from ..state.forward_state import LARGE_BYTES
from ..state.mirrors import Mirror
from ..state.replica_state import raw_bytes
from ..tensors.buckets import DTYPES, Bucket, make_bucket
from ..tensors.layouts import dense_strides, laid_out
from .statistics import RunningStatistics

logger = logging.getLogger("p2p")

BufferMode = Literal["check", "mean", "rank0", "local"]

NUM_TURNS: Final = 16
"""Number of steps in which all buffers are compared once,"""
FEW: Final = 64
"""except that with at most this many buffers, small ones (forward_state.py) are compared in each step."""


class Buffers(SideOperations):
    """The buffers of one model, by name: a script may replace their tensors."""

    def __init__(
        self, module: nn.Module, mode: BufferMode, algorithm: str | None, make_mirror: Callable[[], Mirror]
    ) -> None:
        """`mode`: policy for buffers other than running statistics; see `DataParallel`."""
        if mode not in get_args(BufferMode):
            raise ValueError(f"buffers must be one of {', '.join(get_args(BufferMode))}, is {mode!r}")
        self._statistics, self._mirror = RunningStatistics(module, algorithm, make_mirror()), make_mirror()
        self._named = dict(_others(module, is_whole=mode == "check"))
        self._mode: BufferMode = mode if self._named else "local"
        self._turn, self._begun = 0, -1
        self._wanted: list[str] = []
        self._buckets: list[tuple[list[str], Bucket]] = []
        self._gather: Operation | None = None
        self._has_warned = False
        if self._mode == "mean":
            by_type: dict[torch.dtype, list[str]] = {}
            for name in self._named:
                if (dtype := self._tensor(name).dtype) in DTYPES:
                    by_type.setdefault(dtype, []).append(name)
            for names in by_type.values():
                self._buckets.append((names, make_bucket(self._tensors(names), algorithm)))
        elif self._mode != "local":
            num_bytes = sum(self._tensor(name).nbytes for name in self._named)
            length = len([*self._turns()]) if mode == "check" else num_bytes
            row = np.zeros(length, np.int64 if mode == "check" else np.uint8)
            self._gather = Operation(AllGather(label=f"buffers, {mode}"), row, row, row.shape, "one-shot")
        self._known = {name: raw_bytes(self._tensor(name)).tobytes() for names, _ in self._buckets for name in names}

    def _tensor(self, name: str) -> Tensor:
        owner, key = self._named[name]
        return owner.get_buffer(key)

    def _tensors(self, names: Sequence[str]) -> list[Tensor]:
        return [self._tensor(name) for name in names]

    def note_modes(self) -> None:
        """As `SideOperations.note_modes`."""
        self._statistics.note_modes()

    def begin(self, step: int) -> None:
        """Begin to read the buffers of `step`: its forward passes are over."""
        self._turn, self._begun = step % NUM_TURNS, step
        self._statistics.begin()
        wanted = [name for names, _ in self._buckets for name in names]
        if self._gather is not None:
            wanted = [name for name in self._turns() if name] if self._mode == "check" else [*self._named]
        self._wanted = wanted
        self._mirror.begin(self._tensors(wanted))

    def operations(self, step: int) -> Iterator[Operation]:
        """The operations to submit in `step`."""
        if self._begun != step:
            self.begin(step)
        self._begun = -1  # another call for the same step reads again
        yield from self._statistics.operations()
        raws = dict(zip(self._wanted, self._mirror.read(), strict=True))
        for names, bucket in self._buckets:
            bucket.reclaim_result()
            for index, name in enumerate(names):
                bucket.inputs[index].copy_(_laid_out(raws[name], self._tensor(name)))
                is_same = raws[name].tobytes() == self._known[name]
                (bucket.unused.add if is_same else bucket.unused.discard)(index)
            bucket.set_used_flags()
            yield bucket.operation
        if self._gather is not None:
            if self._mode == "check":
                self._show(self._gather, raws)
            else:
                np.concatenate([self._gather.input[:0], *raws.values()], out=self._gather.input)
            yield self._gather

    def rebuild_operations(self, operations: Sequence[Operation], step: int, view: View | None) -> list[Operation]:
        """The operations of the open step, now `step`, with digests of the loaded state; this peer adds no samples."""
        if self._gather is not None and self._mode == "check":
            self.begin(step)
            self._show(self._gather, dict(zip(self._wanted, self._mirror.read(), strict=True)))
            self._begun = -1
        return [*operations]

    def _show(self, gather: Operation, raws: Mapping[str, Array]) -> None:
        gather.input[:] = [xxhash.xxh3_64_intdigest(raws[name].data) >> 1 if name else 0 for name in self._turns()]

    def _turns(self) -> Iterator[str]:
        """For each place of a row the name of the buffer that is compared in this step; empty: none."""
        names = [*self._named]
        if len(names) > FEW:
            turn = names[self._turn :: NUM_TURNS]
            yield from [*turn, *[""] * (math.ceil(len(names) / NUM_TURNS) - len(turn))]
            return
        for index, name in enumerate(names):
            is_read = index % NUM_TURNS == self._turn or self._tensor(name).nbytes <= LARGE_BYTES
            yield name if is_read else ""

    def on_commit(self, receipt: Receipt) -> None:
        """Write the results of a committed step to the buffers, or compare them."""
        self._statistics.hand_out(has_mean=receipt.weight > 0)
        means: dict[str, Array] = {}
        for names, bucket in self._buckets:
            parts = bucket.result_views() if receipt.weight else []
            for name, part in zip(names, parts, strict=False):
                if part is not None:  # else unchanged on all: the mean of equal values may differ from the value
                    means[name] = np.frombuffer(raw_bytes(part), np.uint8)
                    self._known[name] = means[name].tobytes()
        self._write(means)
        if self._gather is not None:
            rows = self._gather.result.reshape(-1, self._gather.input.size)
            (self._compare if self._mode == "check" else self._take)(rows, receipt)

    def _take(self, rows: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], receipt: Receipt) -> None:
        start, found = 0, {}
        for name in self._named:
            num_bytes = self._tensor(name).nbytes
            found[name] = rows[0, start : start + num_bytes].copy()
            start += num_bytes
        self._write({name: raw for name, raw in found.items() if raw.size})

    def _write(self, raws: Mapping[str, Array]) -> None:
        """Write these bytes to the buffers."""
        tensors = self._tensors([*raws])
        for tensor, found in zip(tensors, self._mirror.write([*raws.values()], tensors), strict=True):
            tensor.copy_(found)

    def _compare(self, rows: np.ndarray[tuple[int, ...], np.dtype[np.int64]], receipt: Receipt) -> None:
        """Log the first buffer that differs between members, once."""
        if self._has_warned:
            return
        if (found := first_difference(self._turns(), rows, receipt)) is not None:
            logger.warning(
                "buffer %s differs between peers %s and %s in step %d (digests %016x and %016x). It follows each "
                "peer's own samples or number of forward passes, so replicas differ, and what is saved depends on "
                "which peer saves it. Pass buffers='mean' or 'rank0' to p2p.DataParallel to make it equal; or make it "
                "equal after each update (`peer.all_reduce(model.largest, op='max')`) and pass 'local', which also "
                "allows it to differ (reported once)",
                *found,
            )
            self._has_warned = True


def _laid_out(raw: Array, tensor: Tensor) -> Tensor:
    """`raw`, bytes in memory order, as a tensor of the host like `tensor`."""
    return laid_out(torch.from_numpy(raw.copy()).view(tensor.dtype), tensor.shape, dense_strides(tensor))


def _others(module: nn.Module, *, is_whole: bool) -> Iterator[tuple[str, tuple[nn.Module, str]]]:
    """Buffers other than running statistics; `is_whole`: non-persistent ones, too."""
    for path, owner in module.named_modules():
        statistics = ("running_mean", "running_var", "num_batches_tracked") if isinstance(owner, _NormBase) else ()
        left_out = () if is_whole else owner._non_persistent_buffers_set
        for key, buffer in owner.named_buffers(recurse=False):
            is_plain = buffer.layout is torch.strided and not buffer.is_meta
            if key not in statistics and key not in left_out and is_plain:
                yield f"{path}.{key}" if path else key, (owner, key)
