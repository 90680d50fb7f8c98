"""The outer step with vectors on a device: only payloads cross to the host. The bits equal those of outer.py."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from collectives.elements import Array
from collectives.tensor_codec import TensorCodec

from ...device import HOST
from ...session.device_memory import pinned, single_device_of, staged_by
from ...session.session import Session
from ...staging import Staged
from ..tensors.summable import check_one_device
from .outer import MAX_BYTES, TINY, OuterConfig, OuterOptimizer, check_parameters

CHUNK = 1 << 22
"""Elements that are summed and applied at once; a multiple of every codec's block."""


def make_outer_optimizer(session: Session, parameters: Mapping[str, Tensor], config: OuterConfig) -> OuterOptimizer:
    """Create an `OuterOptimizer`, or an `DeviceOuterOptimizer` for parameters on a device.

    Raises:
        ValueError: as `OuterOptimizer`.
    """
    check_parameters(parameters)
    check_one_device(parameters)
    device = single_device_of(session, next(iter(parameters.values())), "the model")
    if device is HOST:
        return OuterOptimizer(parameters, config)
    return DeviceOuterOptimizer(parameters, config, staged_by(session, device), pinned(session, device, session.empty))


class DeviceOuterOptimizer(OuterOptimizer):
    """An `OuterOptimizer` for parameters on a device; its vectors are tensors there."""

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        config: OuterConfig,
        staged: Staged,
        empty: Callable[[int, np.dtype[Any]], Array],
        *,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        """As `OuterOptimizer`.

        Args:
            parameters: by name, on one device.
            config: the same on all peers.
            staged: copies payloads between device and host.
            empty: allocates host memory for payloads.
            max_bytes: of one payload.
        """
        self._device = next(iter(parameters.values())).device if parameters else torch.device("cpu")
        self._staged, self._empty = staged, empty
        super().__init__(parameters, config, max_bytes=max_bytes)
        self._tensor_codec = TensorCodec(self.codec)

    def _zeros(self, count: int) -> Any:
        return torch.zeros(count, dtype=torch.float32, device=self._device)

    def _flat(self, parameter: Tensor) -> Any:
        return parameter.detach().reshape(-1).to(torch.float32)

    def _tensor(self, vector: Any) -> Tensor:
        tensor: Tensor = vector
        return tensor

    def payloads(self) -> list[Array]:
        """As `OuterOptimizer.payloads`. Waits for the device, once, and for the copies."""
        total = torch.empty_like(self.anchor)
        found, squares = [], []
        for _, parameter, piece in self._pieces():
            delta = torch.sub(self._flat(self.anchor[piece].to(parameter.dtype)), self._flat(parameter))
            is_finite, is_lost = delta.isfinite().all(), delta.any() & (delta.abs() <= self.codec.lost).all()
            squares.append(torch.linalg.vector_norm(delta, dtype=torch.float64) ** 2)
            if self.residual is not None:
                delta += self.residual[piece] * float(np.float32(self.config.decay))
            found.append(torch.stack([is_finite, delta.isfinite().all(), is_lost]))
            total[piece] = delta
        self._check(torch.stack(found).tolist())
        self._delta_norm = math.sqrt(float(torch.stack(squares).sum()))
        self._pending = None if self.residual is None else total
        encoded = [self._tensor_codec.encode(total[cut]) for cut in self.cuts]
        payloads = [self._empty(len(each), np.dtype(np.uint8)) for each in encoded]
        self._staged.fetch(*zip(encoded, payloads, strict=True))
        self._staged.wait()
        return payloads

    def _check(self, found: list[list[bool]]) -> None:
        """Check each parameter: `found` tells whether change and total are finite, and whether the codec loses it."""
        lost = []
        for (name, _, _), (is_finite, is_total_finite, is_lost) in zip(self._pieces(), found, strict=True):
            self._check_delta(name, is_finite)
            self._check_total(name, is_total_finite)
            if is_lost:
                lost.append(name)
        self._warn_of(lost)

    def _add_up(self, cut: slice, rows: Array, weights: Sequence[tuple[int, float]]) -> None:
        for chunk, part in self._chunks(cut, CHUNK):
            mean = torch.zeros(chunk.stop - chunk.start, dtype=torch.float32, device=self._device)
            for row, weight in weights:
                self._tensor_codec.add(self._there(rows[row, part]), weight, mean)
            if weights:
                self._step(chunk, mean)

    def _step(self, chunk: slice, mean: Any) -> None:
        if self.momentum is not None:
            factor, momentum = float(np.float32(self.config.momentum)), self.momentum[chunk]
            momentum *= factor
            momentum += mean
            momentum.masked_fill_(momentum.abs() < float(TINY), 0)
            mean += momentum * factor
        mean *= float(np.float32(self.config.outer_lr))
        self.anchor[chunk] -= mean

    def _keep(self, payloads: Sequence[Array]) -> None:
        if self._pending is None:
            return
        for cut, payload in zip(self.cuts, payloads, strict=True):
            self._tensor_codec.add(self._there(payload), -1.0, self._pending[cut])
        self.residual = self._pending

    def _there(self, payload: Array) -> Tensor:
        """Copy to the device. The host may overwrite `payload` once `apply` has returned."""
        found = torch.empty(len(payload), dtype=torch.uint8, device=self._device)
        self._staged.store(payload, found)
        self._staged.order_after_stores()
        return found

    def apply(self, gathered: Sequence[Array], num_samples: Sequence[int], rank: int | None) -> None:
        """As `OuterOptimizer.apply`."""
        super().apply(gathered, num_samples, rank)
        self._staged.wait()

    def part(self, vector: Any, first: int, last: int) -> memoryview:
        """As `OuterOptimizer.part`; waits for the device."""
        found: Array = vector[first:last].cpu().numpy()
        return found.data
