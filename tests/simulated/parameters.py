"""Parameters of a simulated replica, in slices: the bits of each, and its truth, the bits without rounding."""

from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Final

NUM_SLICES: Final = 4
"""Number of slices; one is re-synchronised in each step of several numerics classes."""


def _after(before: bytes, *what: bytes) -> bytes:
    return blake2b(b"".join((before, *what)), digest_size=8).digest()


@dataclass(frozen=True, slots=True)
class Parameters:
    """Immutable parameters.

    Attributes:
        truths: the updates that each slice has had; two slices are *near* if these are equal.
        bits: the bits of each slice, which depend also on the hardware.
    """

    truths: tuple[bytes, ...] = (b"",) * NUM_SLICES
    bits: tuple[bytes, ...] = (b"",) * NUM_SLICES

    @property
    def digest(self) -> bytes:
        """Digest of the bits."""
        return blake2b(b"".join(self.bits), digest_size=16).digest()

    def updated(self, result: bytes, hardware: bytes) -> "Parameters":
        """The parameters after an optimizer step."""
        truths = tuple([_after(each, result) for each in self.truths])
        return Parameters(truths, tuple([_after(each, result, hardware) for each in self.bits]))

    def damaged(self, what: str) -> "Parameters":
        """Damaged parameters, with other truths and bits."""
        return self.updated(what.encode(), b"damage")

    def token(self, step: int) -> str:
        """The slice whose turn it is in `step`, as text."""
        index = step % NUM_SLICES
        return f"{index} {self.truths[index].hex()} {self.bits[index].hex()}"

    def is_far(self, token: str) -> bool:
        """Whether a slice from a source has had other updates."""
        index, truth, _ = _parse(token)
        return self.truths[index] != truth

    def taken(self, token: str) -> "Parameters":
        """The parameters with a slice replaced by that of a source."""
        index, truth, bits = _parse(token)
        slices = [list(self.truths), list(self.bits)]
        slices[0][index], slices[1][index] = truth, bits
        return replace(self, truths=tuple(slices[0]), bits=tuple(slices[1]))


def _parse(token: str) -> tuple[int, bytes, bytes]:
    index, truth, bits = token.split(" of ")[0].split(" ")
    return int(index), bytes.fromhex(truth), bytes.fromhex(bits)
