"""A script's tensors as arrays. Recognizes torch's tensors without importing torch."""

import importlib
import logging
import math
import operator
import sys
from collections.abc import Callable, Sequence
from functools import cache, reduce
from typing import Any, Final

import numpy as np

from collectives import BFLOAT16, Array, is_half, type_name

logger = logging.getLogger("p2p")

NUM_BUFFERS: Final = 8
"""Number of result sizes for which memory is kept for the next operation of the same size."""

SHARED: Final = "out shares memory with the tensor: omit it to replace the tensor itself"
READ_ONLY: Final = "the array is read-only: the result could not be written into it; pass a copy, or one as `out`"
OVERLAPS: Final = (
    "several elements of the tensor share one place in memory, as after `expand` or `unfold`, which can hold only one "
    "result: pass tensor.clone(), or another tensor as `out`"
)
NOT_THROUGH: Final = (
    "a backward pass went through a tensor that had become the result of an operation over all peers, which "
    "autograd does not know: the gradient is that of this peer's own tensor, as if there had been no operation. Pass "
    "tensor.detach().clone() if its result is to be a constant (reported once)"
)
NEGATED: Final = "the tensor is a negated view, whose memory holds other values: pass tensor.resolve_neg()"


def as_array(tensor: Any) -> Array:
    """A tensor as a writable array that shares its memory; bfloat16 as `collectives.BFLOAT16`.

    Raises:
        TypeError: as `as_input`.
        ValueError: the memory is read-only, or several elements share an address.
    """
    array = as_input(tensor)
    if not array.flags.writeable:
        raise ValueError(READ_ONLY)
    if not array.flags.c_contiguous:
        check_places(array.shape, array.strides, array.itemsize)
    return array


def as_input(tensor: Any) -> Array:
    """As `as_array`, for a tensor that is only read.

    Raises:
        TypeError: neither a tensor on the CPU nor an array, or elements that cannot be reduced.
    """
    torch = sys.modules.get("torch")  # a caller with a tensor has imported it
    if torch is not None and isinstance(tensor, torch.Tensor):
        array = _of_tensor(torch, tensor)
    elif type(tensor) in (np.ndarray, np.memmap):  # other subclasses add a meaning that is lost here
        array = tensor
    else:
        raise TypeError(f"need a torch tensor on the CPU or a numpy array, got {type(tensor).__name__}")
    type_name(array.dtype)
    if is_half(array.dtype):
        importlib.import_module("torch")  # takes seconds the first time: not in the loop, which uses it
    return array


def check_places(shape: Sequence[int], strides: Sequence[int], length: int) -> None:
    """Raise ValueError if elements share an address: the last one written would silently win.

    `length`: of an element, in the unit of strides.
    """
    dimensions = sorted((abs(stride), size) for size, stride in zip(shape, strides, strict=True) if size != 1)
    if any(not size for _, size in dimensions):
        return
    reach = length
    for stride, size in dimensions:
        if not stride:
            raise ValueError(OVERLAPS)
        if stride < reach:  # they overlap or interleave: only a look at each tells
            starts = reduce(np.add.outer, [np.arange(number) * each for each, number in dimensions])
            if np.diff(np.sort(starts, axis=None)).min() < length:
                raise ValueError(OVERLAPS)
            return
        reach += stride * (size - 1)


def note_written(tensor: Any) -> None:
    """Tell torch that a tensor has changed: a backward pass that needs its old values raises instead of being wrong.

    One that only goes through it is logged, unless it may be a loss, which is mostly replaced to be shown.
    """
    if not isinstance(tensor, np.ndarray) and not tensor.is_inference():
        sys.modules["torch"].autograd.graph.increment_version(tensor)
        if tensor.grad_fn is not None and tensor.numel() > 1:
            tensor.register_hook(lambda gradient: _report_pass())


@cache
def _report_pass() -> None:
    """Log, once, that a backward pass goes through the result of an operation."""
    logger.warning(NOT_THROUGH)


def as_result(tensor: Any, input: Array) -> Array:
    """`tensor`, flat, as the target for the result of an operation on `input`.

    Raises:
        TypeError: as `as_array`.
        ValueError: another shape or type, not contiguous, or overlapping memory.
    """
    array = as_array(tensor)
    if (array.shape, array.dtype) != (input.shape, input.dtype) or not array.flags.c_contiguous:
        raise ValueError(
            f"out must be contiguous, {type_name(input.dtype)} {list(input.shape)}, "
            f"is {type_name(array.dtype)} {list(array.shape)}, strides {array.strides}"
        )
    if np.may_share_memory(array, input):
        raise ValueError(SHARED)
    return array.reshape(-1)


def result_of(tensor: Any, input: Any) -> Any:
    """`tensor` as the target for the result of an operation on `input`, on the same device.

    Raises:
        ValueError: another shape or type, not contiguous, or overlapping memory.
    """
    if (tensor.shape, tensor.dtype) != (input.shape, input.dtype) or not tensor.is_contiguous():
        raise ValueError(
            f"out must be contiguous, {input.dtype} {list(input.shape)}, "
            f"is {tensor.dtype} {list(tensor.shape)}, strides {tensor.stride()}"
        )
    starts, ends = zip(*map(_extent, (tensor, input)), strict=True)
    if max(starts) < min(ends):
        raise ValueError(SHARED)
    return tensor.detach()


def _extent(tensor: Any) -> tuple[int, int]:
    """Start and end of the addresses of the elements."""
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    start = tensor.data_ptr()
    return start, start + (reach + 1) * tensor.itemsize if tensor.numel() else start


def empty_tensor(shape: tuple[int, ...], dtype: Any, empty: Callable[[int, np.dtype[Any]], Array]) -> Any:
    """A torch tensor of this shape and type, in memory from `empty`.

    Raises:
        TypeError: a size that is not a whole number, or a torch type that cannot be reduced.
        ValueError: a negative size.
    """
    try:
        shape = tuple(map(operator.index, shape))
    except TypeError:
        raise TypeError(f"each size must be a whole number, and an argument of its own, got {shape}") from None
    if min(shape, default=0) < 0:
        raise ValueError(f"no size may be negative, got {shape}")
    torch = importlib.import_module("torch")
    wanted = torch.empty(0, dtype=dtype or torch.float32, device="cpu")
    as_array(wanted)
    array = empty(math.prod(shape), np.dtype(f"u{wanted.itemsize}"))
    return torch.from_numpy(array.view(f"i{wanted.itemsize}")).view(wanted.dtype).view(shape)


def like_script(tensor: Any, array: Array) -> Any:
    """`array` in the script's kind: a torch tensor over the same memory if `tensor` is one, or an array."""
    if isinstance(tensor, np.ndarray):
        return array
    torch = importlib.import_module("torch")
    if array.dtype == BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def type_of(tensor: Any) -> np.dtype[Any]:
    """The dtype that `as_array` gives to the elements of a tensor, on any device.

    Raises:
        TypeError: they cannot be reduced, or the tensor is not dense, or a negated view.
    """
    torch = importlib.import_module("torch")
    if tensor.layout is not torch.strided:
        raise TypeError(f"need a dense tensor, got {tensor.layout} on {tensor.device}")
    if tensor.is_neg():
        raise TypeError(NEGATED)
    return as_array(torch.empty(0, dtype=tensor.dtype, device="cpu")).dtype


def _of_tensor(torch: Any, tensor: Any) -> Array:
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        raise TypeError(f"need a dense tensor on the CPU or a CUDA device, got {tensor.layout} on {tensor.device}")
    if tensor.is_neg():
        raise TypeError(NEGATED)
    detached = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        array: Array = detached.view(torch.int16).numpy().view(BFLOAT16)
        return array
    try:
        array = detached.numpy()
    except TypeError:  # quantized types, 8-bit floats
        raise TypeError(
            f"elements of {tensor.dtype} cannot be reduced: convert them, or move them as they are: "
            "tensor.view(torch.uint8)"
        ) from None
    return array


class ResultBuffers:
    """Result buffers, kept from one operation to the next, for the last sizes and types."""

    def __init__(self, empty: Callable[[int, np.dtype[Any]], Array]) -> None:
        """`empty` allocates an array."""
        self._empty = empty
        self._arrays: dict[tuple[int, np.dtype[Any]], Array] = {}

    def like(self, array: Array) -> Array:
        """An array of the same size and type; the one returned before, if any."""
        return self.of(array.size, array.dtype)

    def of(self, size: int, dtype: np.dtype[Any]) -> Array:
        """As `like`."""
        key = size, dtype
        if key not in self._arrays:
            if len(self._arrays) == NUM_BUFFERS:
                del self._arrays[next(iter(self._arrays))]
            self._arrays[key] = self._empty(*key)
        return self._arrays[key]
