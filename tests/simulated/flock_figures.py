"""Figures of discovery in a flock: each function runs one experiment and returns its measurements.

`python -m tests.figures` prints all of them.
"""

import math
import time
import tracemalloc
from dataclasses import dataclass, replace

from gossip.claim import State
from gossip.effects import Effect, Explain
from gossip.swim import Swim
from gossip.swim_config import SwimConfig

from .flock import Flock, Weather

PLAIN = SwimConfig(lifeguard=False, suspicion_mult=0.0)
"""SWIM as of 2002, section 3: a failed probe declares the member lost."""
SUSPECTING = SwimConfig(lifeguard=False)
"""The same with suspicions of fixed length (section 4.2)."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Time for an update to reach all peers, and half of them."""

    size: int
    loss: float
    p50_s: float
    last_s: float


def spread(size: int, *, loss: float, seed: int) -> Spread:
    """Measure the spread of one status change in an idle flock."""
    flock = Flock(size, seed=seed, weather=Weather(loss=loss))
    flock.run(1.0)
    start = flock.now
    author = flock.members[0]
    flock.do(0, lambda swim: swim.set_status(start, replace(swim.me.status, step=7)))
    told: list[float] = []
    unaware = set(range(1, size))
    while unaware and flock.now < start + 30.0:
        flock.run(flock.now + 0.02)
        aware = {n for n in unaware if (claim := flock.swims[n].claim_of(author)) and claim.status.step == 7}
        told += [flock.now - start] * len(aware)
        unaware -= aware
    last_s = float("inf") if unaware else told[-1]
    return Spread(size, loss, told[len(told) // 2], last_s)


@dataclass(frozen=True, slots=True)
class Detection:
    """Time from a crash until other peers knew it: quantiles over all others, in seconds."""

    size: int
    p50_s: float
    p99_s: float
    last_s: float


def detection(size: int, *, seed: int, config: SwimConfig | None = None) -> Detection:
    """Measure the detection of one silent crash in an idle flock, without proof."""
    flock = Flock(size, seed=seed, config=config)
    flock.run(2.0)
    victim = flock.members[-1]
    flock.crash(size - 1)
    start = flock.now
    unaware = set(range(size - 1))
    told: list[float] = []
    while unaware and flock.now < start + 120.0:
        flock.run(flock.now + 0.05)
        aware = {n for n in unaware if flock.swims[n].is_lost(victim)}
        told += [flock.now - start] * len(aware)
        unaware -= aware
    last_s = float("inf") if unaware else told[-1]
    return Detection(size, told[len(told) // 2], told[len(told) * 99 // 100], last_s)


class Losses:
    """Members declared lost by any peer, once per refutation; `removed`: those not held down yet; `declared`: all."""

    def __init__(self, flock: Flock, *, first_observer: int = 0) -> None:
        """Record the declarations of the peers from `first_observer` on."""
        self._first = first_observer
        self.removed: set[tuple[int, int]] = set()
        self.declared: set[tuple[int, int]] = set()
        self._flock = flock
        self._alive = [set(swim.alive()) for swim in flock.swims]
        flock.on_change = self._note

    def _note(self, number: int, effects: list[Effect]) -> None:
        if number < self._first or not any(type(effect) is Explain for effect in effects):
            return
        flock = self._flock
        alive = set(flock.swims[number].alive())
        for member in self._alive[number] - alive:
            claim = flock.swims[number].claim_of(member)
            self.removed.add((flock.number[member], claim.refutation if claim else -1))
        for claim in flock.swims[number].known_claims():
            if claim.state is State.LOST:
                self.declared.add((flock.number[claim.member], claim.refutation))
        self._alive[number] = alive


@dataclass(frozen=True, slots=True)
class FalseAlarms:
    """Living members declared lost by any peer, once per refutation; `removed`: those that were in and fell out."""

    size: int
    num_stalled: int
    healthy_declared: int
    all_declared: int
    healthy_removed: int
    all_removed: int


def false_alarms(
    num_stalled: int, *, seed: int, config: SwimConfig, is_deaf: bool, for_s: float = 120.0
) -> FalseAlarms:
    """Measure false alarms while the first of 100 members stall for 1 to 20 s repeatedly, with pauses of 0.1 to 2 s."""
    size = 100
    flock = Flock(size, seed=seed, config=config)
    losses = Losses(flock)

    def stall(number: int) -> None:
        length_s = flock.rng.uniform(1.0, 20.0)
        flock.stall(number, length_s, is_deaf=is_deaf)
        flock.at(flock.now + length_s + flock.rng.uniform(0.1, 2.0), stall, number)

    for number in range(num_stalled):
        flock.at(flock.rng.uniform(1.0, 5.0), stall, number)
    flock.run(for_s)
    declared, removed = losses.declared, losses.removed
    return FalseAlarms(
        size,
        num_stalled,
        sum(number >= num_stalled for number, _ in declared),
        len(declared),
        sum(number >= num_stalled for number, _ in removed),
        len(removed),
    )


@dataclass(frozen=True, slots=True)
class Lossy:
    """Members with bad links among many good ones.

    Attributes:
        removed_after_s: the first time at which all of them were out at every healthy member.
        out_share: share of the time after that, summed over pairs, in which they stayed out.
        healthy_lost: healthy members that healthy members declared lost.
    """

    size: int
    num_lossy: int
    removed_after_s: float
    out_share: float
    healthy_lost: int


def lossy(
    size: int, num_lossy: int, *, seed: int, loss: float = 0.8, for_s: float = 180.0, beat_s: float = math.inf
) -> Lossy:
    """Measure members with bad links: the first ones lose most frames, both ways. All send to all every `beat_s`."""
    flock = Flock(size, seed=seed)
    if beat_s < math.inf:
        flock.beat(beat_s)
    losses = Losses(flock, first_observer=num_lossy)
    flock.run(5.0)
    for number in range(num_lossy):
        flock.loss[number] = loss
    start, removed_after_s = flock.now, float("inf")
    out = pairs = 0
    while flock.now < start + for_s:
        flock.run(flock.now + 0.5)
        watching = [
            flock.swims[n].is_alive(flock.members[bad]) for n in range(num_lossy, size) for bad in range(num_lossy)
        ]
        if removed_after_s == float("inf") and not any(watching):
            removed_after_s = flock.now - start
        if removed_after_s < float("inf"):
            pairs += len(watching)
            out += watching.count(False)
    healthy = {number for number, _ in losses.declared if number >= num_lossy}
    return Lossy(size, num_lossy, removed_after_s, out / max(1, pairs), len(healthy))


@dataclass(frozen=True, slots=True)
class Idle:
    """Traffic of one peer of an idle flock, and the processor time of its simulation."""

    size: int
    sent_bytes_per_s: float
    most_sent_bytes_per_s: float
    received_bytes_per_s: float
    simulated_s: float
    took_s: float


def idle(size: int, *, seed: int, for_s: float = 60.0, loss: float = 0.0) -> Idle:
    flock = Flock(size, seed=seed, weather=Weather(loss=loss))
    began = time.process_time()
    flock.run(for_s)
    took_s = time.process_time() - began
    sent = [each / for_s for each in flock.sent_bytes]
    return Idle(size, sum(sent) / size, max(sent), sum(flock.received_bytes) / for_s / size, for_s, took_s)


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of one peer's knowledge of all others, including their claims."""

    size: int
    total_bytes: int
    bytes_per_peer: float


def memory(size: int, *, seed: int) -> Memory:
    flock = Flock(1, seed=seed)
    members = [replace(flock.members[0], peer_id=f"other{number}") for number in range(size - 1)]
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    swim = Swim(flock.claim(flock.members[0]), rng=flock.rng, config=flock.config, now=0.0)
    for member in members:
        swim.apply_claim(0.0, flock.claim(member))
    for step in range(200):
        swim.tick(step / 10)
    swim.alive()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return Memory(size, after - before, (after - before) / max(1, size - 1))


@dataclass(frozen=True, slots=True)
class Healing:
    """Time after a partition into halves until all peers knew each other as alive again."""

    size: int
    lost_across: float
    healed_after_s: float
    is_same: bool


def healing(size: int, *, seed: int, split_s: float = 60.0) -> Healing:
    flock = Flock(size, seed=seed)
    flock.run(5.0)
    members = list(flock.members)
    flock.split(number % 2 for number in range(size))
    flock.run(5.0 + split_s)
    pairs = [(a, b) for a in range(size) for b in range(size) if a % 2 != b % 2]
    lost = sum(flock.swims[a].is_lost(flock.members[b]) for a, b in pairs) / len(pairs)
    flock.split([0] * size)
    start = flock.now
    while not _is_whole(flock) and flock.now < start + 120.0:
        flock.run(flock.now + 0.1)
    healed_after_s = flock.now - start if _is_whole(flock) else float("inf")
    return Healing(size, lost, healed_after_s, [swim.me.member for swim in flock.swims] == members)


@dataclass(frozen=True, slots=True)
class Assembly:
    """Time until all peers that start together with three seeds knew each other."""

    size: int
    complete_after_s: float


def assembly(size: int, *, seed: int, loss: float = 0.0) -> Assembly:
    flock = Flock(size, seed=seed, weather=Weather(loss=loss), is_acquainted=False)
    while not _is_whole(flock) and flock.now < 120.0:
        flock.run(flock.now + 0.1)
    return Assembly(size, flock.now if _is_whole(flock) else float("inf"))


def _is_whole(flock: Flock) -> bool:
    return all(len(swim.alive()) == len(flock.swims) - 1 for swim in flock.swims)
