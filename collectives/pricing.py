"""Predicted cost of an operation, by playing the schedules of all ranks over links; in integers, of ns and bytes.

The model: each rank has one uplink and one downlink, shared by the ranks of its host; between them is a delay. A
message occupies the uplink for its bytes and for the cost of a message; its first byte reaches the downlink after the
delay, and the others follow as fast as both links allow. Messages to one peer are sent in the order in which they
become ready, and to several peers round-robin, a message each, as connections share a line; they are received in order
of arrival. Within a host messages are sent over memory, and compete only with those of the same rank. Left out: TCP's
slow start, loss, queues that overflow, additions. A message is a segment; several segments of a long chunk are played
as one, so that a play has at most `MOST_MESSAGES`.

Works for any schedules that `verify` accepts. From `FEW_RANKS` on, `formulas` gives the price of the built-in ones
within some percent of a play. All computations are in slices: generators that yield after a part of a millisecond, and
return the result.
"""

from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final, NamedTuple, TypeVar

from collectives.links import SECOND_NS, Links
from collectives.schedule import Schedule
from collectives.transfer_graph import MOST_MESSAGES, Node, Segments, TransferGraph, build_graph

Result = TypeVar("Result")

EVENTS_PER_SLICE: Final = 10
"""A message takes two events, or three if it waits for its turn."""

_IS_READY: Final = -1
_IS_FREE: Final = -2


class Sent(NamedTuple):
    """One message of a play: one or several segments."""

    source: int
    peer: int
    chunk: int
    num_bytes: int
    start_ns: int
    """When its sender begins to send it."""

    left_ns: int
    reached_ns: int
    """When its first byte reaches the receiver's downlink, which may be busy."""

    arrived_ns: int


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """The result of a play.

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
        """When the last rank has its result."""
        return max(self.done_ns)


def simulate(
    schedules: Sequence[Schedule], num_bytes: int, links: Links, *, most_messages: int = MOST_MESSAGES
) -> SimulatedRun:
    """Play an operation on `num_bytes` of each rank."""
    return run_to_end(simulate_slices(schedules, num_bytes, links, most_messages))


def run_to_end(slices: Generator[None, None, Result]) -> Result:
    """Run all slices at once; returns the result."""
    while True:
        try:
            next(slices)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def simulate_slices(
    schedules: Sequence[Schedule], num_bytes: int, links: Links, most_messages: int = MOST_MESSAGES
) -> Generator[None, None, SimulatedRun]:
    """Like `simulate`, in slices."""
    course, sent = (yield from build_graph(schedules, links)), list[Sent]()
    ends = yield from run_slices(course, num_bytes, most_messages, sent)
    told = (
        end + links.message_ns + links.delay_ns[source][peer]
        for source, end in enumerate(ends)
        for peer in range(len(ends))
        if peer != source
    )
    return SimulatedRun(tuple(ends), tuple(sent), max(told, default=ends[0]))


def run_slices(
    course: TransferGraph, num_bytes: int, most_messages: int = MOST_MESSAGES, sent: list[Sent] | None = None
) -> Generator[None, None, list[int]]:
    """When each rank has its result, in ns, in slices. Messages that arrive are appended to `sent`."""
    player = _Simulator(course, course.segments(num_bytes, most_messages), sent)
    yield from player.play()
    return player.done_ns


class _Simulator:
    """One play, event by event.

    A *place* identifies a segment of a transfer: number of the transfer + segment * number of transfers.
    """

    def __init__(self, course: TransferGraph, segments: list[Segments], sent: list[Sent] | None) -> None:
        self._nodes, self._segments, self._sent = course.nodes, segments, sent
        message_ns = course.links.message_ns
        costs = {
            (chunk, rate): each.num_messages * message_ns + each.num_bytes * SECOND_NS // rate
            for chunk, each in enumerate(segments)
            for rate in course.rates
        }
        self._cost_ns = [costs[node.chunk, node.rate] for node in course.nodes]
        most = max(each.number for each in segments)
        self._waits = [node.num_waits for node in course.nodes] * most
        self._times = [0] * len(self._waits)
        self._whole = {number: segments[course.nodes[number].chunk].number for number in course.whole}
        self._up_free, self._down_free = ([0] * course.num_lines for _ in range(2))
        self._queues = [dict[int, deque[int]]() for _ in range(course.num_lines)]
        """Per uplink, by peer: non-empty queues of places that wait. The first peer is next, unless it is `_last`."""
        self._last = [-1] * course.num_lines
        self._events: list[tuple[int, int, int, int]] = []
        self._num_events = 0
        self.done_ns = [0] * course.links.world_size
        for number in course.first:
            for segment in range(segments[course.nodes[number].chunk].number):
                self._settle(number + segment * len(course.nodes), 0)

    def play(self) -> Generator[None]:
        """Process all events, in slices.

        An event is (time, count, place, what). `what` is `_IS_READY`: a SEND is ready; `_IS_FREE`: an uplink, given as
        place, is free for the next message; else a message reaches the receiver's line, and `what` is the earliest
        time at which it can be complete there.
        """
        events, nodes, cost_ns, num_nodes = self._events, self._nodes, self._cost_ns, len(self._nodes)
        up_free, down_free, queues, last = self._up_free, self._down_free, self._queues, self._last
        while True:
            for _ in range(EVENTS_PER_SLICE):
                if not events:
                    return
                at_ns, _, place, through = heappop(events)
                if through == _IS_FREE:
                    place = self._next_of(place, at_ns)
                number = place % num_nodes
                node = nodes[number]
                line = node.line
                if through < 0:
                    if through == _IS_READY and (up_free[line] > at_ns or queues[line]):
                        self._queue(node, place)
                        continue
                    up_free[line] = left = at_ns + cost_ns[number]
                    last[line] = node.peer
                    self._num_events += 1
                    delay_ns = node.delay_ns
                    taker = place - number + node.taker
                    heappush(events, (at_ns + delay_ns, self._num_events, taker, left + delay_ns))
                    if node.is_followed:
                        self._finish(node, place, at_ns)
                    continue
                start = down_free[line]
                if start < at_ns:
                    start = at_ns
                down_free[line] = end = start + cost_ns[number]
                if self._sent is not None:
                    self._note(node, at_ns, through, max(end, through))
                self._settle(place, end if end > through else through)
            yield

    def _queue(self, node: Node, place: int) -> None:
        """Queue a place behind others for its peer; the first one in a line adds an event for when the line is free."""
        if not (queue := self._queues[node.line]):
            self._num_events += 1
            heappush(self._events, (self._up_free[node.line], self._num_events, node.line, _IS_FREE))
        queue.setdefault(node.peer, deque()).append(place)

    def _next_of(self, line: int, at_ns: int) -> int:
        """The place to send next over a free line; the peer of the last message is behind the others."""
        queue = self._queues[line]
        waiting = iter(queue)
        if (peer := next(waiting)) == self._last[line]:
            peer = next(waiting, peer)
        places = queue.pop(peer)
        place = places.popleft()
        if places:
            queue[peer] = places
        if queue:
            self._num_events += 1
            until = at_ns + self._cost_ns[place % len(self._nodes)]
            heappush(self._events, (until, self._num_events, line, _IS_FREE))
        return place

    def _note(self, node: Node, reached_ns: int, through_ns: int, arrived_ns: int) -> None:
        assert self._sent is not None
        start_ns, left_ns = reached_ns - node.delay_ns, through_ns - node.delay_ns
        num_bytes = self._segments[node.chunk].num_bytes
        times = start_ns, left_ns, reached_ns, arrived_ns
        self._sent.append(Sent(node.peer, node.rank, node.chunk, num_bytes, *times))

    def _settle(self, place: int, at_ns: int) -> None:
        """Count down what a transfer waits for; at 0 a write is done, and a SEND becomes ready."""
        times, left = self._times, self._waits[place] - 1
        if times[place] > at_ns:
            at_ns = times[place]
        if left > 0:
            self._waits[place], times[place] = left, at_ns
            return
        node = self._nodes[place % len(self._nodes)]
        if node.is_send:
            if self._segments[node.chunk].num_messages:
                self._num_events += 1
                heappush(self._events, (at_ns, self._num_events, place, _IS_READY))
                return
            self._settle(place - place % len(self._nodes) + node.taker, at_ns)
        elif at_ns > self.done_ns[node.rank]:
            self.done_ns[node.rank] = at_ns
        if node.is_followed:
            self._finish(node, place, at_ns)

    def _finish(self, node: Node, place: int, at_ns: int) -> None:
        number = place % len(self._nodes)
        first = place - number
        for each in node.by_segment:
            self._settle(first + each, at_ns)
        if node.as_a_whole:
            self._whole[number] -= 1
            if self._whole[number] == 0:
                for each in node.as_a_whole:
                    for segment in range(self._segments[self._nodes[each].chunk].number):
                        self._settle(each + segment * len(self._nodes), at_ns)
