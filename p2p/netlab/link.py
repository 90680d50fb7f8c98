"""When a frame arrives at another host, if at all: lines with a rate and a queue, pairs with a delay. Pure.

A frame leaves through the line of its host (`up`), then goes through its pair: a rate, loss, a delay with jitter. That
is `leave`. When it would arrive, the line of the other host (`down`) takes it: `land`. Times are nanoseconds of any
clock, and come in as arguments; so does what chance there is.

A rate counts packets as IP does, each with its headers; what a frame needs around them on a real wire is left out. The
last bit of a frame arrives with the first: a frame of 64 KB arrives as a whole, when all of it would be there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from .settings import LineSettings, PairSettings

MTU_BYTES: Final = 1500
QUEUE_MIN_BYTES: Final = 16 * MTU_BYTES
"""A slow line holds so much in any case, or it would drop what others send in one go."""
FRAME_MAX_BYTES: Final = 65536
COARSE_NS: Final = 1_250_000
"""No frame takes a line for longer than this, if it is not a single packet: an eighth of 10 ms."""


@dataclass(slots=True)
class Counters:
    """Of one pair, since the lab began. `packets` and `num_bytes`: what arrived."""

    packets: int = 0
    num_bytes: int = 0
    dropped_queue: int = 0
    dropped_loss: int = 0
    dropped_mtu: int = 0
    dropped_cut: int = 0


class Wire:
    """Carries one frame after the other."""

    def __init__(self, bit_per_s: int | None, queue_ns: int) -> None:
        self.bit_per_s = bit_per_s
        self.queue_ns = queue_ns
        self._free_at = 0

    def send(self, now: int, num_bytes: int) -> int | None:
        """When the last bit of a frame has left that comes `now`; None: there are too many before it."""
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
    """The way from one host to another one."""

    def __init__(self, settings: PairSettings, queue_ns: int) -> None:
        self.counters = Counters()
        self.wire = Wire(settings.rate_bit_per_s, queue_ns)
        self.settings = settings
        self._last_due = 0

    def change(self, settings: PairSettings) -> None:
        """From now on; what is under way arrives as it would have, unless it is cut."""
        self.settings = settings
        self.wire.bit_per_s = settings.rate_bit_per_s

    def delay(self, now: int, random: Random) -> int:
        """When what is sent `now` arrives: not before what was sent earlier."""
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
        self.up = [Wire(line.up_bit_per_s, line.queue_ns) for line in lines]
        self.down = [Wire(line.down_bit_per_s, line.queue_ns) for line in lines]
        self.pairs = {(source, target): Pair(pairs[source, target], lines[source].queue_ns) for source, target in pairs}
        self._random = random

    def leave(self, now: int, source: int, target: int, num_bytes: int, num_packets: int = 1) -> int | None:
        """When a frame that `source` sends `now` gets to the line of `target`; None: never. It has `num_packets`."""
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

    def land(self, now: int, source: int, target: int, num_bytes: int, num_packets: int = 1) -> int | None:
        """When `target` has what gets to its line `now`; None: never."""
        pair = self.pairs[source, target]
        counters = pair.counters
        if pair.settings.cut:
            counters.dropped_cut += num_packets
            return None
        arrival = self.down[target].send(now, num_bytes)
        if arrival is None:
            counters.dropped_queue += num_packets
        else:
            counters.packets += num_packets
            counters.num_bytes += num_bytes
        return arrival

    def change_line(self, host: int, line: LineSettings) -> None:
        """From now on."""
        self.lines[host] = line
        self.up[host].bit_per_s, self.down[host].bit_per_s = line.up_bit_per_s, line.down_bit_per_s
        for wire in (
            self.up[host],
            self.down[host],
            *(pair.wire for ends, pair in self.pairs.items() if ends[0] == host),
        ):
            wire.queue_ns = line.queue_ns

    def packets_per_frame(self, host: int) -> int:
        """As many as a frame of `host` may have, for rates and losses to be what they are of single packets."""
        ways = [(pair.settings, self.down[target]) for (source, target), pair in self.pairs.items() if source == host]
        if any(settings.loss or settings.mtu_bytes is not None for settings, _ in ways):
            return 1
        rates = [self.up[host].bit_per_s]
        for settings, down in ways:
            rates += settings.rate_bit_per_s, down.bit_per_s
        slowest = min((rate for rate in rates if rate is not None), default=None)
        most = FRAME_MAX_BYTES if slowest is None else slowest * COARSE_NS // 8_000_000_000
        return max(1, min(most, FRAME_MAX_BYTES) // MTU_BYTES)
