"""Other swarms of the same name that a member has met: two founders, or a fork that only a wrong proof can make."""

import math

from .config import CoreConfig
from .effects import Effect, OtherSwarmFound
from .view import View

MOST_STRANGERS = 64
"""Most other swarms that are reported."""


class OtherSwarms:
    """Other swarms that were reported: once each. Swarms are never merged."""

    def __init__(self, config: CoreConfig) -> None:
        self._known: set[bytes] = set()
        self._next_greeting = -math.inf
        self._config = config

    def greets(self, now: float, lineage: bytes) -> bool:
        """Whether to ask a member of `lineage` for its view, so that it can be named."""
        if not self._is_news(lineage) or now < self._next_greeting:
            return False
        self._next_greeting = now + self._config.beat_s
        return True

    def name(self, mine: View, other: View) -> list[Effect]:
        """Report `other`, a view that does not follow from `mine`, nor the other way round."""
        known_by = other.hash if other.lineage == mine.lineage else other.lineage
        if not self._is_news(known_by):
            return []
        self._known.add(known_by)
        ours, theirs = (
            f"{view.lineage.hex()[:8]}, founded by {view.founder or '?'}, with {', '.join(map(str, view.members))}"
            for view in (mine, other)
        )
        return [OtherSwarmFound(f"two swarms of one name have met: {ours}, and {theirs}; this peer stays in its own")]

    def _is_news(self, known_by: bytes) -> bool:
        return known_by not in self._known and len(self._known) < MOST_STRANGERS
