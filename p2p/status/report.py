"""Reports of the status of swarms: JSON for programs, tables and lines for people."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, Final

from ..telemetry.logged import name_in
from ..telemetry.page import PageContent
from ..telemetry.records import ADVANCES, How, Kind, Record, Why
from ..telemetry.snapshot import SHORT, Snapshot, renamed
from ..telemetry.timeline import activity
from .local import Condition, PeerStatus

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

NUM_RECORDS: Final = 32
"""Records of each peer in the report for programs."""
NUM_EVENTS: Final = 5
NUM_LINKS: Final = 4
"""Links of each peer in the report for people."""


def for_programs(found: Mapping[str, Sequence[PeerStatus]]) -> dict[str, Any]:
    """Everything, ready for JSON: numbers that are not finite are strings (`nan`, `inf`)."""
    return {"version": 1, "swarms": {swarm: _swarm(peers) for swarm, peers in found.items()}}


def _swarm(peers: Sequence[PeerStatus]) -> dict[str, Any]:
    latest = latest_snapshot(peers)
    return {
        "view": 0 if latest is None else latest.view,
        "members": [] if latest is None else [peer_id for peer_id, _ in latest.members],
        "step": max((last_step(looked.seen) for looked in peers), default=-1),
        "steps_per_s": 0.0 if latest is None else _plain(latest.pace.steps_per_s),
        "peers": [_peer(looked) for looked in peers],
    }


def _plain(value: Any) -> Any:
    """As `dataclasses.asdict`, for JSON, but without copying plain values, which took most of its time."""
    if is_dataclass(value):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, tuple) and value and is_dataclass(value[0]):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _peer(looked: PeerStatus) -> dict[str, Any]:
    seen = looked.seen
    at, since_ns = current_activity(seen)
    snapshot: dict[str, Any] | None = None
    if seen.snapshot is not None:
        snapshot = _plain(seen.snapshot)
        del snapshot["identity"]
        snapshot["logged"] = {name: _plain(value) for name, value in snapshot["logged"].items()}
    return {
        **_plain(seen.identity),
        "condition": looked.condition.value,
        "age_s": round(looked.age_s, 3),
        "doing": at,
        "doing_since_s": round(max(0, looked.now_ns - since_ns) / 1e9, 3) if since_ns else None,
        "snapshot": snapshot,
        "records": [_record(record) for record in seen.records[-NUM_RECORDS:]],
    }


def _record(record: Record) -> dict[str, Any]:
    values = {name: _plain(value) for name, value in record._asdict().items()}
    values["kind"] = Kind(record.kind).name.lower() if record.kind in set(Kind) else record.kind
    if record.kind in (Kind.INSTALLED, Kind.REDO):
        values["how"] = Why(record.how).words
    else:
        values["how"] = How(record.how).name.lower() if record.how in set(How) else record.how
    if record.kind == Kind.LOGGED:
        values |= {"view": 0, "peer_id": "", "name": name_in(record)}
    return values


def current_activity(seen: PageContent) -> tuple[str, int]:
    """The peer's current activity, and since when (ns); 0: unknown."""
    is_asked = seen.snapshot is not None and not seen.records
    return (seen.snapshot.phase.lower(), 0) if is_asked and seen.snapshot is not None else activity(seen.records)


def last_step(seen: PageContent) -> int:
    """The last step that the peer has committed or loaded; -1: none."""
    known = -1 if seen.snapshot is None else seen.snapshot.step
    return max(known, max((record.step for record in seen.records if record.kind in ADVANCES), default=-1))


def _is_over(peers: Sequence[PeerStatus]) -> bool:
    return all(looked.condition is Condition.DEAD for looked in peers)


def latest_snapshot(peers: Sequence[PeerStatus]) -> Snapshot | None:
    """The snapshot to rely on: of peers that run before others, then of the highest step, then the newest."""
    found = [
        (looked.condition in (Condition.RUNNING, Condition.ELSEWHERE), looked.seen.snapshot.step, -looked.age_s, index)
        for index, looked in enumerate(peers)
        if looked.seen.snapshot is not None
    ]
    return peers[max(found)[-1]].seen.snapshot if found else None


def slowest(peers: Sequence[PeerStatus]) -> PeerStatus | None:
    """The peer, of those not dead, that takes longest to compute and exchange a step; None: there is none."""
    running = [
        (each.seen.snapshot.pace.compute_s + each.seen.snapshot.pace.exchange_s, -index)
        for index, each in enumerate(peers)
        if each.seen.snapshot is not None and each.condition is not Condition.DEAD
    ]
    return peers[-max(running)[1]] if running else None


# Reports for people


def for_people(found: Mapping[str, Sequence[PeerStatus]]) -> "RenderableType":
    """A table and the last events of each swarm."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = []
    for swarm, peers in in_order(found):
        latest, names = latest_snapshot(peers), names_of(peers)
        parts += [Text(headline(swarm, peers, latest)), _table(peers, latest, names)]
        parts += [Text(f"  {line}") for line in (*links(peers, names), *events(peers, latest, names))]
        parts.append(Text(""))
    return Group(*parts[:-1])


def in_order(found: Mapping[str, Sequence[PeerStatus]]) -> list[tuple[str, Sequence[PeerStatus]]]:
    """Swarms by name; those whose peers are all dead come last."""
    return sorted(found.items(), key=lambda item: (_is_over(item[1]), item[0]))


def names_of(peers: Sequence[PeerStatus]) -> dict[str, str]:
    """Names of the peers by peer_id."""
    return {looked.seen.identity.peer_id: looked.seen.identity.name for looked in peers}


def headline(swarm: str, peers: Sequence[PeerStatus], latest: Snapshot | None) -> str:
    if latest is None:
        return f"swarm {swarm}: starting"
    if not latest.view:
        return f"swarm {swarm}: no peer is in a view yet"
    step = max(last_step(looked.seen) for looked in peers)
    if _is_over(peers):
        return f"swarm {swarm}: no peer lives here; the last known step is {step}, in view {latest.view}"
    size = len(latest.members)
    text = f"swarm {swarm}: {size} member{'s' if size != 1 else ''} in view {latest.view}, step {step}"
    return f"{text}, {latest.pace.steps_per_s:.3g} steps/s"


def _table(peers: Sequence[PeerStatus], latest: Snapshot | None, names: Mapping[str, str]) -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table("peer", "process", "seat", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("step", "steps/s", "compute", "exchange", "wait"):
        table.add_column(column, justify="right")
    table.add_column("is at", overflow="fold", max_width=52)
    table.add_column("logged", overflow="fold")
    for looked in peers:
        table.add_row(*map(Text, row_of(looked, latest, names)))
    members = {} if latest is None else dict(latest.members)
    for other in () if latest is None or _is_over(peers) else latest.others:
        if other.peer_id not in names:
            seat = "member" if other.peer_id in members else "out" if other.view else "observes"
            rate = f"{other.steps_per_s:.3g}"
            name, step = other.peer_id[:SHORT], _step(other.step)
            loss = f"loss {other.loss:.4g}" if other.loss else ""
            table.add_row(*map(Text, (name, Condition.ELSEWHERE.value, seat, step, rate, "", "", "", "", loss)))
    return table


def row_of(looked: PeerStatus, latest: Snapshot | None, names: Mapping[str, str]) -> tuple[str, ...]:
    """Name, process, seat, step, steps/s, compute, exchange, wait, current activity, logged values."""
    who, snapshot = looked.seen.identity, looked.seen.snapshot
    process = looked.condition.value + (f" ({who.pid})" if looked.condition is not Condition.ELSEWHERE else "")
    if snapshot is None:
        return who.name, process, "", "", "", "", "", "", "starting", ""
    seat = "" if looked.condition is Condition.DEAD else _seat(snapshot, latest or snapshot)
    logged = ", ".join(f"{name} {value:.4g}" for name, value in snapshot.logged.items())
    pace = snapshot.pace
    split = (f"{seconds * 1e3:.3g} ms" for seconds in (pace.compute_s, pace.exchange_s, pace.wait_s))
    return (
        *(who.name, process, seat, _step(last_step(looked.seen)), f"{pace.steps_per_s:.3g}"),
        *(split if pace.steps_per_s else ("", "", "")),
        *(_is_at(looked, snapshot, names), logged),
    )


def _seat(own: Snapshot, latest: Snapshot) -> str:
    """Of a peer that lives, by its `own` snapshot and the one that knows most: `out`, if it does not know it yet."""
    peer_id = own.identity.peer_id
    members = [each for each, _ in latest.members]
    if peer_id in members:
        return f"rank {members.index(peer_id)}"
    if peer_id in dict(own.members):
        return "out"
    return "observes" if own.has_begun else ""


def _is_at(looked: PeerStatus, snapshot: Snapshot, names: Mapping[str, str]) -> str:
    """The peer's current activity, since when, and which peers it waits for; the last activity of a dead peer."""
    at, since_ns = current_activity(looked.seen)
    since = f", {span(max(0, looked.now_ns - since_ns) / 1e9)}" if since_ns else ""
    if looked.condition is Condition.DEAD:
        return f"was {at}{since} ago" if since else f"was {at}"
    awaited = ""
    if snapshot.waiting.peers and since_ns <= snapshot.time_ns:  # the wait began before the snapshot
        awaited = f"; waits for peer {', '.join(_name(peer_id, names) for peer_id in snapshot.waiting.peers)}"
    elif snapshot.waiting.text and not snapshot.has_begun:
        at = _rename(snapshot.waiting.text, names)
    return f"{snapshot.error or at}{since}{awaited}"


def links(peers: Sequence[PeerStatus], names: Mapping[str, str]) -> Iterator[str]:
    """Lines about the links to other hosts, for each peer not dead; the longest round trips first."""
    for looked in peers:
        known = looked.seen.snapshot.links if looked.seen.snapshot is not None else ()
        if not known or looked.condition is Condition.DEAD:
            continue
        words = [
            f"{_name(each.peer_id, names)} {each.rtt_us / 1e3:.3g} ms, {each.bytes_per_s / 1e6:.3g} MB/s, "
            f"{each.sent_bytes / 1e6:.3g} MB sent"
            for each in sorted(known, key=lambda link: -link.rtt_us)
        ]
        more = f"; and {len(words) - NUM_LINKS} more" if len(words) > NUM_LINKS else ""
        yield f"links of {looked.seen.identity.name}: {'; '.join(words[:NUM_LINKS])}{more}"


def events(peers: Sequence[PeerStatus], latest: Snapshot | None, names: Mapping[str, str]) -> Iterator[str]:
    """The last events, in words."""
    if latest is None:
        return
    now_ns = next(looked.now_ns for looked in peers if looked.seen.snapshot is latest)
    if latest.reason:
        yield f"now: {_rename(latest.reason, names)}"
    if latest.slowest:
        yield f"slow: {_rename(latest.slowest, names)}"
    for time_ns, text in reversed(latest.events[-NUM_EVENTS:]):
        yield f"{span(max(0, now_ns - time_ns) / 1e9)} ago: {_rename(text, names)}"


def span(seconds: float) -> str:
    """A duration in words, in a suitable unit."""
    if seconds < 1:
        return f"{seconds * 1e3:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min"


def _step(step: int) -> str:
    return str(step) if step >= 0 else ""


def _name(peer_id: str, names: Mapping[str, str]) -> str:
    return names.get(peer_id, peer_id[:SHORT])


def _rename(text: str, names: Mapping[str, str]) -> str:
    return renamed(text, lambda peer_id: _name(peer_id, names))
