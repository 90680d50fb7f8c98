"""Each rank owns a chunk: others send it what they have of that, and it sends the sum to all."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Final

from collectives.schedule import Schedule, TransferList, even_chunks, peers_after

PARTS: Final = 256
"""Into which a bucket is divided among the ranks."""


def direct_shares(rates: Sequence[int]) -> tuple[int, ...]:
    """What each rank should own of a bucket, in `PARTS`, if its line has this rate: then all lines end at once.

    A rank that owns the share f has S(1 + f(n-2)) bytes to carry each way. Who would need less than no share to end
    with the others owns nothing, and the others have time until it ends: what it leaves them is in proportion to what
    they can. Rates in any common unit, more than 0; integers, so all find the same.
    """
    n = len(rates)
    if n < 3:  # whoever owns what, each line carries the whole
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
    """Send each chunk to its owner, add up the own one in rank order, send the sum to all.

    For n ranks and S bytes: two hops; each rank sends 2S(n-1)/n bytes, the least possible. The bits are those of
    `one_shot_all_reduce`, whatever the size and the cut: half types are rounded once, before the sum is sent.

    The chunk of each rank is as large as its weight says, in any common unit; without weights all are alike. A rank
    that owns the share f of the bucket sends S(1 - f) + Sf(n-1) bytes, so who has a slow link should own less. Who owns
    most is sent to first: what it hands out fills the lines while the others add up.
    """
    peers = peers_after(rank, world_size)
    transfers = _add_up(rank, sorted(peers, key=lambda peer: -weights[peer]) if weights else peers)
    for peer in peers:
        transfers.send(peer, rank)
    for peer in peers:
        transfers.recv(peer, peer)
    return transfers.schedule(tuple(weights) or even_chunks(world_size))


def direct_reduce_scatter(rank: int, world_size: int) -> Schedule:
    """Rank r gets the sum of chunk r, and keeps its input elsewhere: one hop; each rank sends S(n-1)/n bytes."""
    return _add_up(rank, peers_after(rank, world_size)).schedule(even_chunks(world_size))


def _add_up(rank: int, peers: Sequence[int]) -> TransferList:
    """Send to `peers`, one after the other, what is theirs."""
    transfers = TransferList()
    for peer in peers:
        transfers.send(peer, peer)
    for peer in range(len(peers) + 1):
        transfers.reduce(peer, rank)
    return transfers
