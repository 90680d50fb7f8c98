"""The transfers of all ranks, numbered consecutively, with the lines they occupy: a simulation without sizes."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from collectives.links import MEMORY_BYTES_PER_S, Links
from collectives.partition import split_by_weight
from collectives.schedule import Kind, Schedule, wire_numbers

MOST_MESSAGES: Final = 512
"""Messages per play, if chunks are longer than a segment; otherwise as many as the schedules have."""

TRANSFERS_PER_SLICE: Final = 20


@dataclass(slots=True)
class Node:
    """A transfer of one rank, and the transfers that depend on it."""

    rank: int
    peer: int
    chunk: int
    is_send: bool
    num_waits: int = 0
    """How many things it waits for: earlier transfers, and, for a write, the arrival."""

    taker: int = -1
    """Of a SEND: the transfer that receives it."""

    by_segment: list[int] = field(default_factory=list)
    """Transfers that wait for it segment by segment."""

    as_a_whole: list[int] = field(default_factory=list)
    is_followed: bool = False
    """Whether any transfer waits for it."""

    line: int = 0
    """The line that a message occupies at this rank: the uplink for a SEND, else the downlink."""

    rate: int = 1
    """Of that line."""

    delay_ns: int = 0
    """From the sender to the receiver."""


class Segments(NamedTuple):
    """The segments of one chunk."""

    number: int
    num_bytes: int
    """Of each segment."""

    num_messages: int
    """Messages that each segment stands for."""


@dataclass(frozen=True, slots=True)
class TransferGraph:
    """The transfers of all ranks over links: the part that plays of all sizes have in common."""

    nodes: list[Node]
    first: list[int]
    """Transfers that wait for nothing."""

    whole: list[int]
    """Transfers that others wait for as a whole."""

    rates: set[int]
    links: Links
    chunks: tuple[float, ...]
    num_lines: int
    num_sends: int

    def segments(self, num_bytes: int, most_messages: int = MOST_MESSAGES) -> list[Segments]:
        """The segments of each chunk; an empty chunk has one segment of no bytes, and no message."""
        most, found = max(1, most_messages // max(1, self.num_sends)), []
        for each in split_by_weight(num_bytes, self.chunks):
            length = each.stop - each.start
            num_messages = -(-length // self.links.segment_bytes)
            count = max(1, min(num_messages, most))
            found.append(Segments(count, -(-length // count), -(-num_messages // count)))
        return found


def build_graph(schedules: Sequence[Schedule], links: Links) -> Generator[None, None, TransferGraph]:
    """Prepare a course, in slices."""
    if len(schedules) != links.world_size:
        raise ValueError(f"{len(schedules)} schedules cannot be played over the links of {links.world_size} ranks")
    nodes: list[Node] = []
    sends: dict[tuple[int, int, int], int] = {}
    takers: dict[tuple[int, int, int], int] = {}
    for rank, schedule in enumerate(schedules):
        first, written = len(nodes), dict[int, int]()
        for index, number in enumerate(wire_numbers(schedule.transfers)):
            if index % TRANSFERS_PER_SLICE == 0:
                yield
            transfer, here = schedule.transfers[index], first + index
            node = Node(rank, transfer.peer, transfer.chunk, transfer.kind is Kind.SEND)
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
    num_lines = yield from _find_lines(nodes, links)
    first_ones = [number for number, node in enumerate(nodes) if node.num_waits == 0]
    whole = [number for number, node in enumerate(nodes) if node.as_a_whole]
    rates = {node.rate for node in nodes}
    return TransferGraph(nodes, first_ones, whole, rates, links, schedules[0].chunks, num_lines, len(sends))


def _find_lines(nodes: list[Node], links: Links) -> Generator[None, None, int]:
    """Set line, rate and delay of each transfer; returns the number of lines.

    The lines of hosts come first, then the lines within hosts, one for each rank.
    """
    hosts = links.hosts or range(links.world_size)
    lines = {host: line for line, host in enumerate(dict.fromkeys(hosts))}
    for number, node in enumerate(nodes):
        if number % TRANSFERS_PER_SLICE == 0:
            yield
        if hosts[node.rank] == hosts[node.peer]:
            node.line, node.rate = len(lines) + node.rank, MEMORY_BYTES_PER_S
        else:
            node.line, node.rate = lines[hosts[node.rank]], (links.up if node.is_send else links.down)[node.rank]
        source, target = (node.rank, node.peer) if node.is_send else (node.peer, node.rank)
        node.is_followed = bool(node.by_segment or node.as_a_whole)
        node.delay_ns = links.delay_ns[source][target]
    return len(lines) + links.world_size
