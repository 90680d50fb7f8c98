"""A collective operation as data: what one rank sends, receives and reduces.

A bucket is cut into chunks; a schedule lists one rank's transfers of chunks. Semantics of the list:

- A chunk starts as the rank's own input. If one of its REDUCEs names the rank itself, it starts empty instead, and the
  input is added there, in the order of the list: so every rank can add in rank order.
- REDUCE adds what arrives from `peer` to the chunk (or takes the minimum or maximum), RECV replaces the chunk by it.
  Both *write* the chunk, into memory apart from the input. The writes of one chunk take effect in listed order, in
  whatever order data arrives. Half types are added up in float32, and rounded where the list sends the chunk or ends.
- SEND sends the chunk as left by the writes listed before it. It runs as soon as all transfers in `after` are finished,
  and waits for nothing else. So `after` must name the last write before it, if there is one.
- The payload of a SEND is lent until it has arrived, so no later write may change it before: the next write of the
  chunk must depend on its receipt. If the SEND `is_copied`, the bytes are copied when it runs, and may be overwritten
  at once; it waits only for the last write of its chunk.
- `after` has indices of the same list. A transfer of the same chunk is waited for segment by segment, which makes a
  pipeline; any other transfer as a whole.
- The i-th SEND to peer p corresponds to the i-th RECV or REDUCE from this rank in p's schedule. That i is the number of
  the transfer on the wire.

`verification.verify` proves that the schedules of all ranks fit together.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import count


class Kind(Enum):
    SEND = "send"
    RECV = "recv"
    REDUCE = "reduce"


@dataclass(frozen=True, slots=True)
class Transfer:
    """One chunk that is sent to, or received from, one peer."""

    kind: Kind
    peer: int
    """A rank. The rank itself, in a REDUCE only: the own input is added here."""

    chunk: int
    after: tuple[int, ...] = ()
    """Earlier entries that a SEND waits for. Other transfers wait for the arrival of their data."""

    is_copied: bool = False
    """A SEND only: the chunk may be overwritten while the payload is in flight."""

    def __post_init__(self) -> None:
        if self.after and self.kind is not Kind.SEND:
            raise ValueError(f"only a SEND waits for other transfers, got {self}")
        if self.is_copied and self.kind is not Kind.SEND:
            raise ValueError(f"only what a SEND sends is copied, got {self}")


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """One rank's part of an operation.

    Compared by identity, which makes it a cheap key: build a schedule once and keep it.
    """

    chunks: tuple[float, ...]
    """The weight of each chunk; `partition.split_by_weight` converts weights into bounds."""

    transfers: tuple[Transfer, ...]

    partial: frozenset[int] = frozenset()
    """Chunks that end as partial sums on this rank, since others continue them: a mean is not divided there."""


Build = Callable[[int, int], Schedule]
"""From rank and world size to the schedule of the rank."""


class TransferList:
    """Builds a schedule. Each SEND waits for the last write of its chunk that is listed before it, if any."""

    def __init__(self) -> None:
        self._transfers: list[Transfer] = []
        self._written: dict[int, tuple[int, ...]] = {}

    def send(self, peer: int, chunk: int, *, is_copied: bool = False) -> None:
        self._transfers.append(Transfer(Kind.SEND, peer, chunk, self._written.get(chunk, ()), is_copied))

    def recv(self, peer: int, chunk: int) -> None:
        self._write(Kind.RECV, peer, chunk)

    def reduce(self, peer: int, chunk: int) -> None:
        self._write(Kind.REDUCE, peer, chunk)

    def schedule(self, chunks: tuple[float, ...], partial: Iterable[int] = ()) -> Schedule:
        """The schedule, with the weights of the chunks, and those that end as partial sums."""
        return Schedule(chunks, tuple(self._transfers), frozenset(partial))

    def _write(self, kind: Kind, peer: int, chunk: int) -> None:
        self._written[chunk] = (len(self._transfers),)
        self._transfers.append(Transfer(kind, peer, chunk))


def even_chunks(num_chunks: int) -> tuple[float, ...]:
    """Weights of chunks of equal size."""
    return (1,) * num_chunks


def peers_after(rank: int, world_size: int) -> Sequence[int]:
    """All other ranks, the next one first: each rank starts with another peer, so none receives from all at once."""
    return [(rank + distance) % world_size for distance in range(1, world_size)]


def wire_numbers(transfers: Sequence[Transfer]) -> list[int]:
    """The number of each transfer on the wire: its index among the SENDs to its peer, or the receipts from it."""
    counters: defaultdict[tuple[int, bool], count[int]] = defaultdict(count)
    return [next(counters[transfer.peer, transfer.kind is Kind.SEND]) for transfer in transfers]


def only_chunks(schedule: Schedule, kept: Sequence[int]) -> Schedule:
    """The rest of `schedule` if all chunks but those in `kept` are empty; these are renumbered."""
    chunks = {chunk: number for number, chunk in enumerate(kept)}
    indices = [index for index, each in enumerate(schedule.transfers) if each.chunk in chunks]
    numbers = {index: number for number, index in enumerate(indices)}
    transfers = []
    for index in indices:
        transfer = schedule.transfers[index]
        after = tuple(numbers[earlier] for earlier in transfer.after if earlier in numbers)
        transfers.append(replace(transfer, chunk=chunks[transfer.chunk], after=after))
    partial = frozenset(chunks[chunk] for chunk in schedule.partial & chunks.keys())
    return Schedule(tuple(schedule.chunks[chunk] for chunk in kept), tuple(transfers), partial)
