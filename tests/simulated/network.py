"""Virtual time, and the links between simulated peers. Same seed, same run."""

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import count
from random import Random
from struct import Struct
from typing import Any, Protocol

from gossip import Member

_TIME = Struct("<d")
Pair = tuple[str, str]
"""Names of sender and receiver."""


class Process(Protocol):
    """The process that an event concerns."""

    @property
    def member(self) -> Member: ...

    @property
    def label(self) -> bytes: ...

    alive: bool
    paused_until: float


Event = tuple[float, int, "Process | None", str, Callable[..., None], tuple[Any, ...]]


class Clock:
    """Events in the order of their times. Events of a paused process happen when it resumes."""

    def __init__(self) -> None:
        self.now = 0.0
        self.num_events = 0
        self._heap: list[Event] = []
        self._ties = count()  # so the heap never compares processes
        self._trace = blake2b(digest_size=16)

    def at(self, time: float, who: Process | None, what: str, action: Callable[..., None], *args: Any) -> None:
        now = self.now
        heapq.heappush(self._heap, (time if time > now else now, next(self._ties), who, what, action, args))

    def after(self, delay_s: float, who: Process | None, what: str, action: Callable[..., None], *args: Any) -> None:
        heapq.heappush(self._heap, (self.now + delay_s, next(self._ties), who, what, action, args))

    def advance(self, end: float) -> Event | None:
        """The next event before `end` of a process that is alive and not paused."""
        heap = self._heap
        while heap and heap[0][0] < end:
            event = heapq.heappop(heap)
            now, _, who, what, action, args = event
            self.now = now
            if who is None:
                label = b""
            elif not who.alive:
                continue
            elif who.paused_until > now:
                self.at(who.paused_until, who, what, action, *args)
                continue
            else:
                label = who.label
            self.num_events += 1
            self._trace.update(_TIME.pack(now) + label + what.encode())
            return event
        self.now = end
        return None

    def trace(self) -> str:
        return self._trace.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkConditions:
    """Properties of the links of one run.

    Attributes:
        loss: share of control messages that are lost.
        duplication: share of control messages that arrive twice.
        delay_s: greatest one-way delay, except for the tail; messages overtake each other.
        data_delay_s: the same for data frames.
        tail: share of messages that take eight times as long.
        least_s: least one-way delay.
    """

    loss: float = 0.0
    duplication: float = 0.0
    delay_s: float = 0.0005
    data_delay_s: float = 0.001
    tail: float = 0.0
    least_s: float = 0.0

    @classmethod
    def draw(cls, rng: Random) -> "LinkConditions":
        return cls(
            loss=rng.choices((0.0, 0.02, 0.1, 0.3), (4, 4, 3, 1))[0],
            duplication=0.1,
            delay_s=rng.choice((0.002, 0.02, 0.1, 0.3)),
            data_delay_s=rng.choice((0.002, 0.02, 0.1)),
            tail=0.05,
        )

    def calm(self) -> "LinkConditions":
        """The weather after the faults: liveness is guaranteed on links that mostly work."""
        return replace(self, loss=min(self.loss, 0.02), delay_s=min(self.delay_s, 0.1))


@dataclass(eq=False, slots=True)
class Cut:
    """Links that carry nothing, one direction each.

    Attributes:
        pairs: those links.
        holds_control: control messages wait until the link is back; else they are lost.
        holds_data: the same for data frames, as in TCP until it gives up the link.
    """

    pairs: set[Pair]
    holds_control: bool = False
    holds_data: bool = True

    def place(self, newcomer: str, beside: str) -> None:
        """Cut `newcomer` off from the peers from which `beside` is cut off."""
        for source, target in sorted(self.pairs):
            if source == beside and target != newcomer:
                self.pairs.add((newcomer, target))
            if target == beside and source != newcomer:
                self.pairs.add((source, newcomer))


Held = tuple[Pair, bool, Process, Process, Callable[..., None], object]


class Network:
    """Control links lose, duplicate and reorder; data links reorder, and lose frames in flight when they break."""

    def __init__(self, clock: Clock, rng: Random, weather: LinkConditions, seen: Counter[str]) -> None:
        self.weather = weather
        self.bad: dict[str, float] = {}
        self._clock = clock
        self._rng = rng
        self._seen = seen
        self._cuts: list[Cut] = []
        self._blocked: dict[Pair, Cut] = {}
        self._last_blocked: dict[Pair, float] = {}
        self._held: list[Held] = []
        self._resets: dict[Pair, int] = {}
        self.swallowed: set[Pair] = set()
        """Links that lose all data but no control messages, and that can always be opened again."""

    # Cuts

    def add(self, cut: Cut) -> None:
        self._cuts.append(cut)
        self.changed()

    def remove(self, cut: Cut) -> None:
        if cut in self._cuts:
            self._cuts.remove(cut)
            self.changed()

    def changed(self) -> None:
        """Call this after the pairs of a cut have changed: frames held on restored links arrive."""
        self._last_blocked |= dict.fromkeys(self._blocked, self._clock.now)
        self._blocked = {pair: cut for cut in self._cuts for pair in cut.pairs}
        held, self._held = self._held, []
        for item in held:
            pair, is_data, source, target, action, message = item
            if pair in self._blocked:
                self._held.append(item)
            elif is_data:
                self.send_data(source, target, action, message)
            else:
                self._deliver(target, action, message)

    def place(self, newcomer: str, others: Iterable[str]) -> None:
        """Place a new name in the existing partitions."""
        known = [name for name in others if name != newcomer]
        for cut in self._cuts:
            if known:
                cut.place(newcomer, self._rng.choice(known))
        if self._cuts:
            self.changed()

    def calm(self) -> None:
        self.weather = self.weather.calm()
        self.bad = {}
        self.swallowed.clear()
        self._cuts = []
        self.changed()

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self._blocked

    def last_cut(self, source: str, target: str) -> float:
        """The last time at which the link from `source` to `target` was cut; minus infinity: never."""
        pair = source, target
        return self._clock.now if pair in self._blocked else self._last_blocked.get(pair, -math.inf)

    def reset(self, source: str, target: str) -> None:
        """Break and restore a data link: frames in flight or held on it are lost."""
        pair = source, target
        self._resets[pair] = self._resets.get(pair, 0) + 1
        self._held = [item for item in self._held if item[0] != pair or not item[1]]

    # Messages

    def send(self, source: Process, target: Process, action: Callable[..., None], message: object) -> None:
        rng, weather = self._rng, self.weather
        if self._blocked:
            pair = source.member.peer_id, target.member.peer_id
            cut = self._blocked.get(pair)
            if cut is not None:
                if cut.holds_control:
                    self._held.append((pair, False, source, target, action, message))
                return
        if self.bad:
            worse = max(self.bad.get(source.member.peer_id, 0.0), self.bad.get(target.member.peer_id, 0.0))
            if worse and rng.random() < worse:
                return
        if weather.loss and rng.random() < weather.loss:
            return
        self._deliver(target, action, message)
        if weather.duplication and rng.random() < weather.duplication:
            self._deliver(target, action, message)

    def _deliver(self, target: Process, action: Callable[..., None], message: object) -> None:
        self._clock.after(self._delay(self.weather.delay_s), target, "message", action, message)

    def send_data(self, source: Process, target: Process, action: Callable[..., None], frame: object) -> None:
        pair = source.member.peer_id, target.member.peer_id
        cut = self._blocked.get(pair)
        if cut is not None:
            self._seen["data frames held" if cut.holds_data else "data frames lost"] += 1
            if cut.holds_data:
                self._held.append((pair, True, source, target, action, frame))
            return
        if pair in self.swallowed:
            self._seen["data frames lost"] += 1
            return
        survives = self._rng.random() < 0.5
        delay_s = self._delay(self.weather.data_delay_s)
        link = pair, self._resets.get(pair, 0), source, survives
        self._clock.after(delay_s, target, "data", self._arrive, link, action, frame)

    def _arrive(self, link: tuple[Pair, int, Process, bool], action: Callable[..., None], frame: object) -> None:
        pair, resets, source, survives = link
        if self._resets.get(pair, 0) != resets:
            self._seen["data frames lost"] += 1
        elif source.alive or survives:  # frames that a dead process had passed to its kernel may still arrive
            action(frame)

    def _delay(self, most_s: float) -> float:
        rng = self._rng
        least_s = min(self.weather.least_s, most_s)
        delay_s = least_s + rng.random() * (most_s - least_s)
        return 8 * delay_s if rng.random() < self.weather.tail else delay_s
