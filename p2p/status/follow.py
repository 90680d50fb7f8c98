"""Follows the peers of this host by their pages, for who looks again and again: what is new is read, and no more."""

from collections import deque
from collections.abc import Callable
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Final

from ..errors import RemoteProtocolError
from ..host.processes import read_host
from ..telemetry.arrays import as_records, new_records
from ..telemetry.page import SUFFIX, Seen, halves, map_page, read_identity, read_snapshot
from ..telemetry.records import HALF_BYTES, Kind, Record
from .local import Looked, looked_at

NUM_STEPS: Final = 240
"""Of each peer, whose times are kept."""
NUM_RECORDS: Final = 32
"""Of each half, that are kept."""


class Followed:
    """One page, mapped once.

    Attributes:
        identity: whose it is.
    """

    def __init__(self, path: Path) -> None:
        """As `map_page`."""
        self._memory = map_page(path)
        self.identity = read_identity(path, self._memory)
        self._halves = [self._memory[start : start + HALF_BYTES] for start in halves()]
        self._read = [0] * len(self._halves)
        self._recent = [deque[Record](maxlen=NUM_RECORDS) for _ in self._halves]
        self._done = deque[tuple[int, int]](maxlen=NUM_STEPS + 1)

    def look(self) -> Seen:
        """What is there now, with the last records."""
        for index, half in enumerate(self._halves):
            new = new_records(half, self._read[index])
            if len(new):
                self._read[index] = int(new["first"][-1])
                self._recent[index].extend(as_records(new[-NUM_RECORDS:]))
                done = new[(new["kind"] == Kind.COMMITTED) | (new["kind"] == Kind.FOLLOWED)]
                self._done.extend(zip(done["step"].tolist(), done["time_ns"].tolist(), strict=True))
        records = sorted((each for recent in self._recent for each in recent), key=attrgetter("time_ns"))
        return Seen(self.identity, read_snapshot(self._memory), tuple(records))

    def step_times_s(self) -> list[float]:
        """Of the last steps, each after the one before it."""
        return [
            (later - earlier) / 1e9
            for (before, earlier), (step, later) in pairwise(self._done)
            if step == before + 1 and later > earlier
        ]


class Follower:
    """The peers of one swarm of this host, or of all."""

    def __init__(self, home: Path, swarm: str, clock_ns: Callable[[], int]) -> None:
        """Nothing is read. Arguments as of `local.look`."""
        self._home, self._pattern, self._clock_ns = home, f"{swarm or '*'}/*{SUFFIX}", clock_ns
        self._host = read_host()
        self._pages: dict[Path, Followed] = {}

    def look(self) -> dict[str, list[Looked]]:
        """As `local.look`; empty, where nobody is there."""
        paths = set(self._home.glob(self._pattern))
        self._pages = {path: page for path, page in self._pages.items() if path in paths}
        found: dict[str, list[Looked]] = {}
        for path in sorted(paths):
            try:
                page = self._pages.get(path) or Followed(path)
            except (OSError, RemoteProtocolError):
                continue  # it is gone meanwhile, is being made, or none of ours
            self._pages[path] = page
            looked = looked_at(page.look(), self._host, self._clock_ns())
            found.setdefault(page.identity.swarm, []).append(looked)
        for peers in found.values():
            peers.sort(key=lambda looked: (len(looked.seen.identity.name), looked.seen.identity.name))
        return found

    def step_times_s(self) -> dict[str, list[float]]:
        """Of the last steps of all that were seen, by peer_id."""
        return {path.stem: page.step_times_s() for path, page in self._pages.items()}
