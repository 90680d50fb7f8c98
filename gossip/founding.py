"""Founding: which peer founds the swarm when all are given the same list of seeds: the one at the first address.

It founds when no peer that it has discovered, and no other seed, has a lineage; it waits a while for those that have
not said so. It also first listens for as long as members of an existing swarm take to call its address: they repeatedly
call each seed that is missing (p2p/loop/seeds.py). All others wait. So two peers never found at once, unless their
lists differ or one was cut off; then the two swarms name each other's founder when they meet. Swarms are never merged.

A peer that replaces a member of a run with members on other hosts cannot tell by their silence whether they are dead or
train on beyond a cut. So it waits until each of their hosts has said that it knows no swarm.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .view import Member, Policy

MOST_SOURCES = 64
"""Limit of the members remembered as having a lineage."""

MOST_NAMED = 8
"""Most addresses in a sentence."""

NO_HOSTS: Mapping[Any, str] = {}
"""`elsewhere` of a peer that replaces no member."""

NOBODY_THERE = (
    "this peer takes the place of a member of a run with others at {0}, and no peer there answers: they may be gone, "
    "or cut off and still training, so it founds no other run; if they are gone, end `shoal run` here and start it "
    "again: it then founds, or continues from a checkpoint"
)


@dataclass(frozen=True, slots=True)
class Foundation:
    """What a peer founds a swarm with, if it has to.

    Attributes:
        seeds: control addresses, in the same order everywhere.
        lineage: the new one.
        size: number of peers that the first step waits for.
        policy: of the swarm.
        elsewhere: other hosts with members of the run in which this peer replaces a member, each with an address there.
    """

    seeds: Sequence[str]
    lineage: bytes
    size: int
    policy: Policy
    elsewhere: Mapping[str, str] = field(default_factory=dict)


class KnownLineages:
    """Members that have said that they have a lineage; kept by all peers, whether they may found or not.

    Attributes:
        listening_since: since then this peer has listened, and none of the members that it heard of is left.
    """

    def __init__(self, now: float) -> None:
        self.listening_since = now
        self._sources: dict[Member, tuple[bytes, float]] = {}

    def hear(self, now: float, source: Member, lineage: bytes) -> None:
        self._sources.pop(source, None)
        self._sources[source] = lineage, now
        if len(self._sources) > MOST_SOURCES:
            del self._sources[next(iter(self._sources))]

    def find(self, is_gone: Callable[[Member, float], bool]) -> bytes:
        """A lineage that exists; empty: none is known. `is_gone`: of a source, and the time when it was heard."""
        for source, (_, heard_at) in list(self._sources.items()):
            if is_gone(source, heard_at):
                self.listening_since = max(self.listening_since, heard_at)
                del self._sources[source]
        return next((lineage for lineage, _ in self._sources.values()), b"")


@dataclass(slots=True)
class Founding:
    """Knowledge of one peer that waits for a swarm to join or to found.

    Attributes:
        seeds: addresses, in the same order everywhere.
        own: this peer's address.
        size: number of peers that the first step waits for.
        begun: when it began to wait.
        patience_s: a peer that does not answer for this long is waited for no more.
        greeting_s: members of an existing swarm have called this peer's address by then.
        elsewhere: see `Foundation`.
        due: latest time to decide again; infinite: any time.
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
    """Silence of living peers since when; None: it has said that it knows no lineage."""

    def __post_init__(self) -> None:
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds must be distinct addresses, at least one, are {list(self.seeds)}")

    @property
    def founds(self) -> bool:
        """Whether this peer is the one to found."""
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
        """Decide whether to found now; with the reason.

        Args:
            now: the time.
            alive: the others, with their addresses.
            lineage: a lineage that some member has; empty: none, as far as is known.
            quiet_since: since then this peer has listened, and heard of no lineage.
            hosts: hosts of the others.
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
        is_first_start = 1 < self.size <= num_without + 1  # most likely: all that the first step needs wait
        left_s = (soonest if is_first_start else latest) - now
        if left_s > 0:
            return False, f"waiting {left_s:.1f} s more, in case members of an existing swarm call"
        if unheard := self._unheard(alive, hosts):
            more = f" and {len(unheard) - MOST_NAMED} more" if len(unheard) > MOST_NAMED else ""
            return False, NOBODY_THERE.format(", ".join(unheard[:MOST_NAMED]) + more)
        return True, "no peer knows a swarm" + (f"; {', '.join(silent)} did not answer" if silent else "")

    def _silent(self, now: float, alive: Mapping[Member, str]) -> tuple[list[str], float]:
        """Addresses that have not said what they know, and how much longer to wait for them."""
        since = {address: self.begun for address in self.seeds[1:] if address not in alive.values()}
        since |= {alive[member]: since_s for member, since_s in self._silent_since.items() if since_s is not None}
        return list(since), max(since.values(), default=-math.inf) + self.patience_s - now

    def _unheard(self, alive: Mapping[Member, str], hosts: Mapping[Member, str]) -> list[str]:
        """Addresses where members of the run may live: no peer there has said that it knows no lineage."""
        if not self.elsewhere:
            return []
        knows_none = {member for member, since in self._silent_since.items() if since is None}
        answered = {alive[member] for member in knows_none} | {hosts.get(member, "") for member in knows_none}
        silent = [alive[member] for member in alive if member not in knows_none]
        there = [at for host, at in self.elsewhere.items() if host not in answered and at not in answered]
        return list(dict.fromkeys((*there, *silent)))
