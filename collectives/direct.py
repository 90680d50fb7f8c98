"""All-reduce and reduce-scatter with an owner per chunk: it receives all inputs, and sends the sum to all."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Final

from collectives.schedule import Schedule, TransferList, even_chunks, peers_after

PARTS: Final = 256
"""Units into which a bucket is divided among the ranks."""


def direct_shares(rates: Sequence[int]) -> tuple[int, ...]:
    """How many of the `PARTS` of a bucket each rank should own, given the rates of the lines, so that all end together.

    A rank that owns the share f carries S(1 + f(n-2)) bytes each way. A rank that is so slow that it would need a
    negative share owns nothing; the others then have until that rank ends, and own shares in proportion to what they
    can carry until then. Rates: above 0, in any common unit; integers, so that all ranks get the same result.
    """
    n = len(rates)
    if n < 3:  # with any shares each line carries the whole bucket
        return (1,) * n
    taking = sorted(range(n), key=lambda rank: (-rates[rank], rank))
    while (took := Fraction(n - 2 + len(taking), sum(rates[rank] for rank in taking))) * rates[taking[-1]] < 1:
        taking.pop()
    took = max(took, Fraction(1, min(rates)))
    able = [max(took * rate - 1, Fraction(0)) for rate in rates]
    parts = [int(PARTS * each / sum(able)) for each in able]
    parts[taking[0]] += PARTS - sum(parts)
    return tuple(parts)


def direct_all_reduce(rank: int, world_size: int, weights: Sequence[float] = ()) -> Schedule:
    """Send each chunk to its owner, add up the own chunk in rank order, send the sum to all.

    For n ranks and S bytes: two hops; each rank sends 2S(n-1)/n bytes, the least possible. The bits are those of
    `one_shot_all_reduce` for any size and chunks: half types are rounded once, before the sum is sent.

    Chunk sizes are in proportion to the weights of the ranks; without weights they are equal. A rank that owns the
    share f of the bucket sends S(1 - f) + Sf(n-1) bytes, so a rank with a slow link should own less. The largest owners
    are sent to first: their sums fill the lines while the others still add up.
    """
    peers = peers_after(rank, world_size)
    transfers = _reduce_scatter(rank, sorted(peers, key=lambda peer: -weights[peer]) if weights else peers)
    for peer in peers:
        transfers.send(peer, rank)
    for peer in peers:
        transfers.recv(peer, peer)
    return transfers.schedule(tuple(weights) or even_chunks(world_size))


def direct_reduce_scatter(rank: int, world_size: int) -> Schedule:
    """Rank r gets the sum of chunk r, and keeps its input elsewhere: one hop; each rank sends S(n-1)/n bytes."""
    return _reduce_scatter(rank, peers_after(rank, world_size)).schedule(even_chunks(world_size))


def _reduce_scatter(rank: int, peers: Sequence[int]) -> TransferList:
    """Send to `peers`, in this order, the chunks that they own, and add up the own chunk."""
    transfers = TransferList()
    for peer in peers:
        transfers.send(peer, peer)
    for peer in range(len(peers) + 1):
        transfers.reduce(peer, rank)
    return transfers
