"""Link model: when a frame arrives at another host, if at all. Lines have a rate and a queue, pairs a delay. Pure.

A frame leaves through the line of its host (`up`), then passes its pair: a rate, loss, a delay with jitter. That is
`egress`. At the end of the delay, the line of the other host (`down`) takes it: `ingress`. When that has it through, it
is
there: `arrive`. Times are nanoseconds of any clock and are passed as arguments; so is the random generator.

A rate counts IP packets with their headers. Leaves out: the framing around them on a real wire, and partial arrival: a
frame of 64 KB arrives as a whole, at the time of its last bit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from .settings import LineSettings, PairSettings

MTU_BYTES: Final = 1500
QUEUE_MIN_BYTES: Final = 16 * MTU_BYTES
"""The least capacity of a queue in bytes: a slow line would otherwise drop ordinary bursts."""
FRAME_MAX_BYTES: Final = 65536
COARSE_NS: Final = 1_250_000
"""The longest time that a frame of several packets may occupy a line: an eighth of 10 ms."""


@dataclass(slots=True)
class Counters:
    """Counters of one pair since the lab began. `packets` and `num_bytes` count arrivals."""

    packets: int = 0
    num_bytes: int = 0
    dropped_queue: int = 0
    dropped_loss: int = 0
    dropped_mtu: int = 0
    dropped_cut: int = 0


class RateLimiter:
    """A rate limit with a queue: frames pass one after the other."""

    def __init__(self, bit_per_s: int | None, queue_ns: int) -> None:
        self.bit_per_s = bit_per_s
        self.queue_ns = queue_ns
        self._free_at = 0

    def send(self, now: int, num_bytes: int) -> int | None:
        """Time at which the last bit of a frame that comes `now` has left; None: dropped, since the queue is full."""
        rate = self.bit_per_s
        if rate is None:
            return now
        wait = self._free_at - now
        if wait <= 0:
            wait = 0
        elif wait > self.queue_ns and wait * rate > QUEUE_MIN_BYTES * 8_000_000_000:
            return None
        self._free_at = now + wait - (-num_bytes * 8_000_000_000 // rate)  # rounded up
        return self._free_at


class Pair:
    """The path from one host to another, in one direction."""

    def __init__(self, settings: PairSettings, queue_ns: int) -> None:
        self.counters = Counters()
        self.wire = RateLimiter(settings.rate_bit_per_s, queue_ns)
        self.settings = settings
        self._last_due = 0

    def change(self, settings: PairSettings) -> None:
        """Apply `settings` to later frames; those in flight arrive as they would have, unless the pair is cut."""
        self.settings = settings
        self.wire.bit_per_s = settings.rate_bit_per_s

    def delay(self, now: int, random: Random) -> int:
        """Arrival time of a frame that is sent `now`: never before an earlier frame."""
        due = now + self.settings.delay_ns
        if jitter := self.settings.jitter_ns:
            due += round(random.uniform(-jitter, jitter))
        self._last_due = max(due, self._last_due)
        return self._last_due


class Links:
    """All lines and all pairs of a lab."""

    def __init__(
        self, lines: Sequence[LineSettings], pairs: Mapping[tuple[int, int], PairSettings], random: Random
    ) -> None:
        self.lines = list(lines)
        self.up = [RateLimiter(line.up_bit_per_s, line.queue_ns) for line in lines]
        self.down = [RateLimiter(line.down_bit_per_s, line.queue_ns) for line in lines]
        self.pairs = {(source, target): Pair(pairs[source, target], lines[source].queue_ns) for source, target in pairs}
        self._random = random

    def egress(self, now: int, source: int, target: int, num_bytes: int, num_packets: int = 1) -> int | None:
        """Time at which a frame that `source` sends `now` reaches the line of `target`; None: it is dropped."""
        pair = self.pairs[source, target]
        settings, counters = pair.settings, pair.counters
        if settings.cut:
            counters.dropped_cut += num_packets
            return None
        sent = self.up[source].send(now, num_bytes)
        sent = None if sent is None else pair.wire.send(sent, num_bytes)
        if sent is None:
            counters.dropped_queue += num_packets
            return None
        if settings.mtu_bytes is not None and num_bytes > settings.mtu_bytes:
            counters.dropped_mtu += num_packets
            return None
        if settings.loss and self._random.random() < settings.loss:
            counters.dropped_loss += num_packets
            return None
        return pair.delay(sent, self._random)

    def ingress(self, now: int, source: int, target: int, num_bytes: int, num_packets: int = 1) -> int | None:
        """Time at which the line of `target` has a frame through that reaches it `now`; None: the frame is dropped."""
        pair = self.pairs[source, target]
        counters = pair.counters
        if pair.settings.cut:
            counters.dropped_cut += num_packets
            return None
        arrival = self.down[target].send(now, num_bytes)
        if arrival is None:
            counters.dropped_queue += num_packets
        return arrival

    def arrive(self, source: int, target: int, num_bytes: int, num_packets: int = 1) -> bool:
        """Whether `target` receives a frame that its line has through: not if the pair was cut meanwhile."""
        pair = self.pairs[source, target]
        if pair.settings.cut:
            pair.counters.dropped_cut += num_packets
            return False
        pair.counters.packets += num_packets
        pair.counters.num_bytes += num_bytes
        return True

    def change_line(self, host: int, line: LineSettings) -> None:
        """Apply new settings of a host's line to later frames."""
        self.lines[host] = line
        self.up[host].bit_per_s, self.down[host].bit_per_s = line.up_bit_per_s, line.down_bit_per_s
        for wire in (
            self.up[host],
            self.down[host],
            *(pair.wire for ends, pair in self.pairs.items() if ends[0] == host),
        ):
            wire.queue_ns = line.queue_ns

    def packets_per_frame(self, host: int) -> int:
        """The most packets that a frame of `host` may have without distorting rates or losses of single packets."""
        ways = [(pair.settings, self.down[target]) for (source, target), pair in self.pairs.items() if source == host]
        if any(settings.loss or settings.mtu_bytes is not None for settings, _ in ways):
            return 1
        rates = [self.up[host].bit_per_s]
        for settings, down in ways:
            rates += settings.rate_bit_per_s, down.bit_per_s
        slowest = min((rate for rate in rates if rate is not None), default=None)
        most = FRAME_MAX_BYTES if slowest is None else slowest * COARSE_NS // 8_000_000_000
        return max(1, min(most, FRAME_MAX_BYTES) // MTU_BYTES)
