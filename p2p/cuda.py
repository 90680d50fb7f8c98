"""CUDA devices. The only module that uses `torch.cuda`. Written after its documentation; never run on a GPU yet.

Copies to the host and back have a stream each, besides the current one, so that they overlap with kernels. torch's host
allocator does not know the copied host memory: an open copy keeps it alive here. Memory that is not pinned is staged by
the driver once more, and the host waits for that. Sums have a stream of their own, too.
"""

import ctypes
import threading
from collections import deque
from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from collectives import Array, Reduction
from collectives.tensor_sum import add_tensors, can_add, torch_type

from .device import FoundDevice, Mark, MemoryShort, PinRefused
from .errors import ShoalError

PORTABLE: Final = 1
"""cudaHostRegisterPortable: pinned for all devices of this process."""
READ_ONLY: Final = 8
"""cudaHostRegisterReadOnly: the device may only read it. Devices that cannot guarantee this refuse."""
REGISTERS_READ_ONLY: Final = 113
"""cudaDevAttrHostRegisterReadOnlySupported, of the attributes of a device."""

LEAST_ADDED_BYTES: Final = 256 << 10
"""Smallest chunk that is added up on a GPU. Below it some five launches of 8 us each should cost more than numpy: an
estimate, not measured."""


class CudaMark:
    """An event, and the tensors in use until it is over."""

    def __init__(self, stream: torch.cuda.Stream, *in_use: torch.Tensor) -> None:
        """Mark the work submitted to `current_stream` so far."""
        self._in_use = in_use
        event: Any = torch.cuda.Event
        self.event = event(blocking=True)
        self.event.record(stream)

    def is_over(self) -> bool:
        is_over = bool(self.event.query())
        if is_over:
            self.wait()  # returns at once; torch's stream sanitizer sees only this of the two
        return is_over

    def wait(self) -> None:
        self.event.synchronize()
        self._in_use = ()


class CudaDevice:
    """One GPU of this process."""

    def __init__(self, index: int) -> None:
        """Create its streams."""
        self.index = index
        self.numerics = describe(index)
        stream: Any = torch.cuda.Stream
        self._fetching, self._storing = (stream(index, priority=-1) for _ in range(2))
        self.adder = CudaAdder(index)
        self._open: deque[CudaMark] = deque()
        self._open_lock = threading.Lock()  # a state is copied by a thread of its own

    def check(self) -> None:
        """As `Device.check`."""
        self._current()

    def zeros(self, count: int, like: torch.Tensor) -> torch.Tensor:
        """As `Device.zeros`."""
        try:
            return like.new_zeros(count)
        except torch.OutOfMemoryError:
            raise MemoryShort(count * like.itemsize, torch.cuda.mem_get_info(self.index)[0]) from None

    def current_stream(self) -> Hashable:
        """As `Device.current_stream`."""
        return torch.cuda.current_stream(self.index)

    def on(self, stream: Hashable) -> AbstractContextManager[object]:
        """As `Device.on`."""
        assert isinstance(stream, torch.cuda.Stream)
        return torch.cuda.stream(stream)

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

    def order_after(self, mark: Mark) -> None:
        """As `Device.order_after`."""
        if isinstance(mark, CudaMark):
            self._current().wait_event(mark.event)

    def pin(self, memory: Array) -> None:
        """As `Device.pin`."""
        runtime = _runtime()
        with torch.cuda.device(self.index):
            flags = PORTABLE if memory.flags.writeable else PORTABLE | READ_ONLY
            error = runtime.cudaHostRegister(memory.ctypes.data, memory.nbytes, flags)
        if int(error):
            _forget_error()
            raise PinRefused(f"cudaHostRegister: {runtime.cudaGetErrorString(error)} ({int(error)})")

    def unpin(self, memory: Array) -> None:
        """As `Device.unpin`."""
        runtime = _runtime()
        with torch.cuda.device(self.index):
            error = runtime.cudaHostUnregister(memory.ctypes.data)
        if int(error):
            _forget_error()

    def wait_for_copies(self) -> None:
        """As `Device.wait_for_copies`. A lost device copies no data."""
        with suppress(RuntimeError):
            for mark in list(self._open):
                mark.wait()

    def _copy(self, stream: torch.cuda.Stream, source: torch.Tensor, into: torch.Tensor, after: Sequence[Mark]) -> Mark:
        self._current()
        with self._open_lock:
            while self._open and self._open[0].is_over():
                self._open.popleft()
        for each in after:
            if isinstance(each, CudaMark):
                stream.wait_event(each.event)
        with torch.cuda.stream(stream):
            into.copy_(source, non_blocking=True)
        mark = CudaMark(stream, source, into)
        with self._open_lock:
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


class CudaAdder:
    """Sums on one GPU: parts are copied there one after the other, added, and the sum is copied back.

    Leaves out: sums of data on the GPU already, which would cross the link once less each way; several streams, so that
    parts of one chunk arrive while the sum of another leaves.
    """

    least_bytes = LEAST_ADDED_BYTES

    def __init__(self, index: int) -> None:
        """Create its stream."""
        stream: Any = torch.cuda.Stream
        self._index, self._stream = index, stream(index, priority=-1)
        self._open: deque[CudaMark] = deque()
        self._lock = threading.Lock()  # the training thread drains, too

    def supports(self, reduction: Reduction, dtype: np.dtype[Any]) -> bool:
        """As `Adder.supports`."""
        return can_add(reduction, dtype)

    def add(
        self, sources: Sequence[Array], into: Array, reduction: Reduction, dtype: np.dtype[Any], *, completes: bool
    ) -> Mark:
        """As `Adder.add`. The next sum reuses its memory on the GPU, on the same stream."""
        with self._lock:
            while self._open and self._open[0].is_over():
                self._open.popleft()
        *hosts, target = (_of_bytes(each).view(torch_type(dtype)) for each in (*sources, into))
        where = torch.device("cuda", self._index)
        with torch.cuda.stream(self._stream), torch.no_grad():
            try:
                parts = (torch.empty_like(host, device=where).copy_(host, non_blocking=True) for host in hosts)
                target.copy_(add_tensors(parts, reduction, completes=completes), non_blocking=True)
            except torch.OutOfMemoryError:
                raise MemoryShort(into.nbytes, torch.cuda.mem_get_info(self._index)[0]) from None
            finally:  # some of the parts may be in transfer
                mark = CudaMark(self._stream, *hosts, target)
                with self._lock:
                    self._open.append(mark)
        return mark

    def drain(self) -> None:
        """As `Adder.drain`. A lost device reads and writes no memory."""
        with self._lock:
            left = list(self._open)
        with suppress(RuntimeError):
            for mark in left:
                mark.wait()


_ONE_AT_A_TIME: Final = threading.Lock()
_DEVICES: Final[dict[int, CudaDevice]] = {}


def cuda_device(index: int) -> CudaDevice:
    """The device object of a GPU, the same for all tensors and threads."""
    with _ONE_AT_A_TIME:
        if index not in _DEVICES:
            _DEVICES[index] = CudaDevice(index)
        return _DEVICES[index]


def describe(index: int) -> str:
    """The properties that decide how a GPU rounds, including its multiprocessors, by which torch sizes grids."""
    found: Any = torch.cuda.get_device_properties(index)
    capability = f"{found.major}.{found.minor}"
    return f"{found.name} ({found.multi_processor_count} SMs, {capability}, CUDA {torch.version.cuda})"


def found() -> tuple[tuple[FoundDevice, ...], str]:
    """All GPUs visible to this process; and why there are none, if so."""
    if torch.version.cuda is None:
        return (), f"torch {torch.__version__} is built without CUDA"
    if not torch.cuda.is_available():
        return (), "torch has CUDA, and the driver shows no device (nvidia-smi, CUDA_VISIBLE_DEVICES)"
    indices = range(torch.cuda.device_count())
    return tuple(
        FoundDevice(f"cuda:{i}", cuda_device(i), *torch.cuda.mem_get_info(i), _registers_read_only(i)) for i in indices
    ), ""


def _runtime() -> Any:
    cudart: Any = torch.cuda.cudart
    return cudart()


def _forget_error() -> None:
    """Clear the last error, which the next kernel would raise. torch offers no cudaGetLastError."""
    for library in _libraries():
        library.cudaGetLastError()


def _registers_read_only(index: int) -> bool | None:
    """Whether a device registers read-only memory, which torch does not tell either; None: not known."""
    value = ctypes.c_int()
    for library in _libraries():
        if library.cudaDeviceGetAttribute(ctypes.byref(value), REGISTERS_READ_ONLY, index) == 0:
            return bool(value.value)
        library.cudaGetLastError()  # as above
    return None


def _libraries() -> list[Any]:
    """CUDA's runtime, as torch has loaded it."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    paths = {line.partition("/")[2] for line in lines if "libcudart" in line}
    return [ctypes.CDLL(f"/{path.removesuffix(' (deleted)')}") for path in paths]


def _of_bytes(array: Array) -> torch.Tensor:
    if not array.flags.writeable:  # torch has no read-only tensors, and warns of them
        raw: Any = (ctypes.c_uint8 * array.nbytes).from_address(array.ctypes.data)
        raw.owner = array
        array = np.frombuffer(raw, np.uint8)
    return torch.from_numpy(array.view(np.uint8))
