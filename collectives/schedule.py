"""A collective operation as data: what one rank sends, receives and reduces.

A bucket is cut into chunks; a schedule lists one rank's transfers of chunks. What the list means:

- A chunk starts as the rank's own input. If one of its REDUCEs names the rank itself, it starts empty instead,
  and the input takes its place there, in the order of the list: so every rank can add in rank order.
- REDUCE adds what arrives from `peer` to the chunk (or takes the least, or the greatest), RECV replaces the chunk by
  it. Both *write* the chunk, into memory apart from the input. The writes of one chunk take effect in listed order,
  whatever arrives first. Half types are added up in float32, and rounded where the list sends the chunk or ends.
- SEND sends the chunk as the writes listed before it left it. It runs as soon as all transfers in `after` are
  finished, and nothing else holds it back. So `after` has to name the last write before it, if there is one.
- What a SEND sends is lent until it has arrived, so no later write may reach it before: the next write of the chunk has
  to depend on its receipt. Of a SEND that `is_copied` the bytes are copied as it runs, and may be overwritten at once;
  it waits for nothing but the last write of its chunk.
- `after` counts entries of the same list. A transfer of the same chunk is waited for segment by segment, which
  makes a pipeline; any other transfer as a whole.
- The i-th SEND to peer p is the i-th RECV or REDUCE from this rank in p's schedule. That i is the number by
  which the two know the transfer on the wire.

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
    """One chunk that goes to, or comes from, one peer."""

    kind: Kind
    peer: int
    """A rank. The rank itself, in a REDUCE only: the own input is added here."""

    chunk: int
    after: tuple[int, ...] = ()
    """Earlier entries that a SEND waits for. The others wait for what arrives."""

    is_copied: bool = False
    """A SEND only: what it sends may be overwritten while it is on its way."""

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
    """The weight of each chunk; `partition.split_by_weight` turns them into bounds."""

    transfers: tuple[Transfer, ...]

    partial: frozenset[int] = frozenset()
    """Chunks that the rank is left with partial sums of, which others go on with: a mean is not divided there."""


Build = Callable[[int, int], Schedule]
"""From rank and world size."""


class TransferList:
    """Lists what one rank does. Each SEND waits for the last write into its chunk that is listed before it, if any."""

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
        """All of it, with the weights of the chunks, and which end as partial sums."""
        return Schedule(chunks, tuple(self._transfers), frozenset(partial))

    def _write(self, kind: Kind, peer: int, chunk: int) -> None:
        self._written[chunk] = (len(self._transfers),)
        self._transfers.append(Transfer(kind, peer, chunk))


def even_chunks(num_chunks: int) -> tuple[float, ...]:
    """Weights of chunks of equal size."""
    return (1,) * num_chunks


def peers_after(rank: int, world_size: int) -> Sequence[int]:
    """All other ranks, the next one first: if each rank starts elsewhere, no receiver is hit by all at once."""
    return [(rank + distance) % world_size for distance in range(1, world_size)]


def wire_numbers(transfers: Sequence[Transfer]) -> list[int]:
    """The number of each transfer on the wire: SENDs to a peer are counted, and so is what comes from it."""
    counters: defaultdict[tuple[int, bool], count[int]] = defaultdict(count)
    return [next(counters[transfer.peer, transfer.kind is Kind.SEND]) for transfer in transfers]


def only_chunks(schedule: Schedule, kept: Sequence[int]) -> Schedule:
    """What is left of `schedule` where all chunks but those in `kept` are empty; these are counted anew."""
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
