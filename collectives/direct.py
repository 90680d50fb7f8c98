"""Each rank owns a chunk: others send it what they have of that, and it sends the sum to all."""

from collections.abc import Sequence

from collectives.schedule import Schedule, TransferList, even_chunks, peers_after


def direct_all_reduce(rank: int, world_size: int, weights: Sequence[float] = ()) -> Schedule:
    """Send each chunk to its owner, add up the own one in rank order, send the sum to all.

    For n ranks and S bytes: two hops; each rank sends 2S(n-1)/n bytes, the least possible. The bits are those of
    `one_shot_all_reduce`, whatever the size and the cut: half types are rounded once, before the sum is sent.

    The chunk of each rank is as large as its weight says, in any common unit; without weights all are alike. A rank
    that owns the share f of the bucket sends S(1 - f) + Sf(n-1) bytes, so who has a slow link should own less.
    """
    transfers = _add_up(rank, world_size)
    peers = peers_after(rank, world_size)
    for peer in peers:
        transfers.send(peer, rank)
    for peer in peers:
        transfers.recv(peer, peer)
    return transfers.schedule(tuple(weights) or even_chunks(world_size))


def direct_reduce_scatter(rank: int, world_size: int) -> Schedule:
    """Rank r gets the sum of chunk r, and keeps its input elsewhere: one hop; each rank sends S(n-1)/n bytes."""
    return _add_up(rank, world_size).schedule(even_chunks(world_size))


def _add_up(rank: int, world_size: int) -> TransferList:
    transfers = TransferList()
    for peer in peers_after(rank, world_size):
        transfers.send(peer, peer)
    for peer in range(world_size):
        transfers.reduce(peer, rank)
    return transfers
