"""Signs of life of each peer, and the gaps in them (PROTOCOL.md, G11 and G12).

A link that stalls repeatedly, each time too briefly for a removal, would delay all members for good. So every *gap*
counts: a period without a frame of a member. A gap does not count if the link was answered throughout, since then only
the interpreter was busy, nor while this peer did not listen itself.
"""

import math

from .swim_config import SwimConfig

LEAST_GAPS = 3
"""Least gaps for flapping. One long silence is none: a member that returns may stay."""

Gap = tuple[float, float]
"""Begin and end of a gap."""


class Signs:
    """Signs of life, by peer_id: a restart does not clear the record of a link."""

    def __init__(self, config: SwimConfig, now: float) -> None:
        self._config = config
        self._heard: dict[str, float] = {}
        self._frames: dict[str, float] = {}
        self._since = now
        self._listens_since = now
        self._gaps: dict[str, list[Gap]] = {}
        self._broke: dict[str, float] = {}
        self._flapping: dict[str, None] = {}
        self._watched: dict[str, None] = {}
        self._steady: dict[str, float] = {}

    def silence_s(self, now: float, name: str) -> float:
        return max(0.0, now - self._heard.get(name, self._since))

    def watch(self, name: str) -> None:
        """`name` has a seat, so that it sends frames continuously from now on; its record begins anew.

        The proposer of its seat found it steady, maybe before this peer did. The watch continues after it has lost its
        seat, since joiners send frames continuously, too.
        """
        self._watched[name] = None
        self._begin_anew(name)

    def frame_received(self, now: float, name: str) -> None:
        """A frame of `name` has arrived."""
        if now - self._begun(now, name) >= self._config.gap_s:
            gaps, since = self._series(now, name), now - self._config.gaps_window_s
            if name in self._watched:
                self._gaps[name] = [*(gap for gap in gaps if gap[1] > since), self._gap(now, name)]
            self._steady[name] = now
        self._steady.setdefault(name, now)
        self._frames[name] = self._heard[name] = now

    def steady_since(self, name: str) -> float:
        """Since when frames of `name` have arrived without a gap, up to the last one."""
        return self._steady.get(name, math.inf)

    def link_answered(self, now: float, name: str) -> bool:
        """The link to `name` is answered. Returns whether that counts as life: not for long without a frame (G11)."""
        if name in self._gaps:
            broke = self._broke.get(name, -math.inf)
            self._gaps[name] = [gap for gap in self._gaps[name] if gap[0] <= broke]
        if now - self._frames.get(name, self._since) >= self._config.mute_s:
            return False
        self._heard[name] = now
        return True

    def broke(self, now: float, name: str) -> None:
        """The link to `name` is not answered, or was not at some time since the last look."""
        self._broke[name] = now

    def flaps(self, now: float, name: str) -> bool:
        """Whether `name` was silent for more than half of the window, in several gaps, and has not been quiet since."""
        gaps, since = self._series(now, name), now - self._config.gaps_window_s
        if now - self._begun(now, name) >= self._config.gap_s and not self._is_busy(name):
            gaps = [*gaps, self._gap(now, name)]
        lately = [end - max(begin, since) for begin, end in gaps if end > since]
        if len(lately) >= LEAST_GAPS and sum(lately) > self._config.gaps_window_s / 2:
            self._flapping[name] = None
        return name in self._flapping

    def is_steady(self, now: float, name: str) -> bool:
        """Whether `name` may have a seat: not while its gaps repeat, even if they are too few for flapping."""
        return not self.flaps(now, name) and len(self._series(now, name)) < LEAST_GAPS - 1

    def excuse(self, now: float) -> None:
        """This peer was late itself: silence until now does not count."""
        self._listens_since = now

    def resume(self, now: float) -> None:
        """This peer was stopped: silence proves nothing."""
        self._heard.clear()
        self._frames.clear()
        self._steady.clear()
        self._since = self._listens_since = now

    def forget(self, name: str) -> None:
        for signs in (self._heard, self._frames, self._gaps, self._broke, self._flapping, self._watched, self._steady):
            signs.pop(name, None)

    def _series(self, now: float, name: str) -> list[Gap]:
        """Gaps of `name` since it was last quiet."""
        gaps = self._gaps.get(name, [])
        if not gaps or self._begun(now, name) - gaps[-1][1] >= self._config.steady_s:
            gaps = []
            self._begin_anew(name)
        return gaps

    def _begin_anew(self, name: str) -> None:
        self._gaps.pop(name, None)
        self._flapping.pop(name, None)

    def _begun(self, now: float, name: str) -> float:
        """When the present gap of `name` began."""
        return max(self._frames.get(name, now), self._listens_since)

    def _gap(self, now: float, name: str) -> Gap:
        return self._begun(now, name), now

    def _is_busy(self, name: str) -> bool:
        """Whether the link to `name` has been answered since its last frame."""
        last = self._frames.get(name, self._since)
        return self._heard.get(name, last) > last and self._broke.get(name, -math.inf) < last
