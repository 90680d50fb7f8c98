"""A schedule such as a user could write: along a chain in rank order, and back."""

from collectives import Kind, Schedule, Transfer, even_chunks


def chain_all_reduce(rank: int, world_size: int) -> Schedule:
    transfers: list[Transfer] = []
    if rank > 0:
        transfers += [Transfer(Kind.RECV, rank - 1, chunk=0), Transfer(Kind.REDUCE, rank, chunk=0)]
    if rank < world_size - 1:
        added = (1,) if rank > 0 else ()
        transfers += [Transfer(Kind.SEND, rank + 1, chunk=0, after=added), Transfer(Kind.RECV, rank + 1, chunk=0)]
    if rank > 0:
        transfers.append(Transfer(Kind.SEND, rank - 1, chunk=0, after=(len(transfers) - 1,)))
    return Schedule(even_chunks(1), tuple(transfers))
