"""What a launch keeps beside the receipts of its peers: all their records (telemetry/trace.py), and how each ended.

The peers do nothing for it: their pages are read from outside. `ends-HOST.jsonl` has a line per process that has ended;
so the folders of several hosts can be put together.
"""

import json
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from ..errors import RemoteProtocolError
from ..host.processes import read_host
from ..telemetry.page import page_path
from ..telemetry.trace import TRACES, Tail, trace_path, write_trace
from .places import Place

LOOK_S: Final = 0.1
"""A half has room for what a peer does in a hundred steps at the least: those of 1 ms take as long."""
ENDS: Final = "ends-{host}.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """Of a process.

    Attributes:
        peer_id: empty: it had not joined.
        name: in messages.
        host: as in its page; empty: it had not joined.
        time_ns: by the monotonic clock of its host.
        code: -N of signal N.
        how: that, in words.
        has_failed: it neither completed, nor left as it was asked to.
        last_words: what it wrote last to stderr.
        missed: records that were overwritten before they were read.
    """

    peer_id: str
    name: str
    host: str
    time_ns: int
    code: int
    how: str
    has_failed: bool
    last_words: str
    missed: int = 0


class Traces:
    """Of one launch."""

    def __init__(self, pages: Path, receipts: Path | None, say: Callable[[str], None]) -> None:
        """Nothing is read, or written.

        Args:
            pages: the registry's folder of the swarm.
            receipts: where to keep them; None: nowhere.
            say: is told once where they cannot be written.
        """
        self._pages, self._folder, self._say = pages, receipts, say
        self._tails: dict[str, Tail] = {}
        self.deadline = math.inf

    def follow(self, place: Place) -> None:
        """A peer has reported: read its page from now on."""
        if self._folder is None or place.standing is None or place.standing.who.peer_id in self._tails:
            return
        peer_id = place.standing.who.peer_id
        with suppress(OSError, RemoteProtocolError):  # it has left already, or is of another version
            self._tails[peer_id] = Tail(page_path(self._pages, peer_id))
            self.deadline = 0.0

    def look(self, now: float) -> None:
        """At what is new, if it is time to. `now`: monotonic seconds."""
        if now < self.deadline:
            return
        for peer_id in list(self._tails):
            self._take(peer_id)
        self.deadline = now + LOOK_S if self._tails else math.inf

    def end(self, place: Place, now_ns: int, last_words: str, *, was_asked: bool) -> None:
        """The process in `place` has ended: what it did last, and how it ended. `was_asked`: by its launcher."""
        self.follow(place)
        assert place.ending is not None
        who = None if place.standing is None else place.standing.who
        missed = 0
        if who is not None and who.peer_id in self._tails:
            self._take(who.peer_id)
            missed = self._tails.pop(who.peer_id).num_missed
        end = End(
            peer_id="" if who is None else who.peer_id,
            name=place.name,
            host="" if who is None else who.host,
            time_ns=now_ns,
            code=place.ending.code,
            how=place.ending.words + (" (by its launcher)" if was_asked and place.ending.exit_code else ""),
            has_failed=bool(place.ending.exit_code) and not was_asked,
            last_words=last_words,
            missed=missed,
        )
        if self._folder is not None:
            self._write(lambda folder: _append(folder / ENDS.format(host=read_host()), json.dumps(asdict(end)) + "\n"))

    def _take(self, peer_id: str) -> None:
        tail = self._tails.get(peer_id)
        if tail is not None and (raw := tail.read()):
            self._write(lambda folder: write_trace(trace_path(folder, peer_id), tail.identity, raw))

    def _write(self, write: Callable[[Path], None]) -> None:
        if self._folder is None:
            return
        try:
            (self._folder / TRACES).mkdir(mode=0o700, parents=True, exist_ok=True)
            write(self._folder)
        except OSError as error:
            self._say(f"no more traces are written to {self._folder}: {error.strerror}; receipts are the peers' own")
            self._folder = None
            self._tails.clear()


def _append(path: Path, line: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(line)
