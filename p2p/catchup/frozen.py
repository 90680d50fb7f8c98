"""Frozen parameters, as a backbone under adapters: who joins has mostly loaded the same, and is not sent them (R30).

Buffers of whole numbers, as the weights of quantised layers, are among them (training/state/module_state.py).

A joiner says the digest of those that it has. Who gives the state compares it with that of its own, as they are when
the state is copied, whatever has changed them before; if they are the same, their bytes stay away, else that copy is
given up, and the joiner gets another one, of all. Before it loads a state without them it looks at its own once more,
since its own forward pass may change them (a momentum encoder), and asks for all if it has.
All or nothing: one parameter that differs has all of them sent.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import Final

import xxhash

from ..net.parcels import Raw

LEAST_BYTES: Final = 64 << 10
"""A parameter of fewer is always sent."""

_PART: Final = struct.Struct("<IQ")


class FrozenDiffer(Exception):
    """Who asked for a state has other frozen parameters than its donor, or has them no more."""


def begun(parts: Iterable[tuple[int, int]]) -> xxhash.xxh3_128:
    """What the bytes of frozen parameters are to be added to, in order: of tensors with these numbers and lengths."""
    return xxhash.xxh3_128(b"".join([_PART.pack(*part) for part in parts]))


def digest_of(parts: Sequence[tuple[int, int]], raws: Iterable[Raw]) -> bytes:
    """16 bytes: of the frozen parameters with these numbers in a state and lengths in bytes; empty: there are none."""
    if not parts:
        return b""
    found = begun(parts)
    for raw in raws:
        found.update(raw)
    return found.digest()
