"""All-reduce in two hops: everybody adds up one chunk for all, then sends the sum to all."""

from collectives.schedule import Kind, Schedule, Transfer, even_chunks, peers_after


def direct_all_reduce(rank: int, world_size: int) -> Schedule:
    """Send each chunk to its owner, add up the own one in rank order, send the sum to all.

    For n ranks and S bytes: two hops; each rank sends 2S(n-1)/n bytes, the least possible. The bits are those of
    `one_shot_all_reduce`, whatever the size and the cut: half types are rounded once, before the sum is sent.
    """
    peers = peers_after(rank, world_size)
    transfers = [Transfer(Kind.SEND, peer, chunk=peer) for peer in peers]
    transfers += [Transfer(Kind.REDUCE, peer, chunk=rank) for peer in range(world_size)]
    summed = (len(transfers) - 1,)
    transfers += [Transfer(Kind.SEND, peer, chunk=rank, after=summed) for peer in peers]
    transfers += [Transfer(Kind.RECV, peer, chunk=peer) for peer in peers]
    return Schedule(even_chunks(world_size), tuple(transfers))
