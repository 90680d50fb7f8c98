"""CUDA devices. The only module that uses `torch.cuda`. Written after its documentation; never run on a GPU yet.

Copies to the host and back have a stream each, beside the current one, so that they run while kernels do. torch's host
allocator does not know the memory of the host that is copied: an open copy holds it here.

Left out: page-locked memory, so that copies are staged once more by the driver, and wait for it.
"""

from collections import deque
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch

from collectives import Array

from .device import Mark
from .errors import ShoalError


class CudaMark:
    """An event, and what is in use until it is over."""

    def __init__(self, stream: torch.cuda.Stream, *in_use: torch.Tensor) -> None:
        """All that `stream` was given so far."""
        self._in_use = in_use
        event: Any = torch.cuda.Event
        self.event = event(blocking=True)
        self.event.record(stream)

    def is_over(self) -> bool:
        is_over = bool(self.event.query())
        if is_over:
            self._in_use = ()
        return is_over

    def wait(self) -> None:
        self.event.synchronize()
        self._in_use = ()


class CudaDevice:
    """One GPU of this process."""

    def __init__(self, index: int) -> None:
        """Make its streams."""
        self.index = index
        self.numerics = describe(index)
        stream: Any = torch.cuda.Stream
        self._fetching, self._storing = (stream(index, priority=-1) for _ in range(2))
        self._open: deque[CudaMark] = deque()

    def mark(self) -> Mark:
        """As `Device.mark`.

        Raises:
            ShoalError: a graph is captured.
        """
        return CudaMark(self._current())

    def fetch(self, source: torch.Tensor, into: Array, after: Sequence[Mark]) -> Mark:
        """As `Device.fetch`."""
        return self._copy(self._fetching, source.view(torch.uint8), _of_bytes(into), after)

    def store(self, source: Array, into: torch.Tensor, after: Sequence[Mark]) -> Mark:
        """As `Device.store`."""
        return self._copy(self._storing, _of_bytes(source), into.view(torch.uint8), after)

    def hold(self, mark: Mark) -> None:
        """As `Device.hold`."""
        if isinstance(mark, CudaMark):
            self._current().wait_event(mark.event)

    def _copy(self, stream: torch.cuda.Stream, source: torch.Tensor, into: torch.Tensor, after: Sequence[Mark]) -> Mark:
        self._current()
        while self._open and self._open[0].is_over():
            self._open.popleft()
        for each in after:
            if isinstance(each, CudaMark):
                stream.wait_event(each.event)
        with torch.cuda.stream(stream):
            into.copy_(source, non_blocking=True)
        mark = CudaMark(stream, source, into)
        self._open.append(mark)
        return mark

    def _current(self) -> torch.cuda.Stream:
        if torch.cuda.is_current_stream_capturing():
            raise ShoalError(
                "a peer was called while a CUDA graph is captured, which would record its copies without their waits: "
                "capture the forward and backward pass of a module before it is wrapped, or call the peer after the "
                "capture"
            )
        return torch.cuda.current_stream(self.index)


@cache
def cuda_device(index: int) -> CudaDevice:
    """The same for all tensors of one GPU."""
    return CudaDevice(index)


def describe(index: int) -> str:
    """What decides how a GPU rounds: of grids, too, which torch sizes by its multiprocessors."""
    found: Any = torch.cuda.get_device_properties(index)
    capability = f"{found.major}.{found.minor}"
    return f"{found.name} ({found.multi_processor_count} SMs, {capability}, CUDA {torch.version.cuda})"


def _of_bytes(array: Array) -> torch.Tensor:
    return torch.from_numpy(array.view(np.uint8))
