"""All-reduce, its two halves, and broadcast in a ring (Patarasuk & Yuan, JPDC 69(2), 2009), pipelined by segments."""

from collectives.schedule import Schedule, TransferList, even_chunks


def ring_all_reduce(rank: int, world_size: int) -> Schedule:
    """Pass chunks to the right: once around to add them up, once more to distribute the sums.

    For n ranks and S bytes: 2(n-1) hops in sequence; each rank sends 2S(n-1)/n bytes, the least possible. The sum of
    chunk r starts at rank r, and rounds to the tensor's type at every hop; all ranks get the same bits.
    """
    transfers = TransferList()
    _reduce_scatter(transfers, rank, world_size, first=rank)
    _all_gather(transfers, rank, world_size, first=rank + 1)
    return transfers.schedule(even_chunks(world_size))


def ring_reduce_scatter(rank: int, world_size: int) -> Schedule:
    """Rank r gets the sum of chunk r, and partial sums in the others: n-1 hops; each rank sends S(n-1)/n bytes."""
    transfers = TransferList()
    _reduce_scatter(transfers, rank, world_size, first=rank - 1)
    return transfers.schedule(even_chunks(world_size), partial={*range(world_size)} - {rank})


def ring_all_gather(rank: int, world_size: int) -> Schedule:
    """Chunk r of the result is the input of rank r: n-1 hops; for inputs of S bytes each rank sends S(n-1)."""
    transfers = TransferList()
    _all_gather(transfers, rank, world_size, first=rank)
    return transfers.schedule(even_chunks(world_size))


def ring_broadcast(rank: int, world_size: int, root: int = 0) -> Schedule:
    """All ranks get the input of `root`: n-1 hops; all ranks but the last send S bytes."""
    transfers, place = TransferList(), (rank - root) % world_size
    if place > 0:
        transfers.recv((rank - 1) % world_size, 0)
    if place < world_size - 1:
        transfers.send((rank + 1) % world_size, 0)
    return transfers.schedule(even_chunks(1))


def _reduce_scatter(transfers: TransferList, rank: int, world_size: int, first: int) -> None:
    """Send chunk `first`, then each chunk after the arriving one was added."""
    for chunk in range(first, first - world_size + 1, -1):
        transfers.send((rank + 1) % world_size, chunk % world_size)
        transfers.reduce((rank - 1) % world_size, (chunk - 1) % world_size)


def _all_gather(transfers: TransferList, rank: int, world_size: int, first: int) -> None:
    """Send chunk `first`, then each chunk that arrives."""
    for chunk in range(first, first - world_size + 1, -1):
        transfers.send((rank + 1) % world_size, chunk % world_size)
        transfers.recv((rank - 1) % world_size, (chunk - 1) % world_size)
