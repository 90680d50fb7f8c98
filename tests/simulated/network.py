"""Virtual time, and the two kinds of link between simulated peers. Same seed, same run."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from itertools import count
from random import Random
from struct import pack
from typing import Any, Protocol

from gossip import Member


class Process(Protocol):
    """Whom an event happens to."""

    @property
    def member(self) -> Member: ...

    alive: bool
    paused_until: float


Event = tuple[float, int, "Process | None", str, Callable[..., None], tuple[Any, ...]]


class Clock:
    """Events in the order of their times. What happens to a paused process happens when it resumes."""

    def __init__(self) -> None:
        self.now = 0.0
        self.num_events = 0
        self._heap: list[Event] = []
        self._ties = count()  # so the heap never compares processes
        self._trace = blake2b(digest_size=16)

    def at(self, time: float, who: Process | None, what: str, action: Callable[..., None], *args: Any) -> None:
        heapq.heappush(self._heap, (max(time, self.now), next(self._ties), who, what, action, args))

    def after(self, delay_s: float, who: Process | None, what: str, action: Callable[..., None], *args: Any) -> None:
        self.at(self.now + delay_s, who, what, action, *args)

    def advance(self, end: float) -> Event | None:
        """The next event before `end` that happens to somebody alive and awake."""
        while self._heap and self._heap[0][0] < end:
            event = heapq.heappop(self._heap)
            self.now, _, who, what, action, args = event
            if who is not None:
                if not who.alive:
                    continue
                if who.paused_until > self.now:
                    self.at(who.paused_until, who, what, action, *args)
                    continue
            self.num_events += 1
            self._trace.update(pack("<d", self.now) + f"{what} {who and who.member}".encode())
            return event
        self.now = end
        return None

    def trace(self) -> str:
        return self._trace.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """What the links of one run are like."""

    loss: float
    duplication: float
    delay_s: float
    data_delay_s: float

    @classmethod
    def draw(cls, rng: Random) -> "Weather":
        return cls(
            loss=rng.choice((0.0, 0.02, 0.1)),
            duplication=0.1,
            delay_s=rng.choice((0.002, 0.02, 0.1, 0.3)),
            data_delay_s=rng.choice((0.002, 0.02, 0.1)),
        )


class Network:
    """Control links lose, double and reorder; data links only reorder, and lose what a dead process had sent."""

    def __init__(self, clock: Clock, rng: Random, weather: Weather) -> None:
        self._clock = clock
        self._rng = rng
        self._weather = weather

    def send(self, target: Process, action: Callable[..., None], message: object) -> None:
        weather = self._weather
        if self._rng.random() >= weather.loss:
            self._clock.after(self._delay(weather.delay_s), target, "message", action, message)
            if self._rng.random() < weather.duplication:
                self._clock.after(self._delay(weather.delay_s), target, "message", action, message)

    def send_data(self, source: Process, target: Process, action: Callable[..., None], frame: object) -> None:
        delay_s = self._delay(self._weather.data_delay_s)
        survives = self._rng.random() < 0.5

        def arrive() -> None:
            if source.alive or survives:
                action(frame)

        self._clock.after(delay_s, target, "data", arrive)

    def _delay(self, most_s: float) -> float:
        delay_s = self._rng.random() * most_s
        return 8 * delay_s if self._rng.random() < 0.05 else delay_s
