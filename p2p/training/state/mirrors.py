"""Host copies of tensors that are read in each step; those of a device are fetched together, and asynchronously.

The values that a step compares (digests of parameters, buffers, statistics) are fetched as soon as they do not change
any more, and read at the end of the step, after gradients that were fetched later, so that reading causes no further
wait. Tensors of the host are read in place.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from collectives import Array

from ...device import HOST, Device
from ...session.device_memory import pinned, staged_by
from ...session.session import Session
from ...staging import Staged
from ..tensors.layouts import dense_strides, in_memory_order, laid_out
from .replica_state import raw_bytes

SMALL_BYTES: Final = 64 << 10
"""Smaller tensors are gathered on the device, and fetched as one: each copy costs some microseconds."""


class Mirror:
    """A mirror of one set of tensors at a time."""

    def __init__(self, session: Session, device: Device) -> None:
        """Start without tensors. `device`: of the model; single tensors may be on the host."""
        self._session, self._device = session, device
        self._staged: Staged | None = None if device is HOST else staged_by(session, device)
        self._tensors: Sequence[Tensor] = ()
        self._places: dict[int, slice] = {}
        self._there = self._back = np.empty(0, np.uint8)

    def begin(self, tensors: Sequence[Tensor]) -> None:
        """Begin to fetch `tensors` after the current stream's work. Do not write them before `read` or `forget`."""
        self.forget()
        self._tensors = tensors
        if self._staged is None:
            return
        flat = {
            index: in_memory_order(each.detach()).view(torch.uint8)
            for index, each in enumerate(tensors)
            if each.numel() and self._session.device_of(each) is not HOST
        }
        if not flat:
            return
        small = [index for index, each in flat.items() if each.nbytes < SMALL_BYTES]
        large = [index for index in flat if index not in set(small)]
        self._places, end = {}, 0
        for index in (*small, *large):
            start, end = end, end + flat[index].nbytes
            self._places[index] = slice(start, end)
        self._there = self._memory(self._there, end)
        pairs: list[tuple[Any, Array]] = []
        if small:
            gathered = torch.cat([flat[index] for index in small])
            pairs.append((gathered, self._there[: gathered.nbytes]))
        pairs += ((flat[index], self._there[self._places[index]]) for index in large)
        self._staged.fetch(*pairs)

    def read(self) -> list[Array]:
        """The bytes of each tensor in memory order; valid until `begin`."""
        if self._staged is not None:
            self._staged.wait()
        return [
            self._there[self._places[index]] if index in self._places else np.frombuffer(raw_bytes(each), np.uint8)
            for index, each in enumerate(tensor.detach() for tensor in self._tensors)
        ]

    def forget(self) -> None:
        """Wait for pending copies and drop them."""
        if self._staged is not None:
            self._staged.wait()
        self._tensors, self._places = (), {}

    def write(self, raws: Sequence[Array], tensors: Sequence[Tensor]) -> list[Tensor]:
        """Convert `raws`, bytes in memory order, to tensors like `tensors`, for the current stream; does not wait.

        Tensors on a device are parts of one buffer there.
        """
        if self._staged is None:
            return [_like(torch.from_numpy(raw), each) for raw, each in zip(raws, tensors, strict=True)]
        self._staged.wait()  # for earlier stores from the same memory
        far = [index for index, each in enumerate(tensors) if self._session.device_of(each) is not HOST]
        ends = np.cumsum([0, *(-(-raws[index].nbytes // 16) * 16 for index in far)]).tolist()  # aligned for every type
        self._back = self._memory(self._back, ends[-1])
        back = self._back[: ends[-1]]
        parts = [*map(torch.from_numpy, raws)]
        if ends[-1]:
            there = torch.empty(ends[-1], dtype=torch.uint8, device=tensors[far[0]].device)
            for start, index in zip(ends, far, strict=False):
                back[start : start + raws[index].nbytes] = raws[index]
                parts[index] = there[start : start + raws[index].nbytes]
            self._staged.store(back, there)
            self._staged.order_after_stores()
        return [_like(part, each) for part, each in zip(parts, tensors, strict=True)]

    def _memory(self, before: Array, num_bytes: int) -> Array:
        """At least so many bytes, pinned if possible."""
        if len(before) >= num_bytes:
            return before
        return pinned(self._session, self._device, self._session.empty)(num_bytes, np.dtype(np.uint8))


def _like(raw: Tensor, tensor: Tensor) -> Tensor:
    return laid_out(raw.view(tensor.dtype), tensor.shape, dense_strides(tensor))
