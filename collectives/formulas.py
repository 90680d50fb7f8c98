"""Prices of the built-in algorithms for many ranks, by formulas instead of a play (pricing.py).

Each formula first surveys the links, in slices, and counts what every line carries: the line of a host, which its ranks
share, and memory within the host. After that a price takes a few multiplications. With n ranks, x is the cost of a
chunk on a line, k the number of its segments, d a delay.
"""

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import Final, NamedTuple

from collectives.binary_tree import parents_of
from collectives.halving_doubling import rank_at
from collectives.links import MEMORY_BYTES_PER_S, MEMORY_DELAY_NS, SECOND_NS, Links
from collectives.tree import two_tree_orders

FORMULA_MIN_RANKS: Final = 9
"""From this number of ranks on, formulas are used."""

EDGES_PER_SLICE: Final = 64
WAYS_PER_SLICE: Final = 8

Edge = tuple[int, int]
"""Sender and receiver."""

Formula = Callable[[int], int]
"""From bytes to the price in ns."""

Survey = Generator[None, None, Formula]


class Message(NamedTuple):
    """A chunk that is sent over some line."""

    num_bytes: int
    num_segments: int
    segments_ns: int
    """The cost of the segments, without that of their bytes."""

    def cost_ns(self, rate: int) -> int:
        return self.segments_ns + self.num_bytes * SECOND_NS // rate


@dataclass(frozen=True, slots=True)
class Load:
    """Chunks that are carried at the same time.

    Attributes:
        lines: for each line that may end last: (number of chunks, bytes per second).
        delay_ns: the mean delay between hosts; within hosts, if no chunk is sent between hosts.
    """

    lines: tuple[tuple[int, int], ...]
    delay_ns: int

    def takes_ns(self, message: Message) -> int:
        """The time until the last line is free."""
        return max((number * message.cost_ns(rate) for number, rate in self.lines), default=0)


class Hosts:
    """The hosts of the ranks; ranks of one host share a line.

    Attributes:
        of_rank: the host of each rank, numbered from 0.
        sizes: the number of ranks of each host.
        rates: bytes per second of each host's line, up or down, whichever is slower.
        most_ns: the longest delay.
    """

    def __init__(self, links: Links, most_ns: int) -> None:
        names = links.hosts or tuple(range(links.world_size))
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        self.links, self.of_rank = links, [numbers[name] for name in names]
        self.sizes = Counter(self.of_rank)
        self.rates = {host: min(pair) for host, *pair in zip(self.of_rank, links.up, links.down, strict=True)}
        self.most_ns = most_ns

    def message(self, num_bytes: int) -> Message:
        number = max(1, -(-num_bytes // self.links.segment_bytes))
        return Message(num_bytes, number, number * self.links.message_ns)

    def is_within(self, edge: Edge) -> bool:
        return self.of_rank[edge[0]] == self.of_rank[edge[1]]

    def load(self, between: Mapping[int, int], within: int, delay_ns: int) -> Load:
        """The load if each host's line carries `between[host]` chunks, and a rank at most `within` by memory."""
        most, lines = Counter({MEMORY_BYTES_PER_S: within}), list[tuple[int, int]]()
        for host, number in between.items():
            most[self.rates[host]] = max(most[self.rates[host]], number)
        for rate in sorted(most):
            if most[rate] > max((number for number, _ in lines), default=0):
                lines.append((most[rate], rate))
        return Load(tuple(lines), delay_ns)

    def load_of(self, edges: Iterable[Edge]) -> Generator[None, None, Load]:
        """The load of one chunk over each of these edges."""
        ups, downs, delays = Counter[int](), Counter[int](), {True: [0, 0], False: [0, 0]}
        for index, edge in enumerate(edges):
            if index % EDGES_PER_SLICE == 0:
                yield
            within, (source, target) = self.is_within(edge), edge
            ups[-1 - source if within else self.of_rank[source]] += 1
            downs[-1 - target if within else self.of_rank[target]] += 1
            delays[within][0] += self.links.delay_ns[source][target]
            delays[within][1] += 1
        most = ups | downs
        between = {line: number for line, number in most.items() if line >= 0}
        total_ns, number = delays[not between]
        return self.load(between, max((most[line] for line in most if line < 0), default=0), total_ns // number)


def look_at(links: Links) -> Generator[None, None, Hosts]:
    """Survey what all formulas need, in slices."""
    most_ns = 0
    for rank, row in enumerate(links.delay_ns):
        most_ns = max(most_ns, *row)
        if rank % 8 == 0:
            yield
    return Hosts(links, most_ns)


def _to_all(hosts: Hosts) -> Load:
    """The load of one chunk from each rank to each other."""
    n = hosts.links.world_size
    between = {host: size * (n - size) for host, size in hosts.sizes.items() if size < n}
    return hosts.load(between, max(hosts.sizes.values()) - 1, hosts.most_ns)


def one_shot(hosts: Hosts) -> Survey:
    """All lines carry the inputs, one after the other."""
    load = _to_all(hosts)
    yield
    return lambda num_bytes: load.takes_ns(hosts.message(num_bytes)) + load.delay_ns


def direct(hosts: Hosts) -> Survey:
    """Twice one chunk to all others; the sum of a segment can be sent when the last input of it has arrived."""
    load, n = _to_all(hosts), hosts.links.world_size
    yield

    def price(num_bytes: int) -> int:
        message = hosts.message(-(-num_bytes // n))
        one_way, k = load.takes_ns(message), message.num_segments
        return 2 * (one_way + load.delay_ns) - (k - 1) * one_way // (k * (n - 1))

    return price


def ring(hosts: Hosts) -> Survey:
    """Either lines are always busy, or a segment waits at each hop for the one that arrives over the ring."""
    n = hosts.links.world_size
    edges = [(rank, (rank + 1) % n) for rank in range(n)]
    load = yield from hosts.load_of(edges)
    num_between = n - sum(map(hosts.is_within, edges))
    around_ns = sum(hosts.links.delay_ns[source][target] for source, target in edges)

    def price(num_bytes: int) -> int:
        message = hosts.message(-(-num_bytes // n))
        x, k = load.takes_ns(message), message.num_segments
        around = num_between * x + (n - num_between) * message.cost_ns(MEMORY_BYTES_PER_S)
        waited = 2 * (n - 1) * (around // k + around_ns) // n + (k - 1) * x // k
        return max(2 * (n - 1) * x + hosts.most_ns, waited)

    return price


def halving_doubling(hosts: Hosts) -> Survey:
    """Halves, quarters, ..., and the same in reverse; before and after these, whole buckets of folded ranks."""
    n = hosts.links.world_size
    num_active = 1 << (n.bit_length() - 1)
    num_folded, hops, folds = n - num_active, list[tuple[int, Load]](), list[Load]()
    for bit in range(num_active.bit_length() - 1):
        far = 1 << bit
        edges = ((rank_at(place, num_folded), rank_at(place ^ far, num_folded)) for place in range(num_active))
        hops.append((far, (yield from hosts.load_of(edges))))
    if num_folded:
        folds.append((yield from hosts.load_of((2 * each, 2 * each + 1) for each in range(num_folded))))

    def price(num_bytes: int) -> int:
        message = hosts.message(-(-num_bytes // num_active))
        exchanged = sum(2 * (load.delay_ns + num_chunks * load.takes_ns(message)) for num_chunks, load in hops)
        return exchanged + sum(2 * load.delay_ns + 3 * num_active * load.takes_ns(message) // 2 for load in folds)

    return price


def _trees(hosts: Hosts, seatings: Sequence[Sequence[int]]) -> Survey:
    """The first segment goes up and down; then the others follow, as fast as lines carry them.

    An inner node sends each segment three times; on lines that are not shared, the mutual waiting of the ways up and
    down costs a fifth more.
    """
    fifths = 5 if hosts.links.has_shared_lines else 6
    up, longest_ns, num_between, num_within = list[Edge](), 0, 0, 0
    for seats in seatings:
        yield
        parents = parents_of(seats)
        up += [(rank, parent) for rank, parent in parents.items() if parent is not None]
        for index, rank in enumerate(parents):
            if index % WAYS_PER_SLICE == 0:
                yield
            way = list(_way_up(parents, rank))
            way_ns = sum(hosts.links.delay_ns[one][other] + hosts.links.delay_ns[other][one] for one, other in way)
            if way_ns > longest_ns:
                within = sum(map(hosts.is_within, way))
                longest_ns, num_between, num_within = way_ns, len(way) - within, within
    load = yield from hosts.load_of(chain(up, ((parent, rank) for rank, parent in up)))

    def price(num_bytes: int) -> int:
        message = hosts.message(-(-num_bytes // len(seatings)))
        k, slowest = message.num_segments, message.cost_ns(min(hosts.rates.values()))
        hops_ns = num_between * slowest + num_within * message.cost_ns(MEMORY_BYTES_PER_S)
        carried_ns = load.takes_ns(message)
        return longest_ns + max(3 * hops_ns, carried_ns) // k + fifths * (k - 1) * carried_ns // (5 * k)

    return price


def _way_up(parents: Mapping[int, int | None], rank: int) -> Iterator[Edge]:
    """The edges from a rank to the root of its tree."""
    while (parent := parents[rank]) is not None:
        yield rank, parent
        rank = parent


def tree(hosts: Hosts) -> Survey:
    """Two trees: an inner node of one is a leaf of the other."""
    return _trees(hosts, two_tree_orders(hosts.links.world_size))


def binary_tree(hosts: Hosts) -> Survey:
    """One tree."""
    return _trees(hosts, [range(hosts.links.world_size)])


def hierarchical(hosts: Hosts) -> Survey:
    """Sums within hosts, then between hosts by `direct`, in lanes, then distribution within hosts."""
    num_hosts, num_lanes = len(hosts.sizes), max(hosts.sizes.values())
    load = hosts.load(dict.fromkeys(hosts.sizes, num_lanes * (num_hosts - 1)), 0, hosts.most_ns)
    within = max(-(-num_lanes // size) * (size - 1) for size in hosts.sizes.values()) * num_hosts
    yield

    def price(num_bytes: int) -> int:
        message = hosts.message(-(-num_bytes // (num_lanes * num_hosts)))
        by_memory = within * message.cost_ns(MEMORY_BYTES_PER_S)
        return 2 * (max(load.takes_ns(message), by_memory) + load.delay_ns + MEMORY_DELAY_NS)

    return price


FORMULAS: Final[Mapping[str, Callable[[Hosts], Survey]]] = MappingProxyType(
    {
        "one-shot": one_shot,
        "direct": direct,
        "ring": ring,
        "halving-doubling": halving_doubling,
        "tree": tree,
        "binary-tree": binary_tree,
        "hierarchical": hierarchical,
    }
)
