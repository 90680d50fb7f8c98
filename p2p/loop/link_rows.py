"""Rows: a peer's measurements of its links as bytes of fixed length, and what the rows of all members imply. Pure."""

from collections.abc import Generator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from statistics import median_low
from typing import Any, Final, NamedTuple

import numpy as np

from collectives import Array
from collectives.links import MEMORY_DELAY_NS, SEGMENT_BYTES, Links
from collectives.price_table import CANDIDATES, SIZES_BYTES
from collectives.pricing import run_to_end
from gossip import View

from ..step.agreed_rows import Rows

MOST_PEERS: Final = 64
"""Capacity of a row; in a larger view only sizes decide."""

MOVED: Final = 1.2
"""A row has moved if any entry differs by this factor."""

SURPRISING: Final = 1.3
"""A duration that differs by this factor is significant."""

SETTLED_S: Final = 3.0
"""How long after rows were gathered they are not gathered again, in a view of the same members."""

TRIED_S: Final = 10.0
"""The same if only the durations of sums have changed."""

ALIKE_PERCENT: Final = 140
"""Lines whose ratio is below this are equally fast, within the error of measurement."""

OPENED: Final = 8
LEAST_LINE: Final = 12_500_000
"""Assumed bandwidth if no member knows of a full line: `OPENED` times the rate reached, and at least `LEAST_LINE`
bytes/s.

The rate reached then is limited by windows, and three round trips later a window in use is eight times as wide (slow
start); over a long path it measures nothing. Prices that are too low fill the line, so that its bandwidth becomes
known; prices that are too high never do.
"""

LEAST_US: Final = 200
"""A round trip that differs by less has not moved."""

_PAIR: Final = np.dtype([("peer", "<u8"), ("rtt_us", "<u4"), ("bytes_per_s", "<u4")])
_MOST: Final = 2**32 - 1


class Pair(NamedTuple):
    """Link to one other peer: the shortest round trip, and the highest rate at which it has received data from here."""

    rtt_us: int
    bytes_per_s: int


NO_PAIR: Final = Pair(0, 0)


Took = Mapping[tuple[str, int], int]
"""Duration of a sum in microseconds, by algorithm and size."""

_PLACES: Final = tuple((name, size) for name in CANDIDATES for size in SIZES_BYTES)


_FIELDS: Final = [("up", "<u4"), ("down", "<u4"), ("message_ns", "<u4"), ("num", "<u4"), ("to", _PAIR, MOST_PEERS)]
_ROW: Final = np.dtype([*_FIELDS, ("took_us", "<u4", len(_PLACES)), ("lines", "<u4")])
_UP, _DOWN = 1, 2
"""Bits of `lines`."""


@dataclass(frozen=True, slots=True)
class Row:
    """Measurements of one peer. 0: not measured yet.

    Attributes:
        up, down: bytes per second, sent to all others, and received from them.
        message_ns: time that the peer takes per message.
        to: links, by peer_id.
        took: measured durations only.
        up_is_line, down_is_line: whether the rate is the bandwidth of the line; else the line may carry more.
    """

    up: int = 0
    down: int = 0
    message_ns: int = 0
    to: Mapping[str, Pair] = field(default_factory=dict)
    took: Took = field(default_factory=dict)
    up_is_line: bool = False
    down_is_line: bool = False

    def pack(self) -> Array:
        """The row as `ROW_BYTES` bytes."""
        row = np.zeros((), _ROW)
        kept = list(self.to.items())[:MOST_PEERS]
        row["up"], row["down"], row["message_ns"] = (min(each, _MOST) for each in (self.up, self.down, self.message_ns))
        row["num"] = len(kept)
        row["took_us"] = [min(self.took.get(place, 0), _MOST) for place in _PLACES]
        row["lines"] = _UP * self.up_is_line + _DOWN * self.down_is_line
        for place, (peer_id, pair) in enumerate(kept):
            row["to"][place] = int(peer_id, 16), min(pair.rtt_us, _MOST), min(pair.bytes_per_s, _MOST)
        return row.reshape(1).view(np.uint8)

    @classmethod
    def unpack(cls, raw: Array) -> "Row":
        """The inverse of `pack`; for other bytes of that length, an arbitrary row."""
        row: Any = raw.view(_ROW)[0]
        pairs = row["to"][: min(int(row["num"]), MOST_PEERS)]
        to = {f"{int(each['peer']):016x}": Pair(int(each["rtt_us"]), int(each["bytes_per_s"])) for each in pairs}
        took = {place: took_us for place, took_us in zip(_PLACES, row["took_us"].tolist(), strict=True) if took_us}
        up, down, message_ns, lines = (int(row[name]) for name in ("up", "down", "message_ns", "lines"))
        return cls(up, down, message_ns, to, took, bool(lines & _UP), bool(lines & _DOWN))

    def covers(self, peer_ids: Set[str]) -> bool:
        """Whether the links to all of these are measured."""
        return self.up > 0 and self.down > 0 and all(self.to.get(each, NO_PAIR).rtt_us for each in peer_ids)

    def has_moved(self, since: "Row") -> bool:
        """Whether a rate or round trip differs from that in `since`, or a rate has become known as the line's."""
        if (self.up_is_line and not since.up_is_line) or (self.down_is_line and not since.down_is_line):
            return True
        told = [(self.up, since.up, 0), (self.down, since.down, 0)]
        told += [(pair.rtt_us, since.to.get(each, NO_PAIR).rtt_us, LEAST_US) for each, pair in self.to.items()]
        return any(abs(now - before) > max((MOVED - 1) * min(now, before), least) for now, before, least in told)

    def is_surprised(self, since: "Row") -> bool:
        """Whether durations of sums differ from those in `since`."""
        both = ((took_us, since.took[place]) for place, took_us in self.took.items() if place in since.took)
        return any(max(each) > SURPRISING * min(each) for each in both)

    def has_tried(self, since: "Row") -> bool:
        """Whether it has durations that `since` lacks."""
        return not self.took.keys() <= since.took.keys()

    def is_news(self, since: "Row", since_s: float) -> bool:
        """Whether this row should replace `since`, which was gathered `since_s` seconds ago."""
        return (since_s >= SETTLED_S and (self.has_moved(since) or self.has_tried(since))) or (
            since_s >= TRIED_S and self.is_surprised(since)
        )


ROW_BYTES: Final = _ROW.itemsize


def rows_of(rows: Rows) -> list[Row]:
    """The rows in rank order."""
    return [Row.unpack(each) for each in rows.raw.reshape(len(rows.members), ROW_BYTES)]


def own_row(rows: Rows, view: View, peer_id: str) -> Row | None:
    """The row of that peer, if `rows` are of the members of `view`."""
    names = [member.peer_id for member in rows.members]
    return rows_of(rows)[names.index(peer_id)] if rows.members == view.members and peer_id in names else None


def links_of(rows: Rows, segment_bytes: int = SEGMENT_BYTES) -> Links | None:
    """The links between the members, in integers, so that all compute the same; None: not all are measured.

    Members of one host share one line, as fast as the fastest of them has measured; links between them are not
    measured. `segment_bytes`: maximum size of a message.
    """
    return run_to_end(known_slices(rows, segment_bytes))[0]


def known_slices(rows: Rows, segment_bytes: int) -> Generator[None, None, tuple[Links | None, Took]]:
    """Links as of `links_of`, and durations of sums; yields after each row."""
    names, hosts, said = [member.peer_id for member in rows.members], rows.hosts, list[Row]()
    for raw in rows.raw.reshape(len(names), ROW_BYTES):
        said.append(Row.unpack(raw))
        yield
    took, delays = took_of(said), list[tuple[int, ...]]()
    for i, (one, host, row) in enumerate(zip(names, hosts, said, strict=True)):
        others = {name for name, its in zip(names, hosts, strict=True) if its != host}
        if not (others and row.covers(others)):
            return None, took
        delays.append(
            tuple(
                MEMORY_DELAY_NS * (i != j)
                if hosts[j] == host
                else (row.to[other].rtt_us + said[j].to.get(one, NO_PAIR).rtt_us) * 250
                for j, other in enumerate(names)
            )
        )
        yield
    message_ns, (up, down) = median_low([row.message_ns for row in said]), _lines_of(names, said, hosts)
    return Links(up, down, tuple(delays), message_ns, segment_bytes, hosts), took


def has_known_line(rows: Rows) -> bool:
    """Whether any rate is known to be a line's; else all are assumed, and equal."""
    return any(row.up_is_line or row.down_is_line for row in rows_of(rows))


class Lines(NamedTuple):
    """Bandwidths that limit what a peer sends, in bytes per second.

    Attributes:
        own: of its host's line, as agreed; 0: no member of its host knows it.
        down: at which each member has received data, by peer_id; its line may be faster.
    """

    own: int
    down: Mapping[str, int]


NO_LINES: Final = Lines(0, {})


def lines_for(peer_id: str, rows: Rows) -> Lines:
    """The lines for that member. Reads all rows, 0.1 ms each."""
    names, said, hosts = [member.peer_id for member in rows.members], rows_of(rows), rows.hosts
    rank = names.index(peer_id)
    is_known = any(row.up_is_line for row, host in zip(said, hosts, strict=True) if host == hosts[rank])
    own = _lines_of(names, said, hosts)[0][rank] if is_known else 0
    return Lines(own, dict(zip(names, _downs(names, said), strict=True)))


def _downs(names: Sequence[str], said: Sequence[Row]) -> list[int]:
    return [
        max([row.down, *(other.to[name].bytes_per_s for other in said if name in other.to)])
        for name, row in zip(names, said, strict=True)
    ]


def _lines_of(
    names: Sequence[str], said: Sequence[Row], hosts: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Bytes per second up and down of each rank, for the line of its host.

    A rate that is not known to be the line's is only a lower bound: the line is then assumed as fast down as up, if one
    of these is known, and else as fast as the fastest; if none is known, all are assumed equal, and faster than any
    rate seen (`OPENED`, `LEAST_LINE`).
    """
    ups = [max([row.up, *(row.to[each].bytes_per_s for each in names if each in row.to)]) for row in said]
    downs = _downs(names, said)
    fastest = max(*ups, *downs)
    if not any(row.up_is_line or row.down_is_line for row in said):
        fastest = max(OPENED * fastest, LEAST_LINE)
    lines = {}
    for host in dict.fromkeys(hosts):
        ranks = [rank for rank, its in enumerate(hosts) if its == host]
        up, down = (max(rates[rank] for rank in ranks) for rates in (ups, downs))
        is_up, is_down = any(said[rank].up_is_line for rank in ranks), any(said[rank].down_is_line for rank in ranks)
        otherwise = max(up, down) if is_up or is_down else fastest
        lines[host] = up if is_up else otherwise, down if is_down else otherwise
    known = alike([rate for line in lines.values() for rate in line], [row.down for row in said])
    return tuple(known[lines[host][0]] for host in hosts), tuple(known[lines[host][1]] for host in hosts)


def alike(rates: Sequence[int], received: Sequence[int] = ()) -> Mapping[int, int]:
    """The rate that each of these is rounded to: one rate for all that may be equal.

    That is the highest of them, since measured rates never exceed the line's, and are lower where a peer waits for a
    core or has sent little yet; or the highest of them that was `received`. Sent bytes are counted by acknowledgements,
    which queue behind data of the other direction and then arrive together: a sixth too fast. Received bytes are
    counted as they arrive.
    """
    found: dict[int, int] = {}
    top = 0
    for rate in sorted(rates, reverse=True):
        if not found or ALIKE_PERCENT * rate < 100 * top:
            top = rate
        counted = (each for each in received if each <= top <= ALIKE_PERCENT * each // 100)
        found[rate] = max(counted, default=top)
    return found


def took_of(rows: Sequence[Row]) -> Took:
    """Durations of sums: the minimum over the members, if all have one, since the others have waited for that one."""
    said = [row.took for row in rows]
    return {place: min(took[place] for took in said) for place in _PLACES if all(place in took for took in said)}
