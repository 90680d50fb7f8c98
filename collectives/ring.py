"""All-reduce around a ring (Patarasuk & Yuan, JPDC 69(2), 2009), pipelined by segments."""

from collectives.schedule import Kind, Schedule, Transfer, even_chunks


def ring_all_reduce(rank: int, world_size: int) -> Schedule:
    """Pass chunks to the right: once around to add them up, once more to hand out the sums.

    For n ranks and S bytes: 2(n-1) hops in sequence; each rank sends 2S(n-1)/n bytes, the least possible. The sum
    of a chunk starts at the rank of the same number and rounds to the tensor's type at every hop; all ranks get the
    same bits.
    """
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    num_hops = 2 * (world_size - 1)
    transfers: list[Transfer] = []
    for hop in range(num_hops):
        arrived = (len(transfers) - 1,) if hop else ()
        transfers.append(Transfer(Kind.SEND, right, (rank - hop) % world_size, arrived))
        kind = Kind.REDUCE if hop < num_hops // 2 else Kind.RECV
        transfers.append(Transfer(kind, left, (rank - hop - 1) % world_size))
    return Schedule(even_chunks(world_size), tuple(transfers))
