"""All-reduce by recursive halving and doubling (Rabenseifner 2004; Thakur, Rabenseifner & Gropp, IJHPCA 19(1), 2005).

Of n ranks, q take part, the largest power of two; the n - q others are *folded*: each has a partner that first adds its
whole input, and sends it the result at the end.
"""

from collectives.schedule import Schedule, TransferList, even_chunks


def halving_doubling_all_reduce(rank: int, world_size: int) -> Schedule:
    """Exchange halves at decreasing distances until each rank has one sum, then the sums at increasing distances.

    For n = q ranks and S bytes: 2 log2(n) hops; each rank sends 2S(n-1)/n bytes, the least possible. A folded rank, and
    its partner, send S more, in two more hops. Inputs are added along a balanced tree; sums round to the tensor's type
    at every hop; all ranks get the same bits.
    """
    num_active = 1 << (world_size.bit_length() - 1)
    num_folded = world_size - num_active
    chunks, transfers = range(num_active), TransferList()
    if rank < 2 * num_folded and rank % 2 == 0:
        for kind in (transfers.send, transfers.recv):
            for chunk in chunks:
                kind(rank + 1, chunk)
        return transfers.schedule(even_chunks(num_active))
    folded = rank - 1 if rank < 2 * num_folded else None
    place = rank // 2 if folded is not None else rank - num_folded
    if folded is not None:
        for chunk in chunks:
            transfers.reduce(folded, chunk)
    _exchange(transfers, place, num_active, num_folded)
    if folded is not None:
        for chunk in chunks:
            transfers.send(folded, chunk)
    return transfers.schedule(even_chunks(num_active))


def _exchange(transfers: TransferList, place: int, num_active: int, num_folded: int) -> None:
    """List the transfers of the rank at `place` among those that take part; chunk `place` is the one that it sums."""
    masks = [1 << bit for bit in range(num_active.bit_length() - 1)]

    def near(place: int, distance: int) -> list[int]:
        """The chunks that differ from `place` only in the bits below `distance`."""
        return [chunk for chunk in range(num_active) if (chunk ^ place) < distance]

    for mask in reversed(masks):
        for chunk in near(place ^ mask, mask):
            transfers.send(rank_at(place ^ mask, num_folded), chunk)
        for chunk in near(place, mask):
            transfers.reduce(rank_at(place ^ mask, num_folded), chunk)
    for mask in masks:
        for chunk in near(place, mask):
            transfers.send(rank_at(place ^ mask, num_folded), chunk)
        for chunk in near(place ^ mask, mask):
            transfers.recv(rank_at(place ^ mask, num_folded), chunk)


def rank_at(place: int, num_folded: int) -> int:
    """The rank at a place among those that take part."""
    return 2 * place + 1 if place < num_folded else place + num_folded
