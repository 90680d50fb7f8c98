"""What a play of the built-in algorithms costs where ranks are many, without playing it (pricing.py).

With n ranks, x is what the slowest link needs for the message in question, k the number of segments of a chunk, d a
delay. Derived for links that are alike; where they are not, the slowest rates count, and the delays of the ways taken.
Ranks of one host have a part of its line each.
"""

from collections import Counter
from collections.abc import Callable, Generator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from collectives.links import SECOND_NS, SEGMENT_BYTES, Links

FEW_RANKS: Final = 9
"""From here on formulas are asked."""


class Summary(NamedTuple):
    """Of links.

    Attributes:
        rate: bytes per second of the slowest link, for one rank.
        around_ns: the delays from each rank to the next, together.
    """

    world_size: int
    rate: int
    message_ns: int
    mean_ns: int
    most_ns: int
    around_ns: int
    segment_bytes: int = SEGMENT_BYTES

    def num_segments(self, num_bytes: int) -> int:
        return max(1, -(-num_bytes // self.segment_bytes))

    def cost_ns(self, num_bytes: int) -> int:
        """A chunk of so many bytes on the slowest link."""
        return self.num_segments(num_bytes) * self.message_ns + num_bytes * SECOND_NS // self.rate


def summarize(links: Links) -> Generator[None, None, Summary]:
    """In slices."""
    n, total, most, around = links.world_size, 0, 0, 0
    for rank, row in enumerate(links.delay_ns):
        total += sum(row) - row[rank]
        most = max(most, *row)
        around += row[(rank + 1) % n]
        if rank % 8 == 0:
            yield
    sharing = Counter(links.hosts or range(n))
    ranks = (sharing[host] for host in links.hosts or range(n))
    rate = max(1, min(min(each) // number for *each, number in zip(links.up, links.down, ranks, strict=True)))
    return Summary(n, rate, links.message_ns, total // (n * (n - 1)), most, around, links.segment_bytes)


def one_shot_ns(num_bytes: int, of: Summary) -> int:
    """All links are busy with n-1 inputs, one behind the other."""
    return (of.world_size - 1) * of.cost_ns(num_bytes) + of.most_ns


def direct_ns(num_bytes: int, of: Summary) -> int:
    """Twice n-1 chunks; the sum of a segment can go when the last of them has come, before its chunk is complete."""
    chunk = -(-num_bytes // of.world_size)
    x, k = of.cost_ns(chunk), of.num_segments(chunk)
    return 2 * ((of.world_size - 1) * x + of.most_ns) - (k - 1) * x // k


def ring_ns(num_bytes: int, of: Summary) -> int:
    """Either links are always busy, or a segment waits at each hop for the one that comes around."""
    n = of.world_size
    chunk = -(-num_bytes // n)
    x, k = of.cost_ns(chunk), of.num_segments(chunk)
    delays = 2 * of.around_ns * (n - 1) // n
    return max(2 * (n - 1) * x + of.most_ns, 2 * (n - 1) * x // k + delays + (k - 1) * x // k)


def halving_doubling_ns(num_bytes: int, of: Summary) -> int:
    """Halves, quarters, ...; before them, and behind them, the whole for who is folded."""
    num_active = 1 << (of.world_size.bit_length() - 1)
    x = of.cost_ns(-(-num_bytes // num_active))
    num_hops, num_chunks = 2 * (num_active.bit_length() - 1), 2 * (num_active - 1)
    if of.world_size > num_active:
        num_hops, num_chunks = num_hops + 2, num_chunks + num_active + num_active // 2
    return num_hops * of.mean_ns + num_chunks * x


def _trees_ns(num_trees: int, num_bytes: int, of: Summary) -> int:
    """The first segment goes up and down; then one follows after the other, as fast as an inner node passes them on.

    It sends each three times, and one more of the other tree; that its ways up and down wait for each other costs a
    fifth.
    """
    chunk = -(-num_bytes // num_trees)
    x, k = of.cost_ns(chunk), of.num_segments(chunk)
    depth = of.world_size.bit_length() - 1
    first = 2 * depth * (of.mean_ns + 3 * x // (2 * k))
    return first + (k - 1) * (18 if num_trees == 1 else 24) * x // (5 * k)


def tree_ns(num_bytes: int, of: Summary) -> int:
    """Two trees: an inner node of one is a leaf of the other."""
    return _trees_ns(2, num_bytes, of)


def binary_tree_ns(num_bytes: int, of: Summary) -> int:
    """One tree: an inner node sends each segment three times."""
    return _trees_ns(1, num_bytes, of)


FORMULAS: Final[Mapping[str, Callable[[int, Summary], int]]] = MappingProxyType(
    {
        "one-shot": one_shot_ns,
        "direct": direct_ns,
        "ring": ring_ns,
        "halving-doubling": halving_doubling_ns,
        "tree": tree_ns,
        "binary-tree": binary_tree_ns,
    }
)
