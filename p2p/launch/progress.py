"""Messages of a launcher about its run: changes of members, waiting peers, and speed, from reports of peers."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import takewhile
from statistics import fmean
from typing import Final

from gossip.membership import LEAVES

from ..loop.inbox import OUT, SILENT
from ..telemetry.snapshot import SHORT, Change, Snapshot, renamed
from .peer_slots import PeerSlot

RATE_S: Final = 30.0
WAITING_S: Final = 5.0
AWAKE_S: Final = 3.0
"""A peer whose last report is older than that of another one by more than this is stopped: it speaks for nobody."""
PATIENCE_S: Final = 1.5
"""How long the line about a death waits for its cost, or the cost for the line."""


@dataclass(frozen=True, slots=True)
class DeferredLine:
    """A held-back line about a peer of this launch that lost its seat, or died; the other of the two is awaited.

    Attributes:
        line: printed then, or at `until`.
        cost: of the change of the view; empty: not known yet.
        who: the peer that has died; empty: none has, as far as is known.
        why: it has lost its seat, in parentheses, by the report that says most; empty: not known.
        since_ns: events up to this time say nothing of that.
    """

    line: str
    until: float
    cost: str
    who: str = ""
    why: str = ""
    since_ns: int = 0


class Progress:
    """Derives messages about one run from reports. Times are monotonic seconds.

    Attributes:
        done: the newest committed step; -1: none.
    """

    def __init__(self, places: Iterable[PeerSlot], name_here: Callable[[str], str | None], now: float) -> None:
        """`name_here`: the number of another peer of this host, by its peer_id; None: there is no such peer."""
        self._places = tuple(places)
        self._name_here = name_here
        self._names: dict[str, str] = {}
        self._lineage = ""
        self._view = 0
        self._members: dict[str, int] = {}
        self._known: dict[str, int] = {}
        self._counted: set[str] = set()
        self._untold: dict[str, DeferredLine] = {}
        self._told_dead: dict[str, str] = {}  # dead peers by peer_id, whose cost is not known yet
        self._told_ns = -1  # events up to this time belong to changes that were told
        self._rated = now, -1
        self._rate_at = now + RATE_S
        self._waiting: dict[str, tuple[int, float]] = {}  # by peer_id, so that a replacement starts anew
        self._waiting_told = self._heard_at = now
        self.done = -1

    @property
    def deadline(self) -> float:
        """When to `tick`."""
        return min([self._rate_at, *(untold.until for untold in self._untold.values())])

    def name(self, peer_id: str) -> str:
        """The name in all messages: the number of a peer of this host, or the first digits of the peer_id."""
        if peer_id not in self._names:
            name = next((p.name for p in self._places if p.snapshot and p.snapshot.identity.peer_id == peer_id), None)
            name = self._name_here(peer_id) if name is None else name
            if name is None:
                return peer_id[:SHORT]
            self._names[peer_id] = name
        return self._names[peer_id]

    def rename(self, text: str) -> str:
        """Replace peer_ids by names."""
        return renamed(text, self.name)

    def add_report(self, place: PeerSlot, standing: Snapshot, now: float) -> list[str]:
        """Take a report of the peer in `place`. Returns lines about what is new."""
        former = "" if place.snapshot is None else place.snapshot.identity.peer_id
        place.take(standing)
        self._heard_at = now
        self.name(standing.identity.peer_id)
        is_over = former in self._untold and former != standing.identity.peer_id
        past = [self._tell(former)] if is_over else []
        lines = self._who_comes_and_goes(standing, now)
        return [*past, *self._who_counts(place, standing), *lines, *self._who_waits(place, standing, now)]

    def _who_counts(self, place: PeerSlot, standing: Snapshot) -> list[str]:
        """A line about the first step that counts a peer of this launch, and the time until then."""
        counted, peer_id = standing.counted, standing.identity.peer_id
        if not counted.since_ns or peer_id in self._counted:
            return []
        is_first, at_s = not self._counted, counted.since_ns / 1e9
        self._counted.add(peer_id)
        size = members(len(standing.members))
        if counted.steps < standing.step:
            joined_s = at_s - standing.identity.joined_ns / 1e9
            took = f"{at_s - place.started_s:.1f} s after its start, {joined_s:.1f} s after p2p.join"
            return [f"peer {place.name} counts, {took}; {size}"]
        if not is_first:
            return []
        joined_s = at_s - max(p.snapshot.identity.joined_ns for p in self._places if p.snapshot) / 1e9
        started_s = at_s - min(p.started_s for p in self._places if p.snapshot)
        return [f"first step {started_s:.1f} s after the start, {joined_s:.1f} s after the last p2p.join; {size}"]

    def _who_comes_and_goes(self, standing: Snapshot, now: float) -> list[str]:
        if not standing.has_begun:
            return []
        if standing.lineage != self._lineage and not any(
            place.child and place.snapshot and place.snapshot.lineage == self._lineage for place in self._places
        ):
            self._begin_anew(standing.lineage, now)
        if self.done < 0 and standing.step >= 0:  # the time before that says nothing of the rate
            self._rated, self._rate_at = (now, standing.step), now + RATE_S
        self.done = max(self.done, standing.step)
        if standing.view >= self._view:
            self._ask_why(standing)
        if standing.view <= self._view or standing.change.view != standing.view:
            return []  # nothing new, or the view is not active yet
        before, self._members, is_first = self._members, dict(standing.members), not self._view
        self._view = standing.view
        for peer_id in self._members:
            self.name(peer_id)  # looked up while its entry exists
        lines = [] if is_first else self._changes(before, standing, now)
        self._told_ns = standing.time_ns
        self._known |= self._members
        return lines

    def _begin_anew(self, lineage: str, now: float) -> None:
        """Reset counters: all members of the lineage before have died, and a new one counts views and steps anew."""
        if self._lineage:
            self._view, self.done = 0, -1
            self._told_dead.clear()
            self._rated, self._rate_at = (now, -1), now + RATE_S
        self._lineage = lineage

    def _changes(self, before: dict[str, int], standing: Snapshot, now: float) -> list[str]:
        """Lines about a change of members, except joins and failures of this launch's peers, which have other lines."""
        after = f"at step {standing.change.step}; {members(len(self._members))}"
        ours = {place.snapshot.identity.peer_id: place for place in self._places if place.snapshot is not None}
        cost, lines = cost_of(standing.change), list[str]()
        for peer_id in dict.fromkeys((*self._untold, *before)):
            if peer_id not in before or peer_id in self._members:
                continue
            why = self._why_out(peer_id, standing, self._told_ns)
            line = f"peer {self.name(peer_id)} is out {after}"
            place = ours.get(peer_id)
            ending = None if place is None else place.exit_outcome
            if peer_id in self._untold:  # the peer has died, and the line about that is held back
                lines += [*self._died_before(peer_id), f"{self._untold.pop(peer_id).line}; {cost}"]
            elif who := self._told_dead.pop(peer_id, ""):
                lines.append(f"the others continued without {who} {after}; {cost}")
            elif place is not None and (place.child is not None or ending is None):
                until = now + PATIENCE_S  # a line about its death may follow
                self._untold[peer_id] = DeferredLine(line, until, cost, why=why, since_ns=self._told_ns)
            elif ending is None or (ending.has_completed and not self._is_through_with_all(peer_id)):
                lines.append(f"{line}{why}; {cost}")
        for peer_id, incarnation in self._members.items():
            if self._known.get(peer_id, incarnation) != incarnation:
                lines += [self._tell(peer_id)] if peer_id in self._untold else []  # that it was out, which is over
                lines.append(f"peer {self.name(peer_id)} is back {after}; {waited(standing.change)}")
            elif peer_id not in before and peer_id not in ours:
                lines.append(f"peer {self.name(peer_id)} has joined {after}; {waited(standing.change)}")
        return lines

    def _ask_why(self, standing: Snapshot) -> None:
        """Take reasons for lines that are held back from another reporter, which may have heard more than the first."""
        for peer_id, untold in self._untold.items():
            why = self._why_out(peer_id, standing, untold.since_ns)
            if untold.cost and SILENT in why and SILENT not in untold.why:
                self._untold[peer_id] = replace(untold, why=why)

    def _why_out(self, peer_id: str, standing: Snapshot, since_ns: int) -> str:
        known = [text for at_ns, text in standing.events if peer_id in text and at_ns > since_ns]
        own = [text for text in known if text.startswith(peer_id)] or known
        # A peer that has left or is out falls silent, and may be suspected before the next view: not the reason.
        final = [text for text in own if text == f"{peer_id} {LEAVES}" or text.startswith(f"{peer_id} {OUT}")]
        why = final[0] if final else own[-1] if own else ""
        return f" ({self.rename(why.removeprefix(f'{peer_id} {OUT}'))})" if why else ""

    def died(self, place: PeerSlot, line: str, now: float) -> list[str]:
        """Lines about the failure of a peer of this launch; `line` is held back until a survivor reports the cost."""
        peer_id = "" if place.snapshot is None else place.snapshot.identity.peer_id
        if (untold := self._untold.pop(peer_id, None)) is not None:
            return [*self._died_before(), f"{line}; {untold.cost}"]
        if peer_id not in self._members or not any(other.child for other in self._places):
            return [*self._died_before(), line]
        who = f"peer {place.name}" + (f" (pid {place.snapshot.identity.pid})" if place.snapshot is not None else "")
        self._untold[peer_id] = DeferredLine(line, now + PATIENCE_S, "", who)
        return []

    def _died_before(self, peer_id: str = "") -> list[str]:
        """Held-back lines of deaths before that of `peer_id`: they come first, since each says how many are left."""
        earlier = takewhile(lambda each: each != peer_id, [*self._untold])
        return [self._tell(each) for each in earlier if not self._untold[each].cost]

    def _tell(self, peer_id: str) -> str:
        """Take the held-back line of `peer_id`."""
        untold = self._untold.pop(peer_id)
        if not untold.cost:
            self._told_dead[peer_id] = untold.who
            return untold.line
        return f"{untold.line}{untold.why}; {untold.cost}"

    def _is_through_with_all(self, peer_id: str) -> bool:
        """Whether the peer and all members have left at the end of the run, so that none continues without it."""
        through = {
            p.snapshot.identity.peer_id for p in self._places if p.snapshot is not None and p.snapshot.left_cleanly
        }
        return {peer_id, *self._members} <= through

    def tick(self, now: float) -> list[str]:
        """Lines that are due."""
        due = [peer_id for peer_id, untold in self._untold.items() if now >= untold.until]
        lines = self._tell_all(due)
        if now >= self._rate_at:
            self._rate_at = now + RATE_S
            since, done = self._rated
            if self.done >= 0:
                rate = (self.done - done) / (now - since)
                living = {
                    p.snapshot.identity.peer_id for p in self._places if p.child is not None and p.snapshot is not None
                }
                here = len(living & self._members.keys())
                line = f"step {self.done}, {rate:.3g} steps/s, {members(len(self._members))}, {here} of them here"
                lines.append(self._silence(now) or line + self._logged())
                self._rated = now, self.done
        return lines

    def _silence(self, now: float) -> str:
        """A line if no peer of this launch has reported for too long (they do every second); else empty."""
        silent_s = now - self._heard_at
        if silent_s < WAITING_S:
            return ""
        return (
            f"step {self.done} is the last that a peer here reported, {silent_s:.0f} s ago: each is stopped, or "
            "something holds its interpreter; `shoal status` says which"
        )

    def flush(self) -> list[str]:
        """All lines that are held back."""
        return self._tell_all([*self._untold])

    def _tell_all(self, due: list[str]) -> list[str]:
        """The held-back lines of these peers, but not of those that left at the end of the run, with all others."""
        is_news = {each: bool(self._untold[each].who) or not self._is_through_with_all(each) for each in due}
        untold = {each: self._tell(each) for each in due}
        return [line for each, line in untold.items() if is_news[each]]

    def _logged(self) -> str:
        """The last values of `peer.log`, as means over the running peers of this launch."""
        values = defaultdict[str, list[float]](list)
        for place in self._places:
            if place.child is not None and place.snapshot is not None:
                for name, value in place.snapshot.logged.items():
                    values[name].append(value)
        return "".join(f", {name} {fmean(each):.4g}" for name, each in values.items())

    def _who_waits(self, place: PeerSlot, standing: Snapshot, now: float) -> list[str]:
        """Every `WAITING_S` a line about the first peer that waits, and for whom."""
        peer_id = standing.identity.peer_id
        if not standing.waiting.text:
            self._waiting.pop(peer_id, None)
            return []
        step, since = self._waiting.get(peer_id, (standing.step, now))
        self._waiting[peer_id] = (step, since) if step == standing.step else (standing.step, now)
        waited_s = now - self._waiting[peer_id][1]
        last = [other.snapshot for other in self._places if other.child and other.snapshot]
        awake = [each.identity.peer_id for each in last if standing.time_ns - each.time_ns < AWAKE_S * 1e9]
        is_first = peer_id == next((each for each in awake if each in self._waiting), "")
        if not is_first or min(waited_s, now - self._waiting_told) < WAITING_S:
            return []
        self._waiting_told = now
        return [f"peer {place.name} {self.rename(standing.waiting.text)} (for {waited_s:.0f} s)"]

    def why_no_start(self, num_others: int) -> str:
        """The message that the first step is impossible, if only peers of this launch can still join; empty: possible.

        Args:
            num_others: peers of this swarm on this host that are not of this launch.
        """
        waiting = [p.snapshot for p in self._places if p.child and p.snapshot and not p.snapshot.has_begun]
        possible = [place for place in self._places if place.child or place.restart_at < float("inf")]
        needed = max((standing.needed for standing in waiting), default=0)
        are_more_expected = needed > len(self._places) or num_others
        if self.done >= 0 or not waiting or are_more_expected or len(possible) >= needed:
            return ""
        gone = ", ".join(place.name for place in self._places if place not in possible)
        return (
            f"the first step waits for {needed} peers (--min-peers), but only {len(possible)} can still join, since "
            f"peer {gone} has ended; start again, or pass --min-peers {len(possible)}"
        )


def members(number: int) -> str:
    return f"{number} member{'s' if number != 1 else ''}"


def waited(change: Change) -> str:
    """How long the others waited for a new member."""
    return f"the others waited {in_ms(change.waited_s)}"


def cost_of(change: Change) -> str:
    """The cost of a removal, in words."""
    lost = f"{change.num_lost} steps lost" if change.num_lost else "no step lost"
    redone = f", step {change.redone} redone" if change.redone >= 0 else ""
    return f"resumed after {in_ms(change.waited_s)}, {lost}{redone}"


def in_ms(seconds: float) -> str:
    return f"{seconds * 1e3:.{0 if seconds >= 0.01 else 1}f} ms"
