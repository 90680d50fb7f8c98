"""Digest of a dataset's attributes, of which workers have copies from the time of their start.

torch's DataLoader starts new workers for each epoch, so that `dataset.epoch = epoch` reaches them; ours persist, and
are restarted when the digest has changed. Leaves out objects without `__dict__` (a random generator, an Arrow table),
and most elements of very long lists and arrays, of lists of lists, and of arrays in a mapped file.
"""

import mmap
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from types import FunctionType, MethodType, ModuleType
from typing import Any, Final

import numpy as np
import torch
import xxhash

from collectives import Array

PLAIN: Final = (type(None), bool, int, float, complex, str, bytes)
NOT_DATA: Final = (type, ModuleType, FunctionType)
NUM_ITEMS: Final = 32
"""Number of items of a list, or rows of an array, that enter the digest, evenly spaced,"""
MOST_ITEMS: Final = 100_000
"""unless it is a list of at most so many plain values (some 10 ms),"""
MOST_BYTES: Final = 256 << 20
"""or an array of at most so many bytes (some 20 ms)."""
MOST_VALUES: Final = 4096
MOST_DEPTH: Final = 8


def digest_of_attributes(*values: Any) -> int:
    """A digest that changes with attributes, items and tensors in `values`. Costs milliseconds, for long ones tens."""
    digest = xxhash.xxh3_64()
    seen: set[int] = set()
    for value in values:
        for piece in islice(_pieces(value, seen, 0), MOST_VALUES):
            digest.update(piece)
    return digest.intdigest()


def _pieces(value: Any, seen: set[int], depth: int) -> Iterator[bytes | memoryview]:
    if type(value) in PLAIN:
        yield repr(value).encode(errors="surrogatepass")
        return
    if isinstance(value, MethodType):  # each access creates a new object
        yield from _pieces(value.__self__, seen, depth)
        return
    yield b"%s at %d" % (type(value).__qualname__.encode(), id(value))
    if isinstance(value, NOT_DATA) or id(value) in seen or depth == MOST_DEPTH:
        return
    seen.add(id(value))
    inner: list[Any] = []
    if isinstance(value, torch.Tensor):
        yield repr((tuple(value.shape), "" if value.is_inference() else value._version)).encode()
        return
    if isinstance(value, np.ndarray):
        yield repr((value.shape, value.dtype)).encode()
        if not value.dtype.hasobject and value.size:
            yield _bytes_of(value)
    elif isinstance(value, Mapping):
        yield b"%d" % len(value)
        inner = [each for key in _some([*value]) for each in (key, value[key])] if type(value) is dict else []
    elif isinstance(value, list | tuple | set | frozenset):
        yield b"%d" % len(value)
        items = [*value]
        if len(items) <= MOST_ITEMS and {*map(type, items)} <= {*PLAIN}:
            yield repr(items).encode(errors="surrogatepass")
        else:
            inner = [*_some(items)]
    inner += chain.from_iterable(getattr(value, "__dict__", {}).items())
    for each in inner:
        yield from _pieces(each, seen, depth + 1)


def _bytes_of(array: Array) -> memoryview | bytes:
    is_in_file = isinstance(array, np.memmap) or isinstance(array.base, np.memmap | mmap.mmap)
    if array.flags.c_contiguous and 0 < array.nbytes <= MOST_BYTES and not (is_in_file and array.ndim):
        return array.reshape(-1).view(np.uint8).data
    return np.ascontiguousarray(_some(array) if array.ndim else array).tobytes()


def _some(values: Any) -> Any:
    """At most `NUM_ITEMS` values, about evenly spaced."""
    return values[:: -(-len(values) // NUM_ITEMS) or 1]
