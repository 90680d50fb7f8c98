"""Traces (telemetry/trace.py) and endings of all peers of a launch, written beside their receipts.

Costs the peers nothing: their pages are read from outside. `ends-HOST.jsonl` has a line per ended process; its name
allows merging the folders of several hosts.
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
from .peer_slots import PeerSlot

LOOK_S: Final = 0.1
"""A half holds the records of at least a hundred steps, which take this long at 1 ms each."""
ENDS: Final = "ends-{host}.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitRecord:
    """The end of a process.

    Attributes:
        peer_id: empty: it had not joined.
        name: in messages.
        host: as in its page; empty: it had not joined.
        time_ns: by the monotonic clock of its host.
        code: -N for signal N.
        how: the end, in words.
        has_failed: it neither completed nor left as intended, and its launcher did not end it.
        last_words: its last line on stderr.
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
    """Writes the traces of one launch.

    Attributes:
        deadline: when to `poll`.
        pages: the registry's folder of the swarm.
    """

    def __init__(self, pages: Path, receipts: Path | None, say: Callable[[str], None]) -> None:
        """Start without any peers.

        Args:
            pages: as above.
            receipts: folder to write to; None: traces are not written.
            say: called once if they cannot be written.
        """
        self.pages, self._folder, self._say = pages, receipts, say
        self._tails: dict[str, Tail] = {}
        self.deadline = math.inf

    def follow(self, place: PeerSlot) -> None:
        """Read the page of a peer that has reported, from now on."""
        if self._folder is None or place.snapshot is None or place.snapshot.identity.peer_id in self._tails:
            return
        peer_id = place.snapshot.identity.peer_id
        with suppress(OSError, RemoteProtocolError):  # the peer has left already, or runs another version
            self._tails[peer_id] = Tail(page_path(self.pages, peer_id))
            self.deadline = 0.0

    def poll(self, now: float) -> None:
        """Write new records, if that is due. `now`: monotonic seconds."""
        if now < self.deadline:
            return
        for peer_id in list(self._tails):
            self._take(peer_id)
        self.deadline = now + LOOK_S if self._tails else math.inf

    def end(self, place: PeerSlot, now_ns: int, last_words: str, *, was_asked: bool) -> None:
        """Write the last records and the ending of the process in `place`. `was_asked`: its launcher ended it."""
        self.follow(place)
        assert place.exit_outcome is not None
        who = None if place.snapshot is None else place.snapshot.identity
        missed = 0
        if who is not None and who.peer_id in self._tails:
            self._take(who.peer_id)
            missed = self._tails.pop(who.peer_id).num_missed
        end = ExitRecord(
            peer_id="" if who is None else who.peer_id,
            name=place.name,
            host="" if who is None else who.host,
            time_ns=now_ns,
            code=place.exit_outcome.code,
            how=place.exit_outcome.words + (" (by its launcher)" if was_asked and place.exit_outcome.exit_code else ""),
            has_failed=bool(place.exit_outcome.exit_code) and not was_asked,
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
