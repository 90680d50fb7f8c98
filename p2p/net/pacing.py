"""Between hosts far apart, data leave at the rate of this peer's line, one peer after the other.

What is handed over at once otherwise leaves at once: to all others, by connections of which each has the whole line by
its own account. They overflow a queue on the way, here or where the others' meet at one receiver, and lost packets cost
round trips. Since peers begin with who follows them, at one rate no two of them send to one at a time.
"""

import math
from collections import deque
from collections.abc import Callable
from typing import Final

HEADROOM: Final = 1.25
"""So many times what was measured: what has become faster is noticed, and TCP itself decides in the end."""

LATE_S: Final = 0.01
"""Who looks so much too late catches up."""

SMALL_BYTES: Final = 4 << 10
"""Frames of at most this much wait for nothing but earlier ones to the same peer."""


class Pacer:
    """Of one peer. Frames to one peer keep their order.

    Attributes:
        bytes_per_s: of the line, as measured; 0: it is not known, and nothing waits.
    """

    def __init__(
        self, send: Callable[[str, bytes, memoryview], bool], clock: Callable[[], float], lent_from_bytes: int
    ) -> None:
        """`send` queues header and payload for a peer; False: they were dropped.

        Payloads of fewer than `lent_from_bytes` may be written again at once, so those that are held are copied.
        """
        self.bytes_per_s = 0
        self._lent_from_bytes = lent_from_bytes
        self._clock = clock
        self._send = send
        self._held: dict[str, deque[tuple[bytes, memoryview]]] = {}  # none is empty; who comes first is next
        self._free_at = 0.0

    @property
    def is_on(self) -> bool:
        """Whether anything has to wait."""
        return self.bytes_per_s > 0 or bool(self._held)

    @property
    def next_at(self) -> float:
        """When to call `go_on`; infinity: nothing is held."""
        return self._free_at if self._held else math.inf

    def send(self, peer_id: str, header: bytes, payload: memoryview) -> bool:
        """Send a frame, or hold it until it is its turn; False: it was dropped."""
        now = self._clock()
        waits = payload.nbytes > SMALL_BYTES and (bool(self._held) or now < self._free_at)
        if waits or peer_id in self._held:
            kept = payload if payload.nbytes >= self._lent_from_bytes else memoryview(bytes(payload))
            self._held.setdefault(peer_id, deque()).append((header, kept))
            return True
        self._free_at = max(now, self._free_at)
        return self._pass(peer_id, header, payload)

    def go_on(self) -> None:
        """Send what is due: one frame to each peer by turns."""
        while self._held and (now := self._clock()) >= self._free_at:
            self._free_at = max(now - LATE_S, self._free_at)
            peer_id, frames = next(iter(self._held.items()))
            del self._held[peer_id]
            header, payload = frames.popleft()
            if frames:
                self._held[peer_id] = frames  # behind the others
            self._pass(peer_id, header, payload)

    def flush(self) -> None:
        """Send all that is held."""
        self.bytes_per_s, self._free_at = 0, -math.inf
        self.go_on()

    def forget(self, peer_id: str) -> None:
        """What is held for that peer is not sent any more."""
        self._held.pop(peer_id, None)

    def _pass(self, peer_id: str, header: bytes, payload: memoryview) -> bool:
        if self.bytes_per_s:
            self._free_at += (len(header) + payload.nbytes) / (HEADROOM * self.bytes_per_s)
        return self._send(peer_id, header, payload)
