"""Schedules written out by hand, and small changes to those that there are."""

from collections.abc import Callable
from dataclasses import replace

from hypothesis import strategies as st

from collectives import Kind, Schedule, Transfer, even_chunks

SEND, RECV, REDUCE = Kind
Build = Callable[[int, int], Schedule]
Transfers = list[Transfer]


def listed(*ranks: Transfers, num_chunks: int = 1) -> Build:
    """Schedules written out, one list per rank."""
    return lambda rank, world_size: Schedule(even_chunks(num_chunks), tuple(ranks[rank]))


def edited(build: Build, rank: int, edit: Callable[[Transfers], Transfers]) -> Build:
    """The same, but for one rank."""

    def build_edited(of: int, world_size: int) -> Schedule:
        schedule = build(of, world_size)
        return replace(schedule, transfers=tuple(edit(list(schedule.transfers)))) if of == rank else schedule

    return build_edited


def without(transfers: Transfers, index: int) -> Transfers:
    """One transfer less; nobody waits for it any more."""
    return [
        replace(each, after=tuple(i - (i > index) for i in each.after if i != index))
        for each in transfers[:index] + transfers[index + 1 :]
    ]


def swapped(transfers: Transfers, left: int, right: int) -> Transfers:
    transfers[left], transfers[right] = transfers[right], transfers[left]
    return transfers


@st.composite
def edits(draw: st.DrawFn, schedule: Schedule) -> Callable[[Transfers], Transfers]:
    """One small change to the list of transfers."""
    index = draw(st.integers(0, len(schedule.transfers) - 1))
    other = draw(st.integers(0, len(schedule.transfers) - 1))
    chunk = draw(st.integers(0, len(schedule.chunks) - 1))
    transfer = schedule.transfers[index]
    changed = [replace(transfer, chunk=chunk)]
    if transfer.kind is SEND:
        after = draw(st.sets(st.integers(0, len(schedule.transfers) - 1), max_size=3))
        changed += [replace(transfer, after=tuple(after)), replace(transfer, after=(*transfer.after, *after))]
        changed += [replace(transfer, is_copied=not transfer.is_copied)]
    new = draw(st.sampled_from(changed))
    all_edits: list[Callable[[Transfers], Transfers]] = [
        lambda each: without(each, index),
        lambda each: swapped(each, index, other),
        lambda each: [*each[:index], new, *each[index + 1 :]],
        lambda each: [*each, new],
    ]
    return draw(st.sampled_from(all_edits))
