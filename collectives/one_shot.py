"""All-reduce, all-gather and broadcast in one hop, for small buckets: each rank sends its whole input to all others."""

from collectives.schedule import Kind, Schedule, Transfer, TransferList, even_chunks, peers_after


def one_shot_all_reduce(rank: int, world_size: int) -> Schedule:
    """Send the input to all, add up all inputs in rank order.

    For n ranks and S bytes: one hop; each rank sends S(n-1) bytes. The bits do not depend on the size.
    Half types are rounded once, at the end.
    """
    sends = [Transfer(Kind.SEND, peer, chunk=0) for peer in peers_after(rank, world_size)]
    sums = [Transfer(Kind.REDUCE, peer, chunk=0) for peer in range(world_size)]
    return Schedule(even_chunks(1), (*sends, *sums))


def one_shot_all_gather(rank: int, world_size: int) -> Schedule:
    """Send the input to all; chunk r of the result is the input of rank r.

    For n ranks and an input of S bytes: one hop; each rank sends S(n-1) bytes.
    """
    peers = peers_after(rank, world_size)
    sends = [Transfer(Kind.SEND, peer, chunk=rank) for peer in peers]
    recvs = [Transfer(Kind.RECV, peer, chunk=peer) for peer in peers]
    return Schedule(even_chunks(world_size), (*sends, *recvs))


def one_shot_broadcast(rank: int, world_size: int, root: int = 0) -> Schedule:
    """All ranks get the input of `root`, which sends S(n-1) bytes: one hop."""
    transfers = TransferList()
    if rank != root:
        transfers.recv(root, 0)
    else:
        for peer in peers_after(rank, world_size):
            transfers.send(peer, 0)
    return transfers.schedule(even_chunks(1))
