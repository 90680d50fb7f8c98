"""Why a run has failed: which of its peers failed first, in which step, by what, and what it was at."""

from dataclasses import replace
from pathlib import Path
from typing import Final

from ..errors import RemoteProtocolError
from ..telemetry.page import Seen, page_path, read_page
from ..telemetry.records import Kind
from ..telemetry.timeline import doing
from .places import Place

MOST_CHARACTERS: Final = 200
"""Of the last words of a peer."""


class Postmortem:
    """Of one run.

    Attributes:
        first: who failed first; empty: nobody.
        is_news: that says more than the line about its end: it had joined, or was not the only one.
    """

    def __init__(self, folder: Path) -> None:
        """`folder`: of the registry, with the pages of the dead."""
        self.first, self.is_news = "", False
        self._folder = folder

    def examine(self, place: Place) -> Seen | None:
        """The last process in `place` has ended, and is not reaped. What it did last; None: it has left in order.

        Its step is then the one that it had come to, which its last report may not say.
        """
        standing = place.standing
        if standing is None:
            return None
        try:
            seen = read_page(page_path(self._folder, standing.who.peer_id))
        except (OSError, RemoteProtocolError):
            return None
        done = max((record.step for record in seen.records if record.kind in _DONE), default=-1)
        counted = next((record for record in reversed(seen.records) if record.kind == Kind.RECEIVED), None)
        place.standing = replace(
            standing,
            step=max(done, standing.step),
            has_begun=standing.has_begun or done >= 0,
            counted=standing.counted
            if counted is None
            else replace(standing.counted, steps=counted.size, samples=int(counted.value)),
        )
        return seen

    def conclude(self, place: Place, seen: Seen | None, last_words: str) -> None:
        """It has failed. `last_words`: what it wrote last to stderr."""
        assert place.ending is not None
        if self.first:
            self.is_news = True
            return
        where = f"in step {place.step + 1}" if place.step >= 0 else "before its first step"
        at = f" while {doing(seen.records)[0]}" if seen is not None else ""
        words = (
            f" ({last_words.removeprefix('shoal: ')[:MOST_CHARACTERS]})" if last_words and place.ending.code > 0 else ""
        )
        self.is_news = place.standing is not None
        self.first = f"peer {place.name} failed first, {where}: it {place.ending.words}{at}{words}"


_DONE: Final = (Kind.COMMITTED, Kind.FOLLOWED, Kind.LOADED)
