"""The outer step of training in rounds: the payloads of a peer, and the update of the anchor by all payloads.

DiLoCo (Douillard et al. 2023, algorithm 1) with Nesterov's momentum; a residual keeps the part that a codec leaves out,
as in error feedback. Pure arithmetic, in operations that are rounded separately (PROTOCOL.md, "The outer step"):
anchors have the same bits on any processor. Used by peers, simulated workers and the replay of receipts.

For vectors on a device see outer_on_device.py. Leaves out: the end of a round, and the transport of payloads.
"""

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, Final

import numpy as np
import torch
import xxhash

from collectives import Codec, codec_of
from collectives.elements import Array

from ...errors import NonFiniteGradient
from ...given import check_numbers
from ...host.floats import subnormals_kept
from ..tensors.layouts import DEVICES
from ..tensors.summable import AMONG

logger = logging.getLogger("p2p")

MAX_BYTES: Final = 64 << 20
"""Maximum size of a payload; a longer one is split between blocks."""
CHUNK: Final = 1 << 18
"""Elements that are summed and applied at once; a multiple of every codec's block."""
TINY: Final = np.float32(2.0**-100)
"""Smaller momentum is set to zero: without further deltas it would become subnormal, which is slow."""
DTYPES: Final = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterConfig:
    """Settings of the outer step, the same on all peers of a swarm. Plain averaging is `outer_lr=1, momentum=0`."""

    codec: str = "int4"
    """One of `collectives.CODECS`."""

    outer_lr: float = 0.7
    """The multiple of the mean delta that is subtracted from the anchor."""

    momentum: float = 0.5
    """Nesterov's."""

    decay: float = 1.0
    """The factor by which a residual is carried to the next round."""

    def __post_init__(self) -> None:
        codec_of(self.codec)
        check_numbers(outer_lr=self.outer_lr, momentum=self.momentum, decay=self.decay)
        if not 0 < self.outer_lr < math.inf:
            raise ValueError(f"outer_lr must be above 0 and finite, is {self.outer_lr}")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be at least 0 and below 1, is {self.momentum}")
        if not 0 <= self.decay <= 1:
            raise ValueError(f"decay must be between 0 and 1, is {self.decay}")

    def __str__(self) -> str:
        """All that two peers must have in common: equal words mean equal arithmetic."""
        factors = {"outer_lr": self.outer_lr, "momentum": self.momentum, "decay": self.decay}
        return ", ".join([self.codec, *(f"{name} {_as_applied(each)}" for name, each in factors.items())])


class OuterOptimizer:
    """The anchor of one replica, its outer momentum, and the residual of this peer.

    A round, in this order: inner steps change the parameters; `payloads` encodes their delta, and leaves the state
    unchanged; after the commit `apply` updates the anchor, and sets the parameters to it. Without a commit (abort,
    redo,
    withdraw) no call is needed, and the same parameters give the same payloads again.

    Memory: 4 bytes per parameter for the anchor, 4 for the momentum unless that is 0, and with a codec that keeps a
    residual 4 for that and 4 for the next one.

    Attributes:
        anchor: the parameters at the end of the last committed round, as float32, in their order.
        momentum: of the outer step; None if it is 0.
        residual: the sum that committed payloads have left out; None if the codec keeps none.
        cuts: the elements of each payload.
    """

    def __init__(
        self, parameters: Mapping[str, torch.Tensor], config: OuterConfig, *, max_bytes: int = MAX_BYTES
    ) -> None:
        """Take the current values of `parameters` as the anchor.

        Args:
            parameters: by name, on one device. Later calls read and write them.
            config: the same on all peers.
            max_bytes: of one payload.

        Raises:
            ValueError: there is no parameter, or one is on another device, or has a type that float32 cannot represent.
        """
        check_parameters(parameters)
        self.config = config
        self.codec: Codec = codec_of(config.codec)
        self._parameters = dict(parameters)
        count = sum(each.numel() for each in parameters.values())
        self.anchor = self._zeros(count)
        self.momentum = self._zeros(count) if config.momentum else None
        self.residual = self._zeros(count) if self.codec.keeps_residual else None
        self._pending: Any = None
        self.reset_anchor()
        self._delta_norm = 0.0
        self._has_warned = False
        self.cuts = cuts_of(self.codec, count, max_bytes)

    # Vectors on the host.

    def _zeros(self, count: int) -> Any:
        return np.zeros(count, np.float32)

    def _flat(self, parameter: torch.Tensor) -> Any:
        return _flat(parameter)

    def _tensor(self, vector: Any) -> torch.Tensor:
        """`vector` as a tensor that shares its memory."""
        return torch.from_numpy(vector)

    # One round.

    def payloads(self) -> list[Array]:
        """Encode the residual plus the change of the parameters since the start of the round.

        Raises:
            NonFiniteGradient: a parameter, which is named, has become NaN or infinity. Nothing is encoded. If only the
                sum of change and residual is infinite, the residual is set to zero.
        """
        total = np.empty_like(self.anchor)
        squares, lost = 0.0, []
        with np.errstate(all="ignore"):
            for name, parameter, piece in self._pieces():
                delta = np.subtract(_rounded(self.anchor[piece], parameter.dtype), _flat(parameter), out=total[piece])
                self._check_delta(name, bool(np.isfinite(delta).all()))
                norm = float(torch.linalg.vector_norm(torch.from_numpy(delta), dtype=torch.float64))
                if 0 < norm <= self.codec.lost * math.sqrt(delta.size) and (np.abs(delta) <= self.codec.lost).all():
                    lost.append(name)
                squares += norm**2
                if self.residual is not None:
                    delta += np.multiply(self.residual[piece], np.float32(self.config.decay))
                    self._check_total(name, bool(np.isfinite(delta).all()))
        self._warn_of(lost)
        self._delta_norm = math.sqrt(squares)
        self._pending = None if self.residual is None else total
        return [self.codec.encode(total[cut]) for cut in self.cuts]

    def _check_delta(self, name: str, is_finite: bool) -> None:
        if not is_finite:
            raise NonFiniteGradient(f"{name} became NaN or infinity on this peer in this round")

    def _check_total(self, name: str, is_finite: bool) -> None:
        """Drop the residual and raise if the total is not finite: it would stay so in each later round."""
        if not is_finite:
            assert self.residual is not None
            self.residual[:] = 0
            self._pending = None
            raise NonFiniteGradient(
                f"the change of {name} in this round and the residual of {self.config.codec}, each finite, have an "
                "infinite sum; this peer drops its residual of all parameters"
            )

    def _warn_of(self, lost: Sequence[str]) -> None:
        """Warn, once, of parameters whose changes the codec rounds to zero without keeping them."""
        if lost and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "%s encodes changes of %.1e or less as 0 and does not keep them: all changes of a round are that small "
                "in %s and in %d other parameters. Train them with a higher learning rate or with more inner steps "
                "per round, or pass another codec to p2p.DiLoCo",
                self.config.codec,
                self.codec.lost,
                lost[0],
                len(lost) - 1,
            )

    def zero_payloads(self) -> list[Array]:
        """Payloads of zeros, for a peer that adds no samples."""
        self._pending = None
        return [np.zeros(self.codec.num_bytes(cut.stop - cut.start), np.uint8) for cut in self.cuts]

    def apply(self, gathered: Sequence[Array], num_samples: Sequence[int], rank: int | None) -> None:
        """Update the anchor by the committed payloads, and set the parameters to it.

        The residual becomes the part that this peer's payloads left out, if its samples count.

        Args:
            gathered: for each of `cuts` (world_size, bytes) of uint8: a row for each rank.
            num_samples: of each rank, from the receipt. The row of a rank without samples is ignored.
            rank: of this peer; None: it is no member.
        """
        total = sum(num_samples)
        weights = [(row, number / total) for row, number in enumerate(num_samples) if number]
        with np.errstate(all="ignore"), subnormals_kept():
            for cut, rows in zip(self.cuts, gathered, strict=True):
                self._add_up(cut, rows, weights)
            if rank is not None and num_samples[rank]:
                self._keep([rows[rank] for rows in gathered])
            self._pending = None
            self.restore()

    def _add_up(self, cut: slice, rows: Array, weights: Sequence[tuple[int, float]]) -> None:
        """Update a part of the anchor by the payloads of these rows."""
        for chunk, part in self._chunks(cut, CHUNK):
            mean = np.zeros(chunk.stop - chunk.start, np.float32)
            for row, weight in weights:
                self.codec.add(rows[row, part], weight, mean)
            if weights:
                self._step(chunk, mean)

    def _chunks(self, cut: slice, length: int) -> Iterator[tuple[slice, slice]]:
        """Pieces of `cut`, and their positions in its payload."""
        for begin in range(cut.start, cut.stop, length):
            end = min(begin + length, cut.stop)
            first = (begin - cut.start) // self.codec.block_length * self.codec.block_bytes
            yield slice(begin, end), slice(first, first + self.codec.num_bytes(end - begin))

    def _step(self, chunk: slice, mean: Any) -> None:
        if self.momentum is not None:
            factor, momentum = np.float32(self.config.momentum), self.momentum[chunk]
            momentum *= factor
            momentum += mean
            momentum[np.abs(momentum) < TINY] = 0
            mean += momentum * factor
        mean *= np.float32(self.config.outer_lr)
        self.anchor[chunk] -= mean

    def _keep(self, payloads: Sequence[Array]) -> None:
        """Set the residual to the part that `payloads` leave out; not if a state was loaded since they were encoded."""
        if self._pending is None:
            return
        for cut, payload in zip(self.cuts, payloads, strict=True):
            self.codec.add(payload, -1.0, self._pending[cut])
        self.residual = self._pending

    # Between rounds.

    def reset_anchor(self) -> None:
        """Take the current parameters as the anchor; reset momentum and residual."""
        for _, parameter, piece in self._pieces():
            self.anchor[piece] = self._flat(parameter)
        for vector in (self.momentum, self.residual):
            if vector is not None:
                vector[:] = 0
        self._pending = None

    def copy_changes_to_anchor(self) -> bool:
        """Copy changes of the parameters since the end of the round to the anchor; keep momentum and residual.

        A parameter that is not finite is left to `payloads`, which names it. Waits for a device, once.

        Returns:
            Whether a parameter was changed.
        """
        pairs = [(each.detach().reshape(-1), self._tensor(self.anchor[piece])) for _, each, piece in self._pieces()]
        differ = [(anchor.to(now.dtype) != now).any() & now.isfinite().all() for now, anchor in pairs]
        changed = torch.stack(differ).tolist()
        for now, anchor in compress(pairs, changed):
            torch.where(anchor.to(now.dtype) != now, now.to(torch.float32), anchor, out=anchor)
        return any(changed)

    def restore(self) -> None:
        """Set the parameters to the anchor, rounded to their types."""
        with torch.no_grad():
            for _, parameter, piece in self._pieces():
                parameter.copy_(self._tensor(self.anchor[piece]).view(parameter.shape))

    def part(self, vector: Any, first: int, last: int) -> memoryview:
        """The bytes of a range of elements of a vector."""
        part: memoryview = vector[first:last].data
        return part

    def digest(self, turn: int, num_turns: int) -> bytes:
        """Digest of a part of the anchor and of the momentum, of `num_turns` parts."""
        digest = xxhash.xxh3_128()
        for vector in (self.anchor, self.momentum):
            if vector is not None:
                first, last = (len(vector) * each // num_turns for each in (turn, turn + 1))
                digest.update(self.part(vector, first, last))
        return digest.digest()

    def copy_parameters(self) -> list[torch.Tensor]:
        """Copies of the current parameters."""
        return [each.detach().clone() for each in self._parameters.values()]

    def set_parameters(self, values: Sequence[torch.Tensor]) -> None:
        """Set the parameters to the result of `copy_parameters`."""
        with torch.no_grad():
            for parameter, value in zip(self._parameters.values(), values, strict=True):
                parameter.copy_(value)

    def tensors(self) -> dict[str, torch.Tensor]:
        """The anchor by name, in the shapes and types of the parameters; for float32 without a copy."""
        return {
            name: self._tensor(self.anchor[piece]).to(parameter.dtype).view(parameter.shape)
            for name, parameter, piece in self._pieces()
        }

    def residual_ratio(self) -> float:
        """Norm of the residual, which is lost when this peer leaves, over that of the last delta; 0: no residual."""
        if self.residual is None or not self._delta_norm:
            return 0.0
        norm = torch.linalg.vector_norm(self._tensor(self.residual), dtype=torch.float64)
        return float(norm) / self._delta_norm

    def state_dict(self) -> dict[str, Any]:
        """The vectors that a joiner receives. Inner steps do not change their memory."""
        return {
            "anchor": self._tensor(self.anchor),
            "momentum": None if self.momentum is None else self._tensor(self.momentum),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from another replica's anchor and momentum, without a residual.

        Raises:
            ValueError: they do not fit; the state is unchanged.
        """
        ours = self.state_dict()
        theirs = {name: state_dict.get(name) for name in ours}
        for name, tensor in ours.items():
            other = theirs[name]
            if _shape(other) != _shape(tensor):
                raise ValueError(f"{name} is {_shape(other)} in the state, but {_shape(tensor)} here")
        for name, tensor in ours.items():
            if tensor is not None:
                tensor.copy_(theirs[name])
        if self.residual is not None:
            self.residual[:] = 0
        self._pending = None
        self.restore()

    def _pieces(self) -> Iterator[tuple[str, torch.Tensor, slice]]:
        begin = 0
        for name, parameter in self._parameters.items():
            yield name, parameter, slice(begin, begin + parameter.numel())
            begin += parameter.numel()


def check_parameters(parameters: Mapping[str, torch.Tensor]) -> None:
    """Raise ValueError if there is no parameter, or one of an unsupported type or device."""
    for name, each in parameters.items():
        if each.device.type not in DEVICES or each.dtype not in DTYPES:
            what = f"{_shape(each)} on {each.device}"
            raise ValueError(f"parameter {name} is {what}: rounds need float32, bfloat16 or float16, on {AMONG}")
    if not parameters:
        raise ValueError("there are no parameters to train")


def cuts_of(codec: Codec, count: int, max_bytes: int = MAX_BYTES) -> list[slice]:
    """The range of elements of each payload, of `count` in all."""
    step = max(max_bytes // codec.block_bytes, 1) * codec.block_length
    return [slice(begin, min(begin + step, count)) for begin in range(0, count, step)]


def payload_bytes(codec: str, count: int) -> int:
    """Bytes that a peer sends to each other peer in an exchange of `count` parameters."""
    found = codec_of(codec)
    return sum(found.num_bytes(cut.stop - cut.start) for cut in cuts_of(found, count))


def _flat(parameter: torch.Tensor) -> Array:
    """The values as float32, in index order."""
    values: Array = parameter.detach().reshape(-1).to(torch.float32).numpy()
    return values


def _rounded(values: Array, dtype: torch.dtype) -> Array:
    """`values` rounded to `dtype`, as float32."""
    return values if dtype == torch.float32 else _flat(torch.from_numpy(values).to(dtype))


def _as_applied(factor: float) -> str:
    """The fewest digits that tell this factor, rounded to float32, from all others."""
    return np.format_float_positional(np.float32(factor), trim="-")


def _shape(tensor: torch.Tensor | None) -> str:
    return "missing" if tensor is None else f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
