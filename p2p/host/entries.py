"""The entries in a swarm's folder, as one process sees them: of living peers, of dead ones, and of other namespaces."""

import logging
import socket
from pathlib import Path
from typing import Final, NamedTuple

from ..errors import RegistryError
from .entry import ENTRY_MAX_BYTES, HEX_NAME, Entry, parse_entry
from .exiting import lives
from .folders import is_byte_locked, place_of
from .processes import Offsets

logger = logging.getLogger(__name__)

MOST_DEAD_PAGES: Final = 16
"""How many pages of dead peers are kept while others continue (telemetry/page.py)."""


class Found(NamedTuple):
    """The entries of a folder.

    Attributes:
        living: entries whose processes are visible here and alive.
        dead: entries whose processes have ended, or belong to another boot.
        elsewhere: entries of another pid namespace whose peers live, as their lock shows.
    """

    living: tuple[Entry, ...]
    dead: tuple[Entry, ...]
    elsewhere: tuple[Entry, ...]


class Entries:
    """The entries of one swarm, read by a process of `host` whose clocks are shifted by `offsets`."""

    def __init__(self, folder: Path, swarm: str, host: str, offsets: Offsets) -> None:
        self._folder, self._swarm, self._host, self._offsets = folder, swarm, host, offsets
        self._ignored: set[Path] = set()

    def read(self, *, apart_from: str) -> Found:
        """Read all entries except that of one peer, of any version. Other files are ignored, with one warning each.

        Raises:
            RegistryError: whether a process lives cannot be read.
        """
        found = Found((), (), ())
        for path in sorted(self._folder.glob("*.json")):
            try:
                with path.open("rb") as file:
                    entry = parse_entry(file.read(ENTRY_MAX_BYTES))
                self._check_place(entry, path)
            except FileNotFoundError:
                continue  # its owner has left since
            except (OSError, ValueError) as error:
                if path not in self._ignored:
                    self._ignored.add(path)
                    logger.warning("%s is ignored, it is no entry of this swarm: %s", path, error)
                continue
            if entry.peer_id == apart_from:
                continue
            if self._lives(entry):
                found = found._replace(living=(*found.living, entry))
            elif entry.host != self._host and is_byte_locked(self._folder / "lock", place_of(entry.peer_id)):
                found = found._replace(elsewhere=(*found.elsewhere, entry))
            else:
                found = found._replace(dead=(*found.dead, entry))
        return found

    def _check_place(self, entry: Entry, path: Path) -> None:
        """Raise ValueError for an entry of another folder: files that an entry names are unlinked after a death."""
        if path != self._folder / f"{entry.peer_id}.json" or entry.swarm != self._swarm:
            raise ValueError(f"it is of peer {entry.peer_id!r} in swarm {entry.swarm!r}")
        for address in (entry.control_address, entry.data_address):
            path_of = Path(address.removeprefix("ipc://"))
            if path_of.parent != self._folder or not HEX_NAME.fullmatch(path_of.name):
                raise ValueError(f"its address {address!r} is not in this folder")

    def _is_replaced(self, entry: Entry) -> bool:
        """Whether the process runs another program by now (exec), which has closed the lock and the sockets."""
        if is_byte_locked(self._folder / "lock", place_of(entry.peer_id)):
            return False
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
            caller.setblocking(False)
            try:
                caller.connect(entry.control_address.removeprefix("ipc://"))
            except ConnectionRefusedError:
                return True
            except OSError:  # it is not bound yet, or too many wait to be accepted
                return False
        return False

    def _lives(self, entry: Entry) -> bool:
        try:
            if entry.host != self._host:
                return False
            # Start times are shifted by the boottime offset, and rounded.
            start = entry.process_start + self._offsets.ticks - entry.offsets.ticks
            starts = [start] if entry.offsets == self._offsets else [start - 1, start, start + 1]
            return any(lives(entry.pid, each) for each in starts) and not self._is_replaced(entry)
        except OSError as error:
            raise RegistryError(f"cannot see whether process {entry.pid} is alive: {error}") from error


def sweep_pages(folder: Path, own: str, *, is_over: bool) -> None:
    """Remove pages of dead peers: all of them if `is_over`, else all but the `MOST_DEAD_PAGES` newest."""
    others = (path for path in folder.glob("*.page") if path.stem != own)
    pages = [path for path in others if not path.with_suffix(".json").exists()]
    pages.sort(key=_changed_ns)
    for path in pages if is_over else pages[:-MOST_DEAD_PAGES]:
        path.unlink(missing_ok=True)


def _changed_ns(path: Path) -> int:
    """Time of the last write to the file; 0: its peer is leaving and has removed it."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0
