"""Which donor sends which chunk of a state, and after which step. Pure; the bytes are in donor.py.

A joiner asks one member for the state: the *first* donor. If members on other hosts have the same bits, the first
donor asks each of them for a *share* of the chunks: tensors that all members have alike, cut into segments. All copy
the state after the same step. The first donor sends everything else, and the digest of every chunk, and keeps its copy
for chunks that do not arrive, or differ. The joiner's side is chunk_tracker.py.

Leaves out: shares of unequal sizes, for unequal lines; a replacement for a first donor that dies.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Final

from gossip import Member, View

from ..net.parcels import Chunk, ShareRequest

LEAST_BYTES: Final = 64 << 10
"""Smaller tensors come from the first donor."""

MOST_CHUNKS: Final = 1 << 16
"""Most chunks whose digests fit into a record; a state with more of them comes from one donor."""

MOST_PARTS: Final = 1 << 16
"""Most parts whose lengths fit into a record."""

MOST_DONORS: Final = 16

MOST_WISHES: Final = 64
"""Most requests for shares that are kept until they can be answered."""

_PART: Final = struct.Struct("<IQ")


def pack_parts(parts: Sequence[tuple[int, int]]) -> bytes:
    """Numbers of parts that are cut into chunks, and their lengths in bytes."""
    return b"".join([_PART.pack(*part) for part in parts])


def unpack_parts(packed: bytes) -> list[tuple[int, int]]:
    """The inverse of `pack_parts`.

    Raises:
        ValueError: `packed` is no list of parts.
    """
    if len(packed) % _PART.size:
        raise ValueError(f"{len(packed)} bytes are no list of parts")
    return [(part, size) for part, size in _PART.iter_unpack(packed)]


def chunks_of(parts: Sequence[tuple[int, int]], chunk_bytes: int) -> list[Chunk]:
    """The chunks of `parts`, in order."""
    return [Chunk(part, number) for part, size in parts for number in range(-(-size // chunk_bytes))]


def donors_of(view: View, first: Member, host: str, has_state: Callable[[Member], bool]) -> tuple[Member, ...]:
    """The donors of a state for a joiner on `host` that has asked `first`; `first` leads.

    One member per host, since members of one host share its line, and only members of the numerics class of `first`,
    whose bits they have; in rank order from `first` on. Only `first` if it is on `host` itself, since shared memory is
    faster than any line.

    Args:
        view: installed at `first`.
        first: has a seat in it.
        host: as in contacts; empty: not known.
        has_state: whether a member is alive and has the state, as far as `first` knows.
    """
    rank = view.members.index(first)
    seats = [*view.seats[rank:], *view.seats[:rank]]
    hosts, donors = {seats[0].contact.host}, [first]
    if host in hosts:
        return (first,)
    for seat in seats[1:]:
        is_alike = seat.numerics == seats[0].numerics
        if is_alike and seat.contact.host not in hosts and has_state(seat.member) and len(donors) < MOST_DONORS:
            hosts.add(seat.contact.host)
            donors.append(seat.member)
    return tuple(donors)


class ShareRequests:
    """Shares that other donors have asked this peer for."""

    def __init__(self) -> None:
        self.waiting: list[ShareRequest] = []

    def ask(self, wish: ShareRequest) -> None:
        """Another donor asks. The last of several requests for one joiner counts."""
        self.waiting = [known for known in self.waiting if known.observer != wish.observer][-MOST_WISHES + 1 :]
        self.waiting.append(wish)

    def forget(self, member: Member) -> None:
        """`member` is gone: drop its requests, and those for its state."""
        self.waiting = [wish for wish in self.waiting if member not in (wish.first, wish.observer)]

    def due(self, done: int, *, is_complete: bool, is_withheld: bool) -> list[tuple[ShareRequest, bool]]:
        """Requests to be answered now, and whether with the share: only after the very step that was asked for.

        Args:
            done: the last committed step.
            is_complete: the state after it may be copied now.
            is_withheld: that state may not be copied before the next commit.
        """
        due: list[tuple[ShareRequest, bool]] = []
        for wish in [*self.waiting]:
            is_given = is_complete and wish.step == done
            if is_given or wish.step < done or wish.step > done + 1 or (is_withheld and wish.step == done):
                self.waiting.remove(wish)
                due.append((wish, is_given))
        return due
