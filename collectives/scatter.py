"""Scatter, gather and all-to-all: each chunk is sent from its owner to its destination in one hop.

Chunks of a rank for which it has no input, and receives none, stay unchanged.
"""

from collectives.schedule import Schedule, TransferList, even_chunks, peers_after


def direct_scatter(rank: int, world_size: int, root: int = 0) -> Schedule:
    """Rank r gets chunk r of the input of `root`, which sends S(n-1)/n bytes."""
    transfers = TransferList()
    if rank != root:
        transfers.recv(root, rank)
    else:
        for peer in peers_after(rank, world_size):
            transfers.send(peer, peer)
    return transfers.schedule(even_chunks(world_size))


def direct_gather(rank: int, world_size: int, root: int = 0) -> Schedule:
    """`root` gets the input of rank r as chunk r."""
    transfers = TransferList()
    if rank != root:
        transfers.send(root, rank)
    else:
        for peer in peers_after(rank, world_size):
            transfers.recv(peer, peer)
    return transfers.schedule(even_chunks(world_size))


def direct_all_to_all(rank: int, world_size: int) -> Schedule:
    """Rank r has n parts, chunks rn to rn + n-1, of which part d is for rank d: one hop; each rank sends n-1 parts."""
    transfers = TransferList()
    for peer in peers_after(rank, world_size):
        transfers.send(peer, rank * world_size + peer)
    for peer in peers_after(rank, world_size):
        transfers.recv(peer, peer * world_size + rank)
    return transfers.schedule(even_chunks(world_size * world_size))
