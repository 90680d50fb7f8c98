"""Measurement of this peer's links: from regular traffic, and from probes where that is too little.

The kernel counts (net/flows.py), so a busy interpreter does not distort the results: the shortest round trip and the
rate of each connection, and the bytes that all carry together. Probes carry meaningless bytes, to one peer after the
other, 1 MB or 0.2 s each, and take at most a tenth of the time. Belongs to the loop.
"""

import math
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from collectives.algorithms import Medium, choose_algorithm
from collectives.links import Links
from collectives.price_table import tabulate
from gossip import Member, View

from ..config import LoopConfig
from ..net.credits import TOTAL_FLOOR_BYTES, TOTAL_S, UNKNOWN, credit_of
from ..net.flows import Flow
from ..net.frames import Frames
from ..net.transport import Transport
from ..step.agreed_rows import AgreedRows, Rows, Table, hosts_of
from ..step.open_step import OpenStep
from ..telemetry.snapshot import Link
from .durations import Durations
from .link_rows import ALIKE_PERCENT, MOST_PEERS, NO_LINES, Pair, Row, known_slices, lines_for, links_of, own_row
from .parts import TableParts
from .probes import Probes

Message = tuple[memoryview, memoryview]
"""Header and payload."""

LOOK_S: Final = 0.05
LOOK_S_PER_LINK: Final = 0.0015
LEAST_BYTES: Final = 64 << 10
"""Least size of a transfer from which a rate is computed."""

SHORTEST_S: Final = 0.2
LONGEST_S: Final = 1.0
BLOCK_S: Final = 10.0
NUM_HIGHEST: Final = 3
"""A rate counts once it was reached this often in the current block of time and the one before."""

NUM_CERTAIN: Final = 10
"""Samples with queueing packets that are needed to know a line: a late core, or a first window, can look alike."""

NEAR_US: Final = 10_000
"""For peers within this round trip, a connection has opened its window long before a rate is taken (`SHORTEST_S`).

For more distant peers, a rate is known to be the line's once packets have queued.
"""

FASTER: Final = 1.2
"""Factor on the agreed bandwidth of the own line that limits the rate of sending; `HEADROOM` is applied on top.

The rate thus reached on a line that has become faster is news (`MOVED`), even if rows were a sixth too high before.
"""

RENEW_S: Final = 8.0
"""Less than the 10 s after which BBR would stop a connection to measure its round trip."""

SMALL_BYTES: Final = 16 << 10
"""The cost of a message smaller than this does not depend on its size."""

LEAST_MESSAGE_NS: Final = 20_000
MOST_MESSAGE_NS: Final = 5_000_000


class High:
    """A value reached several times lately: the third highest, so that a single outlier does not count."""

    def __init__(self) -> None:
        self._blocks: tuple[list[int], list[int]] = [], []
        self._until = 0.0

    def add(self, now: float, value: int) -> None:
        if now >= self._until:
            self._until, self._blocks = now + BLOCK_S, ([], self._blocks[0])
        top = self._blocks[0]
        top.append(value)
        top.sort(reverse=True)
        del top[NUM_HIGHEST:]

    @property
    def value(self) -> int:
        """The value; 0: none was added."""
        top = sorted(self._blocks[0] + self._blocks[1], reverse=True)[:NUM_HIGHEST]
        return top[-1] if top else 0


class Rate:
    """Rate of a byte counter, over intervals in which it never stalls."""

    def __init__(self) -> None:
        self.high = High()
        self._from: tuple[float, int] | None = None
        self._last = 0

    def add(self, now: float, total: int) -> None:
        """Add a sample of the counter."""
        if self._from is None or total <= self._last or now - self._from[0] > LONGEST_S:
            self._from = now, total
        elif total - self._from[1] >= LEAST_BYTES and now - self._from[0] >= SHORTEST_S:
            since, before = self._from
            self.high.add(now, int((total - before) / (now - since)))
            self._from = now, total
        self._last = total


class Line:
    """Bandwidth of the shared bottleneck: what all connections carry together while packets queue."""

    def __init__(self) -> None:
        self._high = High()
        self._num_rates = 0
        self._at = 0.0
        self._flows: Mapping[str, Flow] = {}

    @property
    def bytes_per_s(self) -> int:
        """The bandwidth; 0: packets have seldom queued."""
        return self._high.value if self._num_rates >= NUM_HIGHEST else 0

    def explains(self, rate: int) -> bool:
        """Whether this rate was limited by the line alone, within the error of measurement."""
        return self._num_rates >= NUM_CERTAIN and 100 * rate <= ALIKE_PERCENT * self._high.value

    def add(self, now: float, flows: Mapping[str, Flow]) -> None:
        """Add the counters of all connections. A rate without queueing counts if it exceeds the known bandwidth."""
        before, took_s, self._flows, self._at = self._flows, now - self._at, flows, now
        both = [(flow, before[name]) for name, flow in flows.items() if name in before]
        carried = sum(flow.delivered - former.delivered for flow, former in both if flow.delivered > former.delivered)
        if carried < LEAST_BYTES:
            return
        rate = int(carried / took_s)
        if any(flow.is_queueing and former.is_queueing for flow, former in both) or 0 < self.bytes_per_s < rate:
            self._high.add(now, rate)
            self._num_rates += 1


@dataclass(frozen=True, slots=True)
class BySize:
    """The table for incomplete rows: algorithms are chosen by size, as without a table."""

    world_size: int
    medium: Medium

    def choose(self, num_bytes: int, *, rounds_once: bool = False) -> str:
        """The algorithm by size alone."""
        return choose_algorithm(num_bytes, self.world_size, self.medium)

    def choose_broadcast(self, num_bytes: int, root: int) -> str | None:
        """None: sizes decide."""
        return None


class Measuring:
    """Measurements of one peer.

    Attributes:
        next_at: when to call `look` again.
        row: measurements of the links to the members of the installed view.
        durations: of sums in that view.
        medium: assumed kind of links that are not measured.
        flows: the last counters of connections, by peer_id.
    """

    def __init__(
        self,
        me: Member,
        transport: Transport,
        frames: Frames,
        agreed: AgreedRows,
        config: LoopConfig,
        clock: Callable[[], float],
    ) -> None:
        """Without measurements; without TCP none will follow."""
        self.next_at = 0.0 if config.tcp is not None else math.inf
        self.row = Row()
        self.durations = Durations()
        self.flows: Mapping[str, Flow] = {}
        self._members: tuple[Member, ...] = ()
        self._elsewhere = frozenset[str]()
        self._me, self._transport, self._agreed = me, transport, agreed
        self._clock = clock
        self.medium = config.medium
        transport.pacer.credits.is_on = self.medium is Medium.WAN
        self._segment_bytes = config.operation_segment_bytes
        self._up, self._down, self._line = Rate(), Rate(), Line()
        self._pairs: dict[str, High] = {}
        self._told: dict[str, int] = {}
        self._probes, self._parts = Probes(frames), TableParts()
        self._lines = NO_LINES
        self._lines_of: Rows | None = None
        self._sample_at = self._seen_at = self._renew_at = 0.0
        self._message_ns = 0.0
        self._seen: Rows | None = None
        self._making: tuple[Rows, Generator[None, None, Table]] | None = None
        agreed.row = self.row.pack()

    def timed(self, messages: Iterator[Message]) -> Iterator[Message]:
        """Pass `messages` through, and measure the time to process one, if they are small."""
        began_s, num_messages, num_bytes = self._clock(), 0, 0
        for message in messages:
            yield message
            num_messages, num_bytes = num_messages + 1, num_bytes + len(message[1])
        if 0 < num_bytes < num_messages * SMALL_BYTES:
            took_ns = 1e9 * (self._clock() - began_s) / num_messages
            self._message_ns += (took_ns - self._message_ns) / 16

    def watch(self, open_step: OpenStep) -> None:
        """Update after operations may have begun or ended."""
        if self.next_at < math.inf:
            now = self._clock()
            self.durations.watch(now, open_step)
            self._parts.watch(now, open_step.run)

    def look(self, view: View | None) -> None:
        """Read the counters, update the row, and continue to compute a pending table."""
        now = self._clock()
        if now >= self._sample_at and view is not None:
            self._sample(now, view)
            self._sample_at = now + max(LOOK_S, LOOK_S_PER_LINK * len(view.members))
        if now >= self._parts.late_at:
            self._tabulate()
        self.next_at = now + LOOK_S if self._making is None else self._parts.late_at

    def use_wait(self) -> None:
        """Continue the table in progress, if due: a call is waiting for others."""
        if self._making is not None and self._clock() >= self._parts.next_at:
            self._tabulate()
            self.next_at = self._parts.late_at

    def links(self, view: View) -> Links | None:
        """The links on which prices in `view` are based; None: sizes decide there."""
        rows = self._agreed.used
        return None if rows is None or rows.members != view.members else links_of(rows, self._segment_bytes)

    def shown(self) -> tuple[Link, ...]:
        """Data of each connection, for display. For any thread."""
        flows, pairs = self.flows, self._pairs
        return tuple(
            Link(
                peer_id=peer_id,
                rtt_us=flow.rtt_us,
                bytes_per_s=pairs[peer_id].value if peer_id in pairs else 0,
                sent_bytes=flow.acked,
            )
            for peer_id, flow in sorted(flows.items())
        )

    def _sample(self, now: float, view: View) -> None:
        if view.members != self._members:
            self._members, ids = view.members, {each.peer_id for each in view.members}
            self._pairs = {peer_id: high for peer_id, high in self._pairs.items() if peer_id in ids}
            self._told = {peer_id: rate for peer_id, rate in self._told.items() if peer_id in ids}
            self._probes.keep(ids)
            self._elsewhere = frozenset(each.peer_id for each in on_other_hosts(self._me, view))
            self.durations.forget()
        others = after(self._me, view)
        flows = self.flows = self._transport.flows() if others else {}
        if not flows:
            return
        self._up.add(now, sum(flow.acked for flow in flows.values()))
        self._down.add(now, self._transport.num_received())
        if self.medium is Medium.WAN:
            if now >= self._renew_at:
                self._renew_at = now + RENEW_S
                self._transport.renew_flows()
            self._line.add(now, flows)
            self._bound(view, flows)
        for peer_id, flow in flows.items():
            if flow.bytes_per_s != self._told.get(peer_id):
                self._told[peer_id] = flow.bytes_per_s
                self._pairs.setdefault(peer_id, High()).add(now, flow.bytes_per_s)
        known = {each.peer_id: flows[each.peer_id] for each in others if each.peer_id in flows}
        self._probes.go_on(now, known)
        self._say(now, view, known)

    def _bound(self, view: View, flows: Mapping[str, Flow]) -> None:
        """Set the credits for the other members, from the agreed rows and the rates reached."""
        credits, rows = self._transport.pacer.credits, self._agreed.used
        if rows is None or rows.members != view.members:
            self._lines, self._lines_of = NO_LINES, None
        elif rows is not self._lines_of:
            self._lines, self._lines_of = lines_for(self._me.peer_id, rows), rows
        bounds = {}
        for peer_id, flow in flows.items():
            reached = self._pairs[peer_id].value if peer_id in self._pairs else 0
            down = self._lines.down.get(peer_id, 0)
            known = credit_of(max(down, reached), flow.rtt_us / 1e6)
            bounds[peer_id] = known if down else known._replace(most=max(known.most, UNKNOWN.most))
        credits.set(bounds)
        longest_s = max(flow.rtt_us for flow in flows.values()) / 1e6
        # Acknowledgements that arrive together overestimate the line, so the agreed bandwidth limits it.
        line, agreed = self._line.bytes_per_s, int(FASTER * self._lines.own)
        rate = min(line, agreed) if agreed else line
        self._transport.pacer.bytes_per_s = rate
        credits.total = credit_of(rate, longest_s, TOTAL_S, TOTAL_FLOOR_BYTES) if rate else None

    def _say(self, now: float, view: View, flows: Mapping[str, Flow]) -> None:
        """Update the row, and decide whether to announce it."""
        probed = {each: flow for each, flow in flows.items() if self._probes.is_measured(each, flow)}
        to = {each: Pair(flow.rtt_us, self._pairs[each].value) for each, flow in probed.items()}
        up = max([self._up.high.value, *(pair.bytes_per_s for pair in to.values())])
        message_ns = int(min(max(2 * self._message_ns, LEAST_MESSAGE_NS), MOST_MESSAGE_NS))
        medians = self.durations.medians(now, self._agreed.table(view))
        took = {place: round(took_s * 1e6) for place, took_s in medians.items()}
        is_near = max((pair.rtt_us for pair in to.values()), default=0) <= NEAR_US
        is_line = is_near or self._line.explains(up)
        row = self.row = Row(up, self._down.high.value, message_ns, to, took, is_line, is_near)
        agreed = self._agreed
        rows = agreed.rows or agreed.used
        if rows is not self._seen:
            self._seen, self._seen_at = rows, now
        before = None if rows is None else own_row(rows, view, self._me.peer_id)
        is_whole = len(view.members) <= MOST_PEERS and bool(self._elsewhere) and row.covers(self._elsewhere)
        is_news = before is None or (rows is agreed.used and row.is_news(before, now - self._seen_at))
        agreed.row, agreed.wants = row.pack(), is_whole and is_news

    def _tabulate(self) -> None:
        """Compute a part of the pending table, if there is one."""
        rows = self._agreed.untabulated
        if rows is None:
            self._making = None
            return
        if self._making is None or self._making[0] is not rows:
            self._making = rows, self._table_of(rows)
        until = self._clock() + self._parts.part_s
        try:
            while self._clock() < until:
                next(self._making[1])
        except StopIteration as end:
            self._agreed.tabulated(rows, end.value)
            self._making = None
        self._parts.was_made(self._clock())

    def _table_of(self, rows: Rows) -> Generator[None, None, Table]:
        """Compute the table of `rows`, in slices."""
        links, took_us = yield from known_slices(rows, self._segment_bytes)
        if links is None:
            return BySize(len(rows.members), self.medium)
        return (yield from tabulate(links, {place: each_us * 1000 for place, each_us in took_us.items()}))


def after(me: Member, view: View) -> list[Member]:
    """The other members, from the next rank on, so that not all begin with the same one."""
    if me not in view.members:
        return []
    rank = view.members.index(me)
    return [*view.members[rank + 1 :], *view.members[:rank]]


def on_other_hosts(me: Member, view: View) -> list[Member]:
    """The other members on other hosts, to which links are measured; those within a host are not."""
    hosts = dict(zip(view.members, hosts_of(view), strict=True))
    return [each for each in after(me, view) if hosts[each] != hosts[me]]
