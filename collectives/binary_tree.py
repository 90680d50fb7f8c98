"""All-reduce, broadcast and reduce over one binary tree, pipelined by segments.

An inner node sends and receives about three times as much as a leaf, which `tree` avoids; half of the links are idle.
"""

from collections.abc import Sequence

from collectives.schedule import Schedule, TransferList, even_chunks


def binary_tree_all_reduce(rank: int, world_size: int) -> Schedule:
    """Add up towards the root, distribute the sum towards the leaves.

    For n ranks and S bytes: about 2 log2(n) hops in sequence; an inner node sends 3S bytes, a leaf S. Sums round to
    the tensor's type at every hop; all ranks get the same bits.
    """
    transfers, seats = TransferList(), range(world_size)
    reduce_to_root(transfers, seats, rank, chunk=0)
    broadcast_from_root(transfers, seats, rank, chunk=0)
    return transfers.schedule(even_chunks(1))


def binary_tree_broadcast(rank: int, world_size: int, root: int = 0) -> Schedule:
    """All ranks get the input of `root`: about log2(n) hops; an inner node sends 2S bytes."""
    transfers = TransferList()
    broadcast_from_root(transfers, _seats_under(root, world_size), rank, chunk=0)
    return transfers.schedule(even_chunks(1))


def binary_tree_reduce(rank: int, world_size: int, root: int = 0) -> Schedule:
    """`root` gets the sum: about log2(n) hops; each rank sends S bytes. The others end with partial sums."""
    transfers = TransferList()
    reduce_to_root(transfers, _seats_under(root, world_size), rank, chunk=0)
    return transfers.schedule(even_chunks(1), partial=() if rank == root else [0])


def reduce_to_root(transfers: TransferList, seats: Sequence[int], rank: int, chunk: int) -> None:
    """Add up towards the root of the tree in which these ranks have the seats 1, 2, ..."""
    parent, children = _neighbours(seats, rank)
    for child in children:
        transfers.reduce(child, chunk)
    if parent is not None:
        transfers.send(parent, chunk)


def broadcast_from_root(transfers: TransferList, seats: Sequence[int], rank: int, chunk: int) -> None:
    """Distribute from the root of the same tree."""
    parent, children = _neighbours(seats, rank)
    if parent is not None:
        transfers.recv(parent, chunk)
    for child in children:
        transfers.send(child, chunk)


def _seats_under(root: int, world_size: int) -> list[int]:
    """The ranks in cyclic order, such that `root` sits at the top of the tree, on the largest power of two."""
    top = 1 << (world_size.bit_length() - 1)
    return [(seat - top + root) % world_size for seat in range(1, world_size + 1)]


def _neighbours(seats: Sequence[int], rank: int) -> tuple[int | None, list[int]]:
    """The parent of `rank`, None for the root, and its children, at most two."""
    parents = parents_of(seats)
    return parents[rank], [child for child, parent in parents.items() if parent == rank]


def parents_of(seats: Sequence[int]) -> dict[int, int | None]:
    """The parent of each rank in the tree in which the ranks have these seats; None for the root."""
    by_seat = dict(enumerate(seats, start=1))
    return {by_seat[seat]: by_seat.get(_parent_seat(seat, len(seats))) for seat in by_seat}


def _parent_seat(seat: int, num_seats: int) -> int:
    """The parent seat in a binary tree numbered in order from 1; 0 above the root.

    The lowest set bit of a seat is its height: 1, 3, 5, ... are leaves. If the parent in a full tree does not exist,
    the next existing ancestor is on the other side.
    """
    height = seat & -seat
    above = (seat - height) | (2 * height)
    return above if above <= num_seats else seat - height
