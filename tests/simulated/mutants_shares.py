"""Mutants of states from several donors: one rule is removed (R25 and R26 of PROTOCOL.md)."""

from collections.abc import Callable
from dataclasses import replace

from gossip import Member, View
from p2p.catchup.chunk_tracker import ChunkTracker
from p2p.catchup.shares import ShareRequests, donors_of
from p2p.net.parcels import Chunk, ShareRequest

from . import shares
from .mutant import Mutant, mutant


def _at_whatever_step(
    self: ShareRequests, done: int, *, is_complete: bool, is_withheld: bool
) -> list[tuple[ShareRequest, bool]]:
    due = [wish for wish in self.waiting if is_complete and wish.step <= done]
    self.waiting = [wish for wish in self.waiting if wish not in due]
    return [(wish, True) for wish in due]


def _never(self: ShareRequests, done: int, *, is_complete: bool, is_withheld: bool) -> list[tuple[ShareRequest, bool]]:
    due, self.waiting = self.waiting, []
    return [(wish, False) for wish in due]


def _as_its_sender_says(self: ChunkTracker, now: float, source: Member, chunk: Chunk, digest: bytes) -> bool:
    self._moved[source] = now
    is_news = chunk not in self._here
    self._here.setdefault(chunk, (source, digest))
    return is_news


def _whatever_its_class(
    view: View, first: Member, host: str, has_state: Callable[[Member], bool]
) -> tuple[Member, ...]:
    own = view.numerics_of(first) or b""
    seats = tuple([replace(seat, numerics=own) for seat in view.seats])
    return donors_of(replace(view, seats=seats), first, host, has_state)


SHARES: dict[str, Mutant] = {
    "R25: donors copy after different steps": mutant(
        (ShareRequests, "due", _at_whatever_step),
        breaks="S28",
        scenario="SHARES: others hear what they are to give after the next commit",
    ),
    "R25: only the first gives a share": mutant(
        (ShareRequests, "due", _never),
        breaks="S28",
        scenario="SHARES: three donors give one state; two join at once, and one dies; the first donor dies",
    ),
    "R25: members of another class give shares": mutant(
        (shares, "donors_of", _whatever_its_class),
        breaks="S28",
        scenario="SHARES: members of two classes, of which one joins",
    ),
    "R26: a chunk is what its sender says": mutant(
        (ChunkTracker, "came", _as_its_sender_says),
        breaks="S27",
        scenario="SHARES: the replica of a donor is damaged",
    ),
    "R26: the chunks of a dead donor are not asked for again": mutant(
        (ChunkTracker, "over", lambda self, donor: None),
        (ChunkTracker, "_is_lost", lambda self, now, chunk: chunk in self.odd),
        breaks="S28",
        scenario="SHARES: a donor dies before it has sent its share",
    ),
    "R26: who is silent is waited for": mutant(
        (ChunkTracker, "_is_lost", lambda self, now, chunk: chunk in self.odd or self._owners[chunk] in self._over),
        breaks="L1",
        scenario="SHARES: a donor sends nothing, and lives",
    ),
}
