"""Frozen parameters, such as a backbone under adapters: not sent to a joiner that has loaded the same ones (R30).

Integer buffers, such as the weights of quantised layers, count as frozen (training/state/module_state.py).

A joiner sends the digest of its frozen parameters. The donor compares it with the digest of its own, taken when the
state is copied, whatever changed them before. If both are equal, the bytes are left out; else that copy is dropped, and
the joiner gets another one with all parameters. Before the joiner loads a state without them it digests its own once
more, since its forward passes may change them (a momentum encoder), and asks for all of them if they have changed.
All or nothing: if one parameter differs, all are sent.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import Final

import xxhash

from ..net.parcels import Raw

LEAST_BYTES: Final = 64 << 10
"""Smaller parameters are always sent."""

_PART: Final = struct.Struct("<IQ")


class FrozenDiffer(Exception):
    """The requester of a state has frozen parameters other than its donor's, or has changed them since it asked."""


def begun(parts: Iterable[tuple[int, int]]) -> xxhash.xxh3_128:
    """A hash to be updated with the bytes of frozen parameters, in order; `parts`: their numbers and lengths."""
    return xxhash.xxh3_128(b"".join([_PART.pack(*part) for part in parts]))


def digest_of(parts: Sequence[tuple[int, int]], raws: Iterable[Raw]) -> bytes:
    """Digest of frozen parameters, 16 bytes; `parts`: numbers in the state, lengths in bytes. Empty without parts."""
    if not parts:
        return b""
    found = begun(parts)
    for raw in raws:
        found.update(raw)
    return found.digest()
