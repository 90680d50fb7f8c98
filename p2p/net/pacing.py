"""Between hosts far apart, data leave at the rate of this peer's line, one peer after the other.

What is handed over at once otherwise leaves at once: to all others, by connections of which each has the whole line by
its own account. They overflow a queue on the way, here or where the others' meet at one receiver, and lost packets cost
round trips. Since peers begin with who follows them, at one rate no two of them send to one at a time;
where they do all the same, what is under way to one receiver is bounded (credits.py).
"""

import math
from collections import deque
from collections.abc import Callable
from typing import Final

from .credits import Credits

HEADROOM: Final = 1.25
"""So many times what was measured: what has become faster is noticed, and TCP itself decides in the end."""

LATE_S: Final = 0.01
"""Who looks so much too late catches up."""

LOOK_S: Final = 0.002
"""Who waits for bytes to arrive looks this often."""

SMALL_BYTES: Final = 4 << 10
"""Frames of at most this much wait for nothing but earlier ones to the same peer."""


class Pacer:
    """Of one peer. Frames to one peer keep their order.

    Attributes:
        bytes_per_s: of the line, as measured; 0: it is not known, and nothing waits for it.
        credits: what may be under way to each.
    """

    def __init__(
        self,
        send: Callable[[str, bytes, memoryview], bool],
        clock: Callable[[], float],
        lent_from_bytes: int,
        acked: Callable[[str], int | None],
    ) -> None:
        """`send` queues header and payload for a peer; False: they were dropped. `acked`: as of `Credits`.

        Payloads of fewer than `lent_from_bytes` may be written again at once, so those that are held are copied.
        """
        self.bytes_per_s = 0
        self.credits = Credits(acked)
        self._lent_from_bytes = lent_from_bytes
        self._clock = clock
        self._send = send
        self._held: dict[str, deque[tuple[bytes, memoryview]]] = {}  # none is empty; who comes first is next
        self._free_at = self._look_at = 0.0

    @property
    def is_on(self) -> bool:
        """Whether anything may have to wait."""
        return self.bytes_per_s > 0 or self.credits.is_on or bool(self._held)

    @property
    def next_at(self) -> float:
        """When to call `go_on`; infinity: nothing is held."""
        return max(self._free_at, self._look_at) if self._held else math.inf

    def send(self, peer_id: str, header: bytes, payload: memoryview) -> bool:
        """Send a frame, or hold it until it is its turn; False: it was dropped."""
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
        """Send what is due: one frame to each peer by turns, and none to whom much is under way."""
        while self._held and (now := self._clock()) >= self.next_at:
            peer_id = next((each for each, frames in self._held.items() if self._may_send(each, *frames[0])), None)
            if peer_id is None:
                self._look_at = now + LOOK_S
                return
            self._free_at = max(now - LATE_S, self._free_at)
            frames = self._held.pop(peer_id)
            header, payload = frames.popleft()
            if frames:
                self._held[peer_id] = frames  # behind the others
            self._pass(peer_id, header, payload)

    def flush(self) -> None:
        """Send all that is held."""
        self.bytes_per_s, self.credits.is_on = 0, False
        self._free_at = self._look_at = -math.inf
        self.go_on()

    def forget(self, peer_id: str) -> None:
        """What is held for that peer is not sent any more."""
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
