"""Flocks: thousands of peers that run only discovery, in one process and virtual time. Same seed, same run.

Leaves out links: any peer reaches any other. Message sizes are estimated; messages are not encoded.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random

from gossip import Claim, Contact, State
from gossip.effects import Effect, Send
from gossip.messages import Ack, Gossip, NoAck, Ping, PingRequest, Sync, SyncReply
from gossip.swim import Swim
from gossip.swim_config import SwimConfig
from gossip.view import Member

Heard = Ping | Ack | PingRequest | NoAck | Gossip | Sync | SyncReply
NUM_SEEDS = 3
BYTES_PER_MESSAGE = 24
BYTES_PER_CLAIM = 80
BYTES_PER_DIGEST = 10


@dataclass(frozen=True, slots=True)
class Weather:
    """Properties of the network: the range of one-way delays, uniform, and the share of messages that is lost."""

    delay_min_s: float = 0.0002
    delay_max_s: float = 0.005
    loss: float = 0.0


def size_bytes(body: Heard) -> int:
    """Approximate size on the wire."""
    match body:
        case Ping(_, claims) | Ack(_, claims) | Gossip(claims) | SyncReply(_, claims):
            return BYTES_PER_MESSAGE + BYTES_PER_CLAIM * len(claims)
        case Sync(digests):
            return BYTES_PER_MESSAGE + BYTES_PER_DIGEST * len(digests)
        case _:
            return BYTES_PER_MESSAGE


class Flock:
    """`size` peers, numbered from 0; `on_change(number, effects)` gets the effects of each peer's changes."""

    def __init__(
        self,
        size: int,
        *,
        seed: int,
        config: SwimConfig | None = None,
        weather: Weather | None = None,
        is_acquainted: bool = True,
    ) -> None:
        """`is_acquainted`: all peers know each other. Otherwise all start at the same time and know three seeds."""
        self.now = 0.0
        self.rng = Random(seed)
        self.config = config or SwimConfig()
        self.weather = weather or Weather()
        self.members = [Member(f"p{number}", 1) for number in range(size)]
        self.number = {member: number for number, member in enumerate(self.members)}
        self.running = [True] * size
        self.loss = [0.0] * size
        self.side = [0] * size
        self.sent_bytes = [0] * size
        self.received_bytes = [0] * size
        self.on_change: Callable[[int, list[Effect]], None] | None = None
        self._stalled_until = [-math.inf] * size
        self._is_deaf = [False] * size
        self._outbox: list[list[Effect]] = [[] for _ in range(size)]
        self._inbox: list[list[tuple[int, Heard]]] = [[] for _ in range(size)]
        self._wake_at = [math.inf] * size
        self._events: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._num_events = 0
        claims = [self.claim(member) for member in self.members]
        self.swims = [self._swim(number, claims if is_acquainted else ()) for number in range(size)]
        for number in range(size):
            if not is_acquainted:
                self.meet(number, claims[:NUM_SEEDS])
            self._schedule(number)

    @staticmethod
    def claim(member: Member) -> Claim:
        return Claim(member, State.ALIVE, Contact(f"tcp://{member}:1", f"tcp://{member}:2", 1, 1))

    def _swim(self, number: int, known: Iterable[Claim]) -> Swim:
        me = self.claim(self.members[number])
        return Swim(me, rng=Random(self.rng.random()), config=self.config, now=self.now, known=known)

    # Events

    def at(self, when: float, action: Callable[..., None], *args: object) -> None:
        self._num_events += 1
        heappush(self._events, (when, self._num_events, action, args))

    def run(self, until: float) -> None:
        events = self._events
        while events and events[0][0] <= until:
            self.now, _, action, args = heappop(events)
            action(*args)
        self.now = until

    def meet(self, number: int, claims: Iterable[Claim]) -> None:
        for claim in claims:
            self._do(number, self.swims[number].apply_claim(self.now, claim))

    def do(self, number: int, command: Callable[[Swim], list[Effect] | None]) -> None:
        """Let a peer carry out a command."""
        self._do(number, command(self.swims[number]) or [])
        self._schedule(number)

    def crash(self, number: int) -> None:
        self.running[number] = False

    def restart(self, number: int) -> None:
        """Restart a peer: same name, later incarnation; it knows the seeds."""
        member = self.members[number]
        self.members[number] = later = Member(member.peer_id, member.incarnation + 1)
        self.number[later] = number
        self.running[number] = True
        self.swims[number] = self._swim(number, ())
        self._wake_at[number] = math.inf
        self.meet(number, (self.claim(seed) for seed in self.members[:NUM_SEEDS]))
        self._schedule(number)

    def stall(self, number: int, for_s: float, *, is_deaf: bool = False) -> None:
        """Stop a peer for a while; then it processes all that has queued up.

        `is_deaf`: its timers continue, and only its messages are held up, both ways, as in Lifeguard's experiments.
        """
        self._stalled_until[number] = self.now + for_s
        self._is_deaf[number] = is_deaf
        self.at(self.now + for_s, self._resume, number)

    def beat(self, every_s: float) -> None:
        """Let all peers send a message to all others every `every_s`, as members and joiners do."""
        for number in range(len(self.swims)):
            self.do(number, lambda swim: [Send(claim.member, Gossip(())) for claim in swim.known_claims()])
        self.at(self.now + every_s, self.beat, every_s)

    def split(self, sides: Iterable[int]) -> None:
        """Partition the flock: peers reach only those on the same side."""
        self.side = list(sides)

    # Machinery

    def _resume(self, number: int) -> None:
        if self.now < self._stalled_until[number]:
            return
        held, self._outbox[number] = self._outbox[number], []
        self._do(number, held)
        waiting, self._inbox[number] = self._inbox[number], []
        if self.rng.random() < 0.5:  # in a loop that was stopped at any point either may come first
            self._wake(number)
        for source, body in waiting:
            self._receive(source, number, body)
        self._schedule(number)

    def _schedule(self, number: int) -> None:
        when = max(self.swims[number].next_deadline(), self.now)
        if when < self._wake_at[number]:
            self._wake_at[number] = when
            self.at(when, self._on_wake, number, when)

    def _on_wake(self, number: int, when: float) -> None:
        if when == self._wake_at[number]:
            self._wake(number)

    def _wake(self, number: int) -> None:
        self._wake_at[number] = math.inf
        if self.running[number] and (self._is_deaf[number] or self.now >= self._stalled_until[number]):
            self._do(number, self.swims[number].tick(self.now))
            self._schedule(number)

    def _receive(self, source: int, number: int, body: Heard) -> None:
        if not self.running[number]:
            return
        if self.now < self._stalled_until[number]:
            self._inbox[number].append((source, body))
            return
        self.received_bytes[number] += size_bytes(body)
        swim = self.swims[number]
        self._do(number, swim.receive(self.now, self.members[source], body))
        self._schedule(number)

    def _do(self, number: int, effects: list[Effect]) -> None:
        if self.on_change is not None and effects:
            self.on_change(number, effects)
        if self.now < self._stalled_until[number]:
            self._outbox[number] += [effect for effect in effects if type(effect) is Send]
            return
        random = self.rng.random
        for effect in effects:
            if type(effect) is not Send:
                continue
            target, body = self.number[effect.target], effect.body
            assert isinstance(body, Heard)
            self.sent_bytes[number] += size_bytes(body)
            if self.side[number] != self.side[target] or effect.target != self.members[target]:
                continue
            lost = (self.weather.loss, self.loss[number], self.loss[target])
            if any(share and random() < share for share in lost):
                continue
            weather = self.weather
            delay_s = weather.delay_min_s + random() * (weather.delay_max_s - weather.delay_min_s)
            self.at(self.now + delay_s, self._receive, number, target, body)
