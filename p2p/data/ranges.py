"""Sets of positions in a stream of samples, as sorted tuples of (first, number) that neither overlap nor touch."""

from collections.abc import Iterable, Iterator

Ranges = tuple[tuple[int, int], ...]


def union(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """All positions of `ranges`, which may touch but not overlap, in any order."""
    merged: list[tuple[int, int]] = []
    for first, number in sorted(each for each in ranges if each[1]):
        if merged and sum(merged[-1]) == first:
            merged[-1] = merged[-1][0], merged[-1][1] + number
        else:
            merged.append((first, number))
    return tuple(merged)


def difference(ranges: Ranges, taken: Ranges) -> Ranges:
    """The positions of `ranges` that are not in `taken`."""
    left = list(ranges)
    for first, number in taken:
        pieces = []
        for start, size in left:
            pieces += [(start, min(first, start + size) - start), (max(first + number, start), 0)]
            pieces[-1] = pieces[-1][0], start + size - pieces[-1][0]
        left = [piece for piece in pieces if piece[1] > 0]
    return union(left)


def cut(ranges: Ranges, start: int, number: int) -> Ranges:
    """The positions after the first `start`: `number` of them, or all if there are fewer."""
    pieces = []
    for first, size in ranges:
        skipped = min(start, size)
        taken = min(number, size - skipped)
        pieces.append((first + skipped, taken))
        start, number = start - skipped, number - taken
    return union(pieces)


def count(ranges: Ranges) -> int:
    """The number of positions."""
    return sum(number for _, number in ranges)


def each(ranges: Ranges) -> Iterator[int]:
    """The positions, in order."""
    for first, number in ranges:
        yield from range(first, first + number)
