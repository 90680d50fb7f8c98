"""All-reduce over two binary trees at once (Sanders, Speck & Träff, Parallel Computing 35(12), 2009).

An inner node of one tree sends and receives about three times what a leaf does. So half of the bucket goes over a
second tree in which the inner nodes of the first are leaves, and every link is used both ways.
"""

from collectives.schedule import Kind, Schedule, Transfer, even_chunks


def tree_all_reduce(rank: int, world_size: int) -> Schedule:
    """Add up towards the root, hand out towards the leaves; one half of the bucket per tree, pipelined.

    For n ranks and S bytes: about 2 log2(n) hops in sequence; no rank sends more than 2S bytes. Sums round
    to the tensor's type at every hop; all ranks get the same bits.
    """
    transfers: list[Transfer] = []
    for chunk, seats in enumerate(_two_seatings(world_size)):
        parent, children = _neighbours(seats, rank)
        transfers += [Transfer(Kind.REDUCE, child, chunk) for child in children]
        if parent is not None:
            reduced = (len(transfers) - 1,) if children else ()
            transfers.append(Transfer(Kind.SEND, parent, chunk, reduced))
            transfers.append(Transfer(Kind.RECV, parent, chunk))
        summed = (len(transfers) - 1,)
        transfers += [Transfer(Kind.SEND, child, chunk, summed) for child in children]
    return Schedule(even_chunks(2), tuple(transfers))


def _two_seatings(world_size: int) -> tuple[list[int], list[int]]:
    """Who sits on seats 1, 2, ... of each tree.

    Inner nodes have even seats. Reversing an even number of ranks, or shifting an odd one, moves each of them to
    an odd seat.
    """
    ranks = list(range(world_size))
    return ranks, ranks[::-1] if world_size % 2 == 0 else ranks[1:] + ranks[:1]


def _neighbours(seats: list[int], rank: int) -> tuple[int | None, list[int]]:
    """The parent of `rank`, None for the root, and its children, at most two."""
    by_seat = dict(enumerate(seats, start=1))
    parents = {by_seat[seat]: by_seat.get(_parent_seat(seat, len(seats))) for seat in by_seat}
    return parents[rank], [child for child, parent in parents.items() if parent == rank]


def _parent_seat(seat: int, num_seats: int) -> int:
    """The seat above in a binary tree numbered in order from 1; 0 above the root.

    The lowest set bit of a seat is its height: 1, 3, 5, ... are leaves. If the seat above in a full tree does not
    exist, the next one that does is on the other side.
    """
    height = seat & -seat
    above = (seat - height) | (2 * height)
    return above if above <= num_seats else seat - height
