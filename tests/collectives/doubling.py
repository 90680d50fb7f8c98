"""Recursive doubling: each of a pair overwrites what it has sent to the other one, so it sends copies."""

from collectives import Schedule, TransferList, even_chunks


def doubling_all_reduce(rank: int, world_size: int, num_chunks: int = 1, *, is_copied: bool = True) -> Schedule:
    """Ranks that are 1, 2, 4, ... apart swap all that they have summed up; who is left over adds to one of these."""
    num_active, transfers = 1 << (world_size.bit_length() - 1), TransferList()
    for chunk in range(num_chunks):
        if rank >= num_active:
            transfers.send(rank - num_active, chunk)
            transfers.recv(rank - num_active, chunk)
            continue
        is_doubled = rank + num_active < world_size
        if is_doubled:
            transfers.reduce(rank + num_active, chunk)
        distance = 1
        while distance < num_active:
            transfers.send(rank ^ distance, chunk, is_copied=is_copied)
            transfers.reduce(rank ^ distance, chunk)
            distance *= 2
        if is_doubled:
            transfers.send(rank + num_active, chunk)
    return transfers.schedule(even_chunks(num_chunks))
