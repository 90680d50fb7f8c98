"""Follows the peers of this host by their pages, for repeated looks: reads only what is new."""

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Final

import numpy as np

from ..errors import RemoteProtocolError
from ..telemetry.arrays import as_records, new_records
from ..telemetry.page import SUFFIX, PageContent, latest_text, map_page, read_identity, ring_offsets
from ..telemetry.records import RING_BYTES, Kind, Record
from ..telemetry.snapshot import Snapshot
from .local import PeerStatus, local_host, peer_status
from .report import latest_snapshot, slowest

NUM_STEPS: Final = 240
"""Steps of each peer whose times are kept."""
NUM_RECORDS: Final = 32
"""Records of each half of a page that are kept; decoding them is half of the cost of a look."""
_NS_PER_US: Final = 1000


class MappedPage:
    """One page, mapped once.

    Attributes:
        identity: of the page's peer.
        steps_us: durations of the peer's last steps, as far as they followed one another.
    """

    def __init__(self, path: Path, num_records: int) -> None:
        """Map the page, with the errors of `map_page`; `num_records` of each half are kept."""
        self._memory = map_page(path)
        self.identity = read_identity(path, self._memory)
        self._halves = [self._memory[start : start + RING_BYTES] for start in ring_offsets()]
        self._read = [0] * len(self._halves)
        self._num_records = num_records
        self._recent = [deque[Record](maxlen=num_records) for _ in self._halves]
        self._records: tuple[Record, ...] = ()
        self._done = np.empty((0, 2), np.int64)
        self.steps_us: list[int] = []
        self._text = b""
        self._snapshot: Snapshot | None = None

    def read(self) -> PageContent:
        """The page's current contents, with the last records; the snapshot lacks its crowd. Unchanged parts are reused.

        Raises:
            RemoteProtocolError: the snapshot is of another version.
        """
        is_new = False
        for index, half in enumerate(self._halves):
            new = new_records(half, self._read[index])
            if len(new):
                is_new = True
                self._read[index] = int(new["first"][-1])
                self._recent[index].extend(as_records(new[-self._num_records :]))
                done = new[(new["kind"] == Kind.COMMITTED) | (new["kind"] == Kind.FOLLOWED)]
                if len(done):
                    self._take_steps(np.stack([done["step"], done["time_ns"].astype(np.int64)], axis=1))
        if is_new:
            records = (each for recent in self._recent for each in recent)
            self._records = tuple(sorted(records, key=attrgetter("time_ns")))
        return PageContent(self.identity, self._read_snapshot(), self._records)

    def with_crowd(self, looked: PeerStatus) -> PeerStatus:
        """Add members, others and links to the snapshot, as of this page's last look."""
        if not self._text:
            return looked
        return replace(looked, seen=replace(looked.seen, snapshot=Snapshot.parse(self._text)))

    def _take_steps(self, done: "np.ndarray[tuple[int, ...], np.dtype[np.int64]]") -> None:
        """Add committed or followed steps: rows of step and time in ns."""
        self._done = np.concatenate([self._done, done])[-NUM_STEPS - 1 :]
        apart, took = np.diff(self._done, axis=0).T
        self.steps_us = (took[(apart == 1) & (took > 0)] // _NS_PER_US).tolist()

    def _read_snapshot(self) -> Snapshot | None:
        text = latest_text(self._memory)
        if text != self._text:
            self._text, self._snapshot = text, Snapshot.parse(text, with_crowd=False)
        return self._snapshot


class StatusReader:
    """The peers of one swarm of this host, or of all."""

    def __init__(self, home: Path, swarm: str, clock_ns: Callable[[], int], num_records: int = NUM_RECORDS) -> None:
        """Arguments as for `local.look`; `num_records` of each half of a page are kept. Reads nothing yet."""
        self._num_records = num_records
        self._home, self._pattern, self._clock_ns = home, f"{swarm or '*'}/*{SUFFIX}", clock_ns
        self._where = local_host()
        self._pages: dict[Path, MappedPage] = {}

    def read(self, *, whole: bool = False) -> dict[str, list[PeerStatus]]:
        """As `local.look`, but empty if there are no peers.

        Args:
            whole: all snapshots have members, others and links; otherwise, at a third of the cost, only those of each
                swarm's latest snapshot and of its slowest peer.
        """
        paths = sorted(self._home.glob(self._pattern))
        self._pages = {path: self._pages[path] for path in paths if path in self._pages}
        found: dict[str, list[tuple[PeerStatus, MappedPage]]] = {}
        for path in paths:
            try:
                page = self._pages.get(path) or MappedPage(path, self._num_records)
                looked = peer_status(page.read(), self._where, self._clock_ns(), path.with_name("lock"))
            except (OSError, RemoteProtocolError):
                continue  # the page is gone, still being written, or another user's
            self._pages[path] = page
            found.setdefault(page.identity.swarm, []).append((looked, page))
        return {swarm: _in_order(peers, whole=whole) for swarm, peers in found.items()}

    def steps_us(self) -> dict[str, list[int]]:
        """Durations of the last steps of all peers, by peer_id."""
        return {path.stem: page.steps_us for path, page in self._pages.items()}


def _in_order(peers: list[tuple[PeerStatus, MappedPage]], *, whole: bool) -> list[PeerStatus]:
    peers.sort(key=lambda each: (len(each[1].identity.name), each[1].identity.name))
    latest, slow = latest_snapshot([looked for looked, _ in peers]), slowest([looked for looked, _ in peers])
    return [
        page.with_crowd(looked)
        if whole or looked is slow or (latest is not None and looked.seen.snapshot is latest)
        else looked
        for looked, page in peers
    ]
