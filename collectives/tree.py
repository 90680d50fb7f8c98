"""All-reduce over two binary trees at once (Sanders, Speck & Träff, Parallel Computing 35(12), 2009).

An inner node of one tree sends and receives about three times as much as a leaf. So half of the bucket is reduced over
a second tree, in which the inner nodes of the first are leaves, and every link is used both ways.
"""

from collectives.binary_tree import broadcast_from_root, reduce_to_root
from collectives.schedule import Schedule, TransferList, even_chunks


def tree_all_reduce(rank: int, world_size: int) -> Schedule:
    """Add up towards the root, distribute the sum towards the leaves; one half of the bucket per tree, pipelined.

    For n ranks and S bytes: about 2 log2(n) hops in sequence; no rank sends more than 2S bytes. Sums round
    to the tensor's type at every hop; all ranks get the same bits.
    """
    transfers = TransferList()
    for chunk, seats in enumerate(two_tree_orders(world_size)):
        reduce_to_root(transfers, seats, rank, chunk)
        broadcast_from_root(transfers, seats, rank, chunk)
    return transfers.schedule(even_chunks(2))


def two_tree_orders(world_size: int) -> tuple[list[int], list[int]]:
    """The ranks on seats 1, 2, ... of each tree.

    Inner nodes have even seats. Reversing an even number of ranks, or shifting an odd one, moves each of them to
    an odd seat.
    """
    ranks = list(range(world_size))
    return ranks, ranks[::-1] if world_size % 2 == 0 else ranks[1:] + ranks[:1]
