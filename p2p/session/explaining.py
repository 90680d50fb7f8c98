"""Explains which algorithm an all-reduce of some size takes, and why. A snapshot of what the loop's thread writes."""

from typing import Any, Final

from collectives import Medium
from collectives.price_table import PriceTable, nearest_size
from gossip import View

from ..loop.link_rows import MOST_PEERS, has_known_line
from ..loop.loop import Loop
from ..loop.measuring import on_other_hosts
from ..step.collective import AllReduce
from ..step.operation import PART_BYTES, WHOLE_BYTES

GUESSED: Final = "; no line was full yet, so one speed is assumed for all"


def explain(loop: Loop, num_bytes: int) -> dict[str, Any]:
    """See `Peer.explain`."""
    view, agreed = loop.core.view, loop.open_step.agreed
    table = None if view is None else agreed.table(view)
    world_size = 1 if view is None else len(view.members)
    medium = loop.measuring.medium if loop.shared() is None else Medium.MEMORY
    num_called = PART_BYTES if num_bytes > WHOLE_BYTES else num_bytes
    by_size = AllReduce().choose(None, num_called, world_size, medium)
    size, took = nearest_size(num_bytes), loop.measuring.durations.medians(loop.now(), table)
    priced = table if isinstance(table, PriceTable) else None
    prices = {} if priced is None else priced.of(num_bytes)
    return {
        "size_bytes": num_bytes,
        "algorithm": by_size if table is None else table.choose(num_called),
        "why": _why(loop, view, is_priced=priced is not None),
        "expected_s": {name: price / 1e9 for name, price in prices.items()},
        "predicted_s": {} if priced is None else {name: priced.predicted[name, size] / 1e9 for name in prices},
        "measured_s": {name: took_s for (name, at), took_s in took.items() if at == size},
    }


def _why(loop: Loop, view: View | None, *, is_priced: bool) -> str:
    agreed, me = loop.open_step.agreed, loop.core.me
    rows = agreed.rows if agreed.rows is not None else agreed.used
    if view is None or len(view.members) < 2:
        return "by size: there are no links"
    if is_priced and agreed.used is not None:
        guessed = "" if has_known_line(agreed.used) else GUESSED
        return f"the cheapest, over links as all members have measured them up to step {agreed.used.step}{guessed}"
    if len(view.members) > MOST_PEERS:
        return f"by size: links are measured in views of {MOST_PEERS} members at most"
    if loop.shared() is not None:
        return "by size: all members read each other's memory"
    row = loop.measuring.row
    elsewhere = on_other_hosts(me, view)
    if not elsewhere:
        return "by size: all members are on one host, and links are measured between hosts"
    if missing := [str(other) for other in elsewhere if other.peer_id not in row.to]:
        return f"by size: the link to peer {', '.join(missing)} is not measured"
    if rows is None or rows.members != view.members:
        return "by size: measurements are gathered at the end of a training step, and none has ended since"
    if agreed.untabulated is not None:
        return f"by size: the table of what step {rows.step} gathered is being made"
    if rows is agreed.used:
        return f"by size: not all members had measured their links when step {rows.step} gathered what they know"
    return f"by size: no receipt says yet that all members have the table of what step {rows.step} gathered"
