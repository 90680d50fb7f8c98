"""Pacing: between distant hosts, data are sent at the bandwidth of this peer's line, to one peer after the other.

Otherwise data handed over at once also leave at once: to all peers, over connections each of which assumes the whole
line for itself. They overflow a queue, either here or where several meet at one receiver, and lost packets cost round
trips. Since each peer begins with its successor, at equal rates no two peers send to the same receiver at a time; if
they do all the same, the bytes in flight to one receiver are bounded (credits.py).
"""

import math
from collections import deque
from collections.abc import Callable
from typing import Final

from .credits import Credits

HEADROOM: Final = 1.25
"""Factor on the measured bandwidth, so that an increase is noticed; TCP itself has the last word."""

LATE_S: Final = 0.01
"""A caller that is late by up to this much catches up."""

LOOK_S: Final = 0.002
"""Polling interval while bytes in flight are awaited."""

SMALL_BYTES: Final = 4 << 10
"""Frames of at most this size wait only for earlier ones to the same peer."""


class Pacer:
    """Pacer of one sending peer. Frames to the same receiver keep their order.

    Attributes:
        bytes_per_s: measured bandwidth of the line; 0: not known, frames do not wait for it.
        credits: how much may be in flight to each receiver.
    """

    def __init__(
        self,
        send: Callable[[str, bytes, memoryview], bool],
        clock: Callable[[], float],
        lent_from_bytes: int,
        acked: Callable[[str], int | None],
    ) -> None:
        """`send` queues header and payload for a peer; False: they were dropped. `acked`: as of `Credits`.

        The caller may overwrite payloads shorter than `lent_from_bytes` at once, so these are copied if held.
        """
        self.bytes_per_s = 0
        self.credits = Credits(acked)
        self._lent_from_bytes = lent_from_bytes
        self._clock = clock
        self._send = send
        self._held: dict[str, deque[tuple[bytes, memoryview]]] = {}  # none is empty; the first peer is next
        self._free_at = self._look_at = 0.0

    @property
    def is_on(self) -> bool:
        """Whether frames may have to wait."""
        return self.bytes_per_s > 0 or self.credits.is_on or bool(self._held)

    @property
    def next_at(self) -> float:
        """When to call `go_on`; infinity: no frames are held."""
        return max(self._free_at, self._look_at) if self._held else math.inf

    def send(self, peer_id: str, header: bytes, payload: memoryview) -> bool:
        """Send a frame, or hold it until its turn; False: dropped."""
        now = self._clock()
        waits = payload.nbytes > SMALL_BYTES and (
            bool(self._held) or now < self._free_at or not self._may_send(peer_id, header, payload)
        )
        if waits or peer_id in self._held:
            kept = payload if payload.nbytes >= self._lent_from_bytes else memoryview(bytes(payload))
            self._held.setdefault(peer_id, deque()).append((header, kept))
            return True
        self._free_at = max(now, self._free_at)
        return self._pass(peer_id, header, payload)

    def go_on(self) -> None:
        """Send the frames that are due: one to each peer by turns, skipping peers without credit."""
        while self._held and (now := self._clock()) >= self.next_at:
            peer_id = next((each for each, frames in self._held.items() if self._may_send(each, *frames[0])), None)
            if peer_id is None:
                self._look_at = now + LOOK_S
                return
            self._free_at = max(now - LATE_S, self._free_at)
            frames = self._held.pop(peer_id)
            header, payload = frames.popleft()
            if frames:
                self._held[peer_id] = frames  # after the others
            self._pass(peer_id, header, payload)

    def flush(self) -> None:
        """Send all held frames."""
        self.bytes_per_s, self.credits.is_on = 0, False
        self._free_at = self._look_at = -math.inf
        self.go_on()

    def forget(self, peer_id: str) -> None:
        """Drop the frames held for this peer."""
        self._held.pop(peer_id, None)
        self.credits.forget(peer_id)

    def _may_send(self, peer_id: str, header: bytes, payload: memoryview) -> bool:
        return not self.credits.is_on or self.credits.may_send(peer_id, len(header) + payload.nbytes)

    def _pass(self, peer_id: str, header: bytes, payload: memoryview) -> bool:
        if self.bytes_per_s:
            self._free_at += (len(header) + payload.nbytes) / (HEADROOM * self.bytes_per_s)
        if self.credits.is_on:
            self.credits.sent(peer_id, len(header) + payload.nbytes)
        return self._send(peer_id, header, payload)
