"""What a script has set in its dataset: workers have a copy of that, made when they began.

torch's DataLoader makes its workers anew for each epoch, so that `dataset.epoch = epoch` reaches them; ours stay, and
are made anew where this has changed. Leaves out what has no `__dict__` (a generator of numbers, a table of Arrow), and
of long lists and arrays most elements.
"""

from collections.abc import Iterator, Mapping
from itertools import chain, islice
from types import FunctionType, MethodType, ModuleType
from typing import Any, Final

import numpy as np
import torch
import xxhash

PLAIN: Final = (type(None), bool, int, float, complex, str, bytes)
NOT_DATA: Final = (type, ModuleType, FunctionType)
NUM_ITEMS: Final = 32
"""So many of a list, or rows of an array, are looked at, from the first to the last."""
MOST_VALUES: Final = 4096
MOST_DEPTH: Final = 8


def digest_of_attributes(*values: Any) -> int:
    """Another one after a change of an attribute, an item or a tensor in `values`. Costs up to some milliseconds."""
    digest = xxhash.xxh3_64()
    seen: set[int] = set()
    for value in values:
        for piece in islice(_pieces(value, seen, 0), MOST_VALUES):
            digest.update(piece)
    return digest.intdigest()


def _pieces(value: Any, seen: set[int], depth: int) -> Iterator[bytes]:
    if type(value) in PLAIN:
        yield repr(value).encode(errors="surrogatepass")
        return
    if isinstance(value, MethodType):  # is made anew each time that somebody asks for it
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
            yield np.ascontiguousarray(_some(value) if value.ndim else value).tobytes()
    elif isinstance(value, Mapping):
        yield b"%d" % len(value)
        inner = [each for key in _some([*value]) for each in (key, value[key])] if type(value) is dict else []
    elif isinstance(value, list | tuple | set | frozenset):
        yield b"%d" % len(value)
        inner = [*_some([*value])]
    inner += chain.from_iterable(getattr(value, "__dict__", {}).items())
    for each in inner:
        yield from _pieces(each, seen, depth + 1)


def _some(values: Any) -> Any:
    """NUM_ITEMS at most, and about as far from each other."""
    return values[:: -(-len(values) // NUM_ITEMS) or 1]
