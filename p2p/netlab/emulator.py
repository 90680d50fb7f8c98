"""Forwards frames from host to host when they are due, and records how late it was."""

import heapq
import select
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Final

from .link import Links
from .packets import Frame, Port

STEP_NS: Final = 10_000
NUM_STEPS: Final = 10_000
STALE_NS: Final = 10**9
"""The kernel's timestamp of a frame is used only if it is younger than this, and not in the future."""


class Lateness:
    """A histogram of the delays between a frame's due time and its delivery, in steps of 10 us up to 0.1 s."""

    def __init__(self) -> None:
        self.num_frames = 0
        self.max_ns = 0
        self._counts = [0] * (NUM_STEPS + 1)

    def note(self, late_ns: int) -> None:
        self._counts[min(late_ns // STEP_NS, NUM_STEPS)] += 1
        self.num_frames += 1
        self.max_ns = max(late_ns, self.max_ns)

    def percentile_ns(self, share: float) -> int:
        """The lateness that this share of the frames did not exceed; 0 without frames."""
        wanted, seen = share * self.num_frames, 0
        for step, num in enumerate(self._counts):
            seen += num
            if seen >= wanted and seen:
                return min((step + 1) * STEP_NS, self.max_ns) if step < NUM_STEPS else self.max_ns
        return 0


class Emulator:
    """The event loop of a lab: one thread that waits for frames, requests and due times."""

    def __init__(self, links: Links, ports: Sequence[Port], addresses: Mapping[bytes, int]) -> None:
        """`ports`: one per host, in order; `addresses`: from IPv4 address to host number."""
        self.links = links
        self.lateness = Lateness()
        self.num_lost = 0
        self._ports = list(ports)
        self._addresses = addresses
        self._due: list[tuple[int, int, int, int, Frame, bool]] = []
        self._order = count()  # frames that are due at once stay in order, and are never compared
        self._epoll = select.epoll()
        self._ready: dict[int, Callable[[], None]] = {}
        self._is_over = False
        for index, port in enumerate(ports):
            self.watch(port.fileno(), lambda index=index: self._take(index))  # type: ignore[misc]

    def watch(self, descriptor: int, ready: Callable[[], None]) -> None:
        """Call `ready` whenever `descriptor` is readable."""
        self._epoll.register(descriptor, select.EPOLLIN)
        self._ready[descriptor] = ready

    def forget(self, descriptor: int) -> None:
        if self._ready.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def remove(self, host: int) -> None:
        """Stop reading the frames of a host that is gone."""
        self.forget(self._ports[host].fileno())

    def num_missed(self) -> int:
        """Number of frames that the lab was too slow to read, or could not deliver."""
        return self.num_lost + sum(port.num_missed() for port in self._ports)

    def stop(self) -> None:
        self._is_over = True

    def run(self) -> None:
        """Forward frames and serve requests until `stop`."""
        while not self._is_over:
            wait_s = max(0, self._due[0][0] - time.monotonic_ns()) / 1e9 if self._due else None
            # epoll_wait counts in milliseconds, and select does not.
            if select.select([self._epoll], [], [], wait_s)[0]:
                for descriptor, _ in self._epoll.poll(0):
                    if ready := self._ready.get(descriptor):
                        ready()
                    self._deliver()
            self._deliver()

    def _take(self, source: int) -> None:
        now = time.monotonic_ns()
        behind = time.time_ns() - now
        for frame in self._ports[source].read():
            target = self._addresses.get(frame.destination)
            if target is None or target == source:
                continue
            sent = frame.received_ns - behind
            if not now - STALE_NS < sent <= now:
                sent = now
            due = self.links.egress(sent, source, target, frame.num_bytes, frame.num_packets)
            if due is not None:
                heapq.heappush(self._due, (due, next(self._order), source, target, frame, False))

    def _deliver(self) -> None:
        due = self._due
        while due and due[0][0] <= (now := time.monotonic_ns()):
            when, _, source, target, frame, is_through = heapq.heappop(due)
            if not is_through:
                arrival = self.links.ingress(when, source, target, frame.num_bytes, frame.num_packets)
                if arrival is None:
                    continue
                if arrival > now:
                    heapq.heappush(due, (arrival, next(self._order), source, target, frame, True))
                    continue
                when = arrival
            if not self.links.arrive(source, target, frame.num_bytes, frame.num_packets):
                continue
            try:
                self._ports[target].send(frame)
            except OSError:
                self.num_lost += self._ports[target].fileno() in self._ready  # not counted if its host is gone
            self.lateness.note(now - when)
