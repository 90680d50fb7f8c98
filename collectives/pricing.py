"""What an operation will cost, by playing the schedules of all ranks over links; in integers, of ns and bytes.

The model: each rank has one uplink and one downlink, shared by those of its host; between them is a delay. A message
occupies the uplink for its bytes and for what a message costs; its first byte reaches the downlink after the delay, and
is followed there as fast as both let it. What is ready is sent in the order in which it became so, what has come is
taken in the order in which it came. Within a host messages go over memory, and meet no others than those of the same
rank. What is not in it: TCP's slow start, loss, queues that overflow, additions. A message is a segment; of a long
chunk several are played as one, so that a play has at most `MOST_MESSAGES`.

Works for any schedules that `verify` accepts, without looking at what they are. From `FEW_RANKS` on, `formulas` knows
what a play of the built-in ones would cost, but for some percent. All of it is made in slices: generators that yield
after a part of a millisecond, and return the result.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final, NamedTuple, TypeVar

from collectives.partition import split_by_weight
from collectives.schedule import Kind, Schedule, wire_numbers

Result = TypeVar("Result")

SECOND_NS: Final = 1_000_000_000
SEGMENT_BYTES: Final = 1 << 20
MEMORY_BYTES_PER_S: Final = 1_000_000_000
"""Of a message between two ranks of one host: not measured, since between hosts everything takes much longer."""

MEMORY_DELAY_NS: Final = 100_000
"""Of the same."""

MOST_MESSAGES: Final = 512
"""Of a play, where its chunks are longer than a segment; otherwise as many as the schedules have."""
MESSAGES_PER_SLICE: Final = 20


@dataclass(frozen=True, slots=True)
class Links:
    """Between the ranks of an operation.

    Attributes:
        up, down: bytes per second of each rank.
        delay_ns: one way, from each rank to each, in rows by sender.
        message_ns: what a message costs at either end, which does nothing else meanwhile.
        segment_bytes: of a message, at most.
        hosts: of each rank, by number; those of one have one line, and the same rates. Empty: each has a host.
    """

    up: tuple[int, ...]
    down: tuple[int, ...]
    delay_ns: tuple[tuple[int, ...], ...]
    message_ns: int
    segment_bytes: int = SEGMENT_BYTES
    hosts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        sizes = {len(self.up), len(self.down), len(self.delay_ns), *map(len, self.delay_ns)}
        if len(sizes) != 1 or 0 in sizes:
            raise ValueError(f"links need a rate up and down, and a row of delays, for each rank, got sizes {sizes}")
        if self.hosts and len(self.hosts) != len(self.up):
            raise ValueError(f"links of {len(self.up)} ranks need a host for each, got {self.hosts}")
        if min(*self.up, *self.down) < 1 or min(map(min, self.delay_ns)) < 0 or self.message_ns < 0:
            raise ValueError("rates of links must be at least 1 byte per second, delays and costs at least 0")

    @property
    def world_size(self) -> int:
        return len(self.up)

    @property
    def has_shared_lines(self) -> bool:
        """Whether several ranks are on one host."""
        return len({*self.hosts}) < len(self.hosts)


def equal_links(world_size: int, bytes_per_s: int, delay_ns: int, message_ns: int) -> Links:
    """Links that are all alike."""
    row = (delay_ns,) * world_size
    return Links((bytes_per_s,) * world_size, (bytes_per_s,) * world_size, (row,) * world_size, message_ns)


class Sent(NamedTuple):
    """One message of a play: a segment, or several in one."""

    source: int
    peer: int
    chunk: int
    num_bytes: int
    start_ns: int
    """Its sender begins with it."""

    left_ns: int
    reached_ns: int
    """Its first byte is at the receiver's downlink, which may be busy."""

    arrived_ns: int


@dataclass(frozen=True, slots=True)
class Play:
    """What happened.

    Attributes:
        done_ns: when each rank has its result.
        sent: all messages, in the order in which they arrived.
        committed_ns: when the last rank has heard that all have their results.
    """

    done_ns: tuple[int, ...]
    sent: tuple[Sent, ...]
    committed_ns: int

    @property
    def time_ns(self) -> int:
        """Until the last rank has its result."""
        return max(self.done_ns)


def play(schedules: Sequence[Schedule], num_bytes: int, links: Links, *, most_messages: int = MOST_MESSAGES) -> Play:
    """Play an operation on `num_bytes` of each rank to its end."""
    return run_to_end(play_slices(schedules, num_bytes, links, most_messages))


def run_to_end(slices: Generator[None, None, Result]) -> Result:
    """All slices in one go; the result."""
    while True:
        try:
            next(slices)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def play_slices(
    schedules: Sequence[Schedule], num_bytes: int, links: Links, most_messages: int = MOST_MESSAGES
) -> Generator[None, None, Play]:
    """The same in slices."""
    if len(schedules) != links.world_size:
        raise ValueError(f"{len(schedules)} schedules cannot be played over the links of {links.world_size} ranks")
    nodes = yield from _nodes(schedules)
    player = _Player(nodes, _segments(schedules, num_bytes, links.segment_bytes, most_messages), links)
    for number, _ in enumerate(player.messages()):
        if number % MESSAGES_PER_SLICE == 0:
            yield
    ends = player.done_ns
    told = (
        end + links.message_ns + links.delay_ns[source][peer]
        for source, end in enumerate(ends)
        for peer in range(len(ends))
        if peer != source
    )
    return Play(tuple(ends), tuple(player.sent), max(told, default=ends[0]))


@dataclass(slots=True)
class _Node:
    """A transfer of one rank, and what it leads to."""

    rank: int
    peer: int
    chunk: int
    is_send: bool
    num_waits: int = 0
    """For other transfers, and a write for what arrives."""

    taker: int = -1
    """Of a SEND: the transfer that takes it."""

    by_segment: list[int] = field(default_factory=list)
    """What waits for it segment by segment."""

    as_a_whole: list[int] = field(default_factory=list)


class _Segments(NamedTuple):
    """Of one chunk."""

    number: int
    num_bytes: int
    """Of each."""

    num_messages: int
    """Which each stands for."""


def _nodes(schedules: Sequence[Schedule]) -> Generator[None, None, list[_Node]]:
    """The transfers of all ranks, numbered through."""
    nodes: list[_Node] = []
    sends: dict[tuple[int, int, int], int] = {}
    takers: dict[tuple[int, int, int], int] = {}
    for rank, schedule in enumerate(schedules):
        first, written = len(nodes), dict[int, int]()
        for index, number in enumerate(wire_numbers(schedule.transfers)):
            if index % MESSAGES_PER_SLICE == 0:
                yield
            transfer, here = schedule.transfers[index], first + index
            node = _Node(rank, transfer.peer, transfer.chunk, transfer.kind is Kind.SEND)
            nodes.append(node)
            if node.is_send:
                sends[rank, transfer.peer, number] = here
                earlier = [first + each for each in transfer.after]
            else:
                earlier = [written[transfer.chunk]] if transfer.chunk in written else []
                written[transfer.chunk] = here
                if transfer.peer != rank:
                    takers[transfer.peer, rank, number] = here
                    node.num_waits = 1
            for each in earlier:
                same = nodes[each].chunk == node.chunk
                (nodes[each].by_segment if same else nodes[each].as_a_whole).append(here)
            node.num_waits += len(earlier)
    for key, send in sends.items():
        nodes[send].taker = takers[key]
    return nodes


def _segments(schedules: Sequence[Schedule], num_bytes: int, segment_bytes: int, most_messages: int) -> list[_Segments]:
    """Of each chunk; an empty one has one of no bytes, and no message."""
    chunks = [each.stop - each.start for each in split_by_weight(num_bytes, schedules[0].chunks)]
    num_sends = sum(each.kind is Kind.SEND for schedule in schedules for each in schedule.transfers)
    most = max(1, most_messages // max(1, num_sends))
    found = []
    for length in chunks:
        num_messages = -(-length // segment_bytes)
        count = max(1, min(num_messages, most))
        found.append(_Segments(count, -(-length // count), -(-num_messages // count)))
    return found


class _Player:
    """One play, event by event."""

    def __init__(self, nodes: list[_Node], segments: list[_Segments], links: Links) -> None:
        self._nodes, self._segments, self._links = nodes, segments, links
        self._waits = [[node.num_waits] * segments[node.chunk].number for node in nodes]
        self._times = [[0] * segments[node.chunk].number for node in nodes]
        self._left = [segments[node.chunk].number for node in nodes]
        own, hosts = range(links.world_size), links.hosts or range(links.world_size)
        self._hosts = hosts
        lines = {host: line for line, host in enumerate(dict.fromkeys(hosts))}
        self._remote = [lines[host] for host in hosts]  # behind them are those within hosts, one for each rank
        self._local = [len(lines) + rank for rank in own]
        self._up_free, self._down_free = ([0] * (len(lines) + len(own)) for _ in range(2))
        self._events: list[tuple[int, int, int, int, Sent | None]] = []
        self._num_events = 0
        self.done_ns = [0] * links.world_size
        self.sent: list[Sent] = []
        for number, node in enumerate(nodes):
            if node.num_waits == 0:
                for segment in range(segments[node.chunk].number):
                    self._ready(number, segment, 0)

    def messages(self) -> Generator[None]:
        """Play; yields after each that has arrived."""
        while self._events:
            at_ns, _, number, segment, sent = heappop(self._events)
            if sent is None:
                self._send(number, segment, at_ns)
            else:
                self._take(number, segment, sent)
                yield

    def _push(self, at_ns: int, number: int, segment: int, sent: Sent | None) -> None:
        self._num_events += 1
        heappush(self._events, (at_ns, self._num_events, number, segment, sent))

    def _ready(self, number: int, segment: int, at_ns: int) -> None:
        """A transfer waits for nothing any more: a write is done, a SEND stands in line."""
        node = self._nodes[number]
        if node.is_send and self._segments[node.chunk].num_messages:
            self._push(at_ns, number, segment, None)
            return
        if node.is_send:
            self._settle(node.taker, segment, at_ns)
        else:
            self.done_ns[node.rank] = max(self.done_ns[node.rank], at_ns)
        self._finish(node, number, segment, at_ns)

    def _finish(self, node: _Node, number: int, segment: int, at_ns: int) -> None:
        for each in node.by_segment:
            self._settle(each, segment, at_ns)
        self._left[number] -= 1
        if self._left[number] == 0:
            for each in node.as_a_whole:
                for other in range(len(self._waits[each])):
                    self._settle(each, other, at_ns)

    def _settle(self, number: int, segment: int, at_ns: int) -> None:
        """One thing less that a transfer waits for."""
        waits, times = self._waits[number], self._times[number]
        waits[segment] -= 1
        times[segment] = max(times[segment], at_ns)
        if waits[segment] == 0:
            self._ready(number, segment, times[segment])

    def _line(self, rank: int, peer: int, rates: Sequence[int]) -> tuple[int, int]:
        """What a message between them occupies at `rank`, and its rate there."""
        if self._hosts[rank] == self._hosts[peer]:
            return self._local[rank], MEMORY_BYTES_PER_S
        return self._remote[rank], rates[rank]

    def _send(self, number: int, segment: int, at_ns: int) -> None:
        node, links = self._nodes[number], self._links
        _, num_bytes, num_messages = self._segments[node.chunk]
        line, rate = self._line(node.rank, node.peer, links.up)
        start = max(at_ns, self._up_free[line])
        left = start + num_messages * links.message_ns + num_bytes * SECOND_NS // rate
        self._up_free[line] = left
        reached = start + links.delay_ns[node.rank][node.peer]
        sent = Sent(node.rank, node.peer, node.chunk, num_bytes, start, left, reached, 0)
        self._push(reached, node.taker, segment, sent)
        self._finish(node, number, segment, start)

    def _take(self, number: int, segment: int, sent: Sent) -> None:
        node, links = self._nodes[number], self._links
        num_messages = self._segments[node.chunk].num_messages
        line, rate = self._line(node.rank, sent.source, links.down)
        start = max(sent.reached_ns, self._down_free[line])
        through = start + num_messages * links.message_ns + sent.num_bytes * SECOND_NS // rate
        self._down_free[line] = through
        arrived = max(through, sent.left_ns + sent.reached_ns - sent.start_ns)
        self.sent.append(sent._replace(arrived_ns=arrived))
        self._settle(number, segment, arrived)
