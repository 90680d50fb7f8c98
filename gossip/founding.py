"""Who founds the swarm when every peer is given the same list of seeds: whose address is the first.

It founds when nobody whom it has met, and no other seed, has a lineage; who does not say so is waited for a while. And
not before it has listened for as long as members of a swarm that lives take to call its address: they call each seed
that is not there, again and again (p2p/loop/seeds.py). All others wait. So two peers never found at once, unless their
lists differ or one was cut off, and then the two swarms name each other's founder when they meet. Nothing is merged.

Who takes the place of a member of a run that had others elsewhere cannot tell by their silence whether they are dead or
train on beyond a cut. So it waits until each of their hosts has said that it knows no swarm.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .view import Member, Policy

MOST_SOURCES = 64
"""Members that are remembered to have a lineage."""

MOST_NAMED = 8
"""Addresses in a sentence."""

NO_HOSTS: Mapping[Any, str] = {}
"""Of who takes nobody's place."""

NOBODY_THERE = (
    "this peer takes the place of a member of a run with others at {0}, and nobody there answers: whether they are "
    "gone, or cut off and train on, cannot be told, so it founds no other run; if they are gone, end `shoal run` here "
    "and start it again, which founds, or goes on from a checkpoint"
)


@dataclass(frozen=True, slots=True)
class Foundation:
    """What a peer founds a swarm with, if it falls to it.

    Attributes:
        seeds: control addresses, in the order that is the same everywhere.
        lineage: the new one.
        size: the first step waits for so many peers.
        policy: of the swarm.
        elsewhere: other hosts that had members of the run whose member this peer replaces, each with an address there.
    """

    seeds: Sequence[str]
    lineage: bytes
    size: int
    policy: Policy
    elsewhere: Mapping[str, str] = field(default_factory=dict)


class KnownLineages:
    """Who has said that it has a lineage, whether this peer is to found or not.

    Attributes:
        quiet_since: since then this peer has listened, and nobody is left that has one.
    """

    def __init__(self, now: float) -> None:
        self.quiet_since = now
        self._sources: dict[Member, tuple[bytes, float]] = {}

    def hear(self, now: float, source: Member, lineage: bytes) -> None:
        self._sources.pop(source, None)
        self._sources[source] = lineage, now
        if len(self._sources) > MOST_SOURCES:
            del self._sources[next(iter(self._sources))]

    def find(self, is_gone: Callable[[Member, float], bool]) -> bytes:
        """One that there is; empty: none is known. `is_gone`: of a source, and when it was heard."""
        for source, (_, heard_at) in list(self._sources.items()):
            if is_gone(source, heard_at):
                self.quiet_since = max(self.quiet_since, heard_at)
                del self._sources[source]
        return next((lineage for lineage, _ in self._sources.values()), b"")


@dataclass(slots=True)
class Founding:
    """What one peer knows while it waits for a swarm to join or to found.

    Attributes:
        seeds: addresses, in the order that is the same everywhere.
        own: this peer's.
        size: the first step waits for so many peers.
        begun: when it was to found.
        patience_s: who does not answer for so long has nothing to say.
        greeting_s: members of a swarm that lives have called its address by then.
        elsewhere: as of `Foundation`.
        due: when to decide again, at the latest; infinite: whenever.
    """

    seeds: Sequence[str]
    own: str
    size: int
    begun: float
    patience_s: float
    greeting_s: float
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    due: float = math.inf
    _silent_since: dict[Member, float | None] = field(default_factory=dict)
    """Of those who are alive; None: it has said that it knows no lineage."""

    def __post_init__(self) -> None:
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds must be distinct addresses, at least one, are {list(self.seeds)}")

    @property
    def founds(self) -> bool:
        """Whether it is this peer that founds, if anybody has to."""
        return self.seeds[0] == self.own

    def has_none(self, member: Member) -> None:
        """`member` knows no lineage."""
        self._silent_since[member] = None

    def decide(
        self,
        now: float,
        alive: Mapping[Member, str],
        lineage: bytes,
        quiet_since: float,
        hosts: Mapping[Member, str] = NO_HOSTS,
    ) -> tuple[bool, str]:
        """Whether to found now, and why or why not.

        Args:
            now: the time.
            alive: the others, with their addresses.
            lineage: one that somebody has; empty: nobody, as far as is known.
            quiet_since: this peer has listened since then, and heard of none.
            hosts: of the others.
        """
        self.due = math.inf
        self._silent_since = {member: self._silent_since.get(member, now) for member in alive}
        if lineage:
            return False, f"the swarm exists: lineage {lineage.hex()}"
        if not self.founds:
            return False, f"waiting for a seat; seed {self.seeds[0]} founds"
        soonest, latest = quiet_since + self.greeting_s / 3, quiet_since + self.greeting_s
        self.due = min((time for time in (soonest, latest) if time > now), default=math.inf)
        silent, left_s = self._silent(now, alive)
        if left_s > 0:
            return False, f"waiting {left_s:.0f} s more for {', '.join(silent)} to say whether a swarm exists"
        num_without = sum(since is None for since in self._silent_since.values())
        is_first_start = 1 < self.size <= num_without + 1  # most likely: all for whom the first step waits wait
        left_s = (soonest if is_first_start else latest) - now
        if left_s > 0:
            return False, f"waiting {left_s:.1f} s more for members of a swarm that may exist to call"
        if unheard := self._unheard(alive, hosts):
            more = f" and {len(unheard) - MOST_NAMED} more" if len(unheard) > MOST_NAMED else ""
            return False, NOBODY_THERE.format(", ".join(unheard[:MOST_NAMED]) + more)
        return True, "nobody knows a swarm" + (f"; {', '.join(silent)} did not answer" if silent else "")

    def _silent(self, now: float, alive: Mapping[Member, str]) -> tuple[list[str], float]:
        """Who has not said what it knows, and for how long they are waited for."""
        since = {address: self.begun for address in self.seeds[1:] if address not in alive.values()}
        since |= {alive[member]: since_s for member, since_s in self._silent_since.items() if since_s is not None}
        return list(since), max(since.values(), default=-math.inf) + self.patience_s - now

    def _unheard(self, alive: Mapping[Member, str], hosts: Mapping[Member, str]) -> list[str]:
        """Where members of the run may live: nobody has said that it knows no lineage, or somebody is silent."""
        if not self.elsewhere:
            return []
        knows_none = {member for member, since in self._silent_since.items() if since is None}
        answered = {alive[member] for member in knows_none} | {hosts.get(member, "") for member in knows_none}
        silent = [alive[member] for member in alive if member not in knows_none]
        there = [at for host, at in self.elsewhere.items() if host not in answered and at not in answered]
        return list(dict.fromkeys((*there, *silent)))
