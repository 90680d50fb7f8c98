"""The codecs on tensors of any device: a payload decodes to the same bits as in codec.py.

Each operation must round separately, so fused kernels are avoided, and divisors are tensors: CUDA multiplies by the
reciprocal of a Python number. Encoded payloads are the same, too, so devices cannot be told apart.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from collectives.codec import Codec
from collectives.dense import BLOCK, HALF, MOST, ZERO_POINT
from collectives.scales import LARGEST, LEAST, NORMAL, folded
from collectives.sparse import BLOCK as SPARSE_BLOCK

PIECE: Final = 1 << 22
"""Elements that are encoded or added at once; temporary tensors take a few times their memory."""


class TensorForm(Protocol):
    """Like `codec.Format`, on tensors of one device."""

    def encode(self, blocks: Tensor, rows: Tensor, num_elements: int) -> None:
        """Write the bytes of each of `blocks` into its row."""

    def add(self, rows: Tensor, weight: float, blocks: Tensor) -> None:
        """Add `weight`, a float32, times the decoded `rows` to `blocks`."""


class TensorCodec:
    """One of `CODECS`, on tensors."""

    def __init__(self, codec: Codec, piece: int = PIECE) -> None:
        """The equivalent of `codec`. `piece`: a multiple of each format's `length`."""
        self.codec, self._piece = codec, piece
        self._form = FORMS[codec.name]

    def encode(self, values: Tensor) -> Tensor:
        """Like `Codec.encode`; `values` must be finite, which is not checked."""
        payload = values.new_empty(self.codec.num_bytes(len(values)), dtype=torch.uint8)
        for begin, end, rows in self._pieces(len(values), payload):
            self._form.encode(self._blocks(values[begin:end]), rows, end - begin)
        return payload

    def add(self, payload: Tensor, weight: float, out: Tensor) -> None:
        """Like `Codec.add`."""
        factor = float(np.float32(weight))
        for begin, end, rows in self._pieces(len(out), payload):
            piece = out[begin:end]
            blocks = self._blocks(piece)
            self._form.add(rows, factor, blocks)
            if blocks.numel() > len(piece):  # a padded copy
                piece.copy_(blocks.view(-1)[: len(piece)])

    def _pieces(self, count: int, payload: Tensor) -> Iterator[tuple[int, int, Tensor]]:
        length = self.codec.block_length
        rows = payload.view(-1, self.codec.block_bytes)
        whole = count - count % length
        for begin in range(0, whole, self._piece):
            end = min(begin + self._piece, whole)
            yield begin, end, rows[begin // length : end // length]
        if whole < count:
            yield whole, count, rows[-1:]

    def _blocks(self, piece: Tensor) -> Tensor:
        missing = -len(piece) % self.codec.block_length
        if missing:
            piece = torch.cat([piece, piece.new_zeros(missing)])
        return piece.view(-1, self.codec.block_length)


class _Float32:
    def encode(self, blocks: Tensor, rows: Tensor, num_elements: int) -> None:
        rows.copy_(blocks.contiguous().view(torch.uint8))

    def add(self, rows: Tensor, weight: float, blocks: Tensor) -> None:
        values = rows.contiguous().view(torch.float32) * weight
        blocks += values


class _Int4:
    def encode(self, blocks: Tensor, rows: Tensor, num_elements: int) -> None:
        scales = _put_scales(_rounded_up(_divided(blocks.abs().amax(1, keepdim=True), float(MOST))), rows)
        inverse = torch.where(scales > 0, torch.ones_like(scales) / scales, torch.zeros_like(scales))
        scaled = (blocks * inverse).clamp_(-float(MOST), float(MOST)).round_()
        pairs = scaled[:, HALF:] * 16
        pairs += scaled[:, :HALF]
        pairs += 17 * ZERO_POINT
        rows[:, 2:] = pairs.to(torch.uint8)

    def add(self, rows: Tensor, weight: float, blocks: Tensor) -> None:
        codes = torch.cat([rows[:, 2:] & 15, rows[:, 2:] >> 4], 1)
        values = codes.to(torch.float32)
        values -= ZERO_POINT
        values *= _scales_of(rows, 1)
        values *= weight
        blocks += values


class _Sign:
    def encode(self, blocks: Tensor, rows: Tensor, num_elements: int) -> None:
        numbers = blocks.new_full((len(blocks), 1), BLOCK)
        numbers[-1] -= blocks.numel() - num_elements
        _put_scales(_folded(blocks.abs())[:, None] / numbers, rows)
        bits = (blocks < 0).view(len(blocks), -1, 8).to(torch.uint8) << _eight(blocks)
        rows[:, 2:] = bits.sum(2, dtype=torch.uint8)

    def add(self, rows: Tensor, weight: float, blocks: Tensor) -> None:
        bits = (rows[:, 2:, None] >> _eight(rows)) & 1
        values = bits.view(len(rows), -1).to(torch.float32)
        values *= -2
        values += 1
        values *= _scales_of(rows, 1) * weight
        blocks += values


class _Sparse:
    def __init__(self, group: int) -> None:
        self._group = group
        self._place_bits = group.bit_length() - 1
        self._num_levels = 1 << (7 - self._place_bits)

    def encode(self, blocks: Tensor, rows: Tensor, num_elements: int) -> None:
        groups = blocks.reshape(-1, self._group)
        magnitudes, numbers = groups.abs(), torch.arange(self._group, device=blocks.device)
        is_largest = magnitudes == magnitudes.amax(1, keepdim=True)
        places = torch.where(is_largest, numbers, self._group).amin(1, keepdim=True)  # the first of them
        values = groups.gather(1, places).view(len(blocks), -1)
        sizes = values.abs()
        number = (num_elements - 1) % SPARSE_BLOCK // self._group + 1
        scales = _put_scales(self._scales(sizes, number), rows)
        low, high = scales[:, :1], scales[:, 1:]
        levels = _nearest(sizes, low, high, self._num_levels - 1)
        sent = levels << 1 | (values < 0).to(torch.uint8)
        rows[:, 4:] = sent << self._place_bits | places.view(sent.shape).to(torch.uint8)

    def add(self, rows: Tensor, weight: float, blocks: Tensor) -> None:
        sent = rows[:, 4:]
        products = (self._values(rows) * weight).gather(1, (sent >> self._place_bits).long())
        where = (sent & (self._group - 1)).long()
        where += torch.arange(0, SPARSE_BLOCK, self._group, device=rows.device)
        blocks.scatter_(1, where, blocks.gather(1, where) + products)

    def _scales(self, sizes: Tensor, number: int) -> Tensor:
        if self._num_levels > 2:
            return torch.stack([sizes.amin(1), sizes.amax(1)], 1)
        ordered = sizes.sort(1).values
        half, large = sizes.shape[1] // 2, number - number // 2
        last = ordered[-1]
        last[:half] = last[half - large : 2 * half - large].clone()
        last[half : 2 * half - large] = 0
        numbers = sizes.new_full((len(sizes), 2), half)
        numbers[-1, 0] = max(number // 2, 1)
        numbers[-1, 1] = large
        means = _folded(ordered.view(-1, half)).view(-1, 2) / numbers
        means[-1, 0] = means[-1].amin()
        return means

    def _values(self, rows: Tensor) -> Tensor:
        scales = _scales_of(rows, 2)
        low, high = scales[:, :1], scales[:, 1:]
        levels = (high - low) * torch.arange(self._num_levels, device=rows.device, dtype=torch.float32)
        levels = _divided(levels, self._num_levels - 1)
        levels += low
        levels = levels.to(torch.float16).to(torch.float32)
        return torch.stack([levels, -levels], 2).view(len(rows), -1)


FORMS: Final[Mapping[str, TensorForm]] = MappingProxyType(
    {"float32": _Float32(), "int4": _Int4(), "sign": _Sign(), "sparse16": _Sparse(16), "sparse64": _Sparse(64)}
)


def _divided(values: Tensor, number: float) -> Tensor:
    return values / values.new_full((), number)


def _rounded_up(scales: Tensor) -> Tensor:
    multiples = (scales.clamp(max=float(NORMAL)) / float(LEAST)).ceil_()  # a power of two divides exactly
    return torch.maximum(scales, multiples * float(LEAST))


def _put_scales(scales: Tensor, rows: Tensor) -> Tensor:
    halves = scales.clamp(max=float(LARGEST)).to(torch.float16).contiguous()
    rows[:, : 2 * scales.shape[1]] = halves.view(torch.uint8)
    return halves.to(torch.float32)


def _scales_of(rows: Tensor, number: int) -> Tensor:
    return rows[:, : 2 * number].contiguous().view(torch.float16).to(torch.float32)


def _nearest(sizes: Tensor, low: Tensor, high: Tensor, top: int) -> Tensor:
    span = high - low
    scaled = sizes - low
    scaled *= torch.where(span > 0, span.new_full((), top) / span, torch.zeros_like(span))
    return scaled.round_().clamp_(0, top).to(torch.uint8)


def _folded(values: Any) -> Tensor:
    return cast(Tensor, folded(values))  # slices and sums are written the same way for tensors


def _eight(like: Tensor) -> Tensor:
    return torch.arange(8, dtype=torch.uint8, device=like.device)
