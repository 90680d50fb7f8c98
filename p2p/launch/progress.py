"""What a launcher says of its run while it goes on: who comes and goes, who waits, how fast it is. Peers report it."""

import re
from collections.abc import Callable, Iterable
from typing import Final

from .places import Place
from .standing import Standing

RATE_S: Final = 30.0
WAITING_S: Final = 5.0
SHORT: Final = 8
PEER_ID: Final = re.compile(r"\b[0-9a-f]{16}\b")


class Progress:
    """Of one run. Times are monotonic seconds."""

    def __init__(self, places: Iterable[Place], name_here: Callable[[str], str | None], now: float) -> None:
        """`name_here`: of another peer of this host, by its peer_id; None: there is none."""
        self._places = tuple(places)
        self._name_here = name_here
        self._names: dict[str, str] = {}
        self._view = 0
        self._members: dict[str, int] = {}
        self._rated = now, -1
        self._rate_at = now + RATE_S
        self._waiting: dict[Place, tuple[int, float]] = {}
        self._waiting_told = now
        self.done = -1

    @property
    def deadline(self) -> float:
        """When to `look`."""
        return self._rate_at

    def name(self, peer_id: str) -> str:
        """The same in all messages: the number of a peer of this host, or the first digits of the peer_id."""
        if peer_id not in self._names:
            name = next((p.name for p in self._places if p.standing and p.standing.peer_id == peer_id), None)
            name = self._name_here(peer_id) if name is None else name
            if name is None:
                return peer_id[:SHORT]
            self._names[peer_id] = name
        return self._names[peer_id]

    def rename(self, text: str) -> str:
        """With the names of peers instead of their ids."""
        return PEER_ID.sub(lambda found: self.name(found[0]), text)

    def take(self, place: Place, standing: Standing, now: float) -> list[str]:
        """A peer has reported: lines for whatever is new."""
        place.standing = standing
        self.name(standing.peer_id)
        return [*self._who_comes_and_goes(standing), *self._who_waits(place, standing, now)]

    def _who_comes_and_goes(self, standing: Standing) -> list[str]:
        if not standing.has_begun:
            return []
        if self.done < 0 and standing.done >= 0:
            self._rated = self._rated[0], standing.done
        self.done = max(self.done, standing.done)
        if standing.view <= self._view:
            return []
        before, self._members, is_first = self._members, dict(standing.members), not self._view
        self._view = standing.view
        for peer_id in self._members:
            self.name(peer_id)  # as long as its entry is there
        return [] if is_first else self._changes(before, standing)

    def _changes(self, before: dict[str, int], standing: Standing) -> list[str]:
        """Our own peers say themselves that they have joined, and their launcher how they have failed."""
        size = len(self._members)
        after = f"at step {standing.done}; {size} member{'s' if size > 1 else ''}"
        ours = {place.standing.peer_id: place for place in self._places if place.standing is not None}
        lines = []
        for peer_id in before.keys() - self._members.keys():
            place = ours.get(peer_id)
            if place is not None and place.ending is not None and place.ending.code:
                continue
            known = [text for text in standing.reasons if peer_id in text]
            why = next((text for text in reversed(known) if text.startswith(peer_id)), known[-1] if known else "")
            reason = f" ({self.rename(why)})" if why and place is None else ""
            lines.append(f"peer {self.name(peer_id)} is out {after}{reason}")
        for peer_id, incarnation in self._members.items():
            if peer_id not in before and peer_id not in ours:
                lines.append(f"peer {self.name(peer_id)} has joined {after}")
            elif before.get(peer_id, incarnation) != incarnation:
                lines.append(f"peer {self.name(peer_id)} is back {after}")
        return lines

    def look(self, now: float) -> list[str]:
        """Lines that are due."""
        lines = []
        if now >= self._rate_at:
            self._rate_at = now + RATE_S
            since, done = self._rated
            if self.done >= 0:
                rate = (self.done - done) / (now - since)
                here = sum(place.child is not None for place in self._places)
                lines.append(f"step {self.done}, {rate:.3g} steps/s, {len(self._members)} members, {here} of them here")
                self._rated = now, self.done
        return lines

    def _who_waits(self, place: Place, standing: Standing, now: float) -> list[str]:
        """Every few seconds the first of the peers that wait, and for whom."""
        if not standing.waits:
            self._waiting.pop(place, None)
            return []
        step, since = self._waiting.get(place, (standing.done, now))
        self._waiting[place] = (step, since) if step == standing.done else (standing.done, now)
        waited_s = now - self._waiting[place][1]
        is_first = place is next(place for place in self._places if place.child and place in self._waiting)
        if not is_first or min(waited_s, now - self._waiting_told) < WAITING_S:
            return []
        self._waiting_told = now
        return [f"peer {place.name} {self.rename(standing.waits)} (for {waited_s:.0f} s)"]

    def why_no_start(self, num_others: int) -> str:
        """That the first step cannot be, for certain, if those who may still come are all here; empty: it can.

        Args:
            num_others: peers of this swarm on this host that are not of this launch.
        """
        waiting = [p.standing for p in self._places if p.child and p.standing and not p.standing.has_begun]
        possible = [place for place in self._places if place.child or place.restart_at < float("inf")]
        needed = max((standing.needed for standing in waiting), default=0)
        are_more_expected = needed > len(self._places) or num_others
        if self.done >= 0 or not waiting or are_more_expected or len(possible) >= needed:
            return ""
        gone = ", ".join(place.name for place in self._places if place not in possible)
        return (
            f"the first step waits for {needed} peers (--min-peers), and only {len(possible)} are left to come, since "
            f"peer {gone} has ended; start again, or say --min-peers {len(possible)}"
        )
