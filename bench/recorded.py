"""Reads a peer's flight recorder from its trace and its page."""

from contextlib import suppress
from operator import attrgetter
from pathlib import Path

from p2p.errors import RemoteProtocolError
from p2p.telemetry.page import read_page
from p2p.telemetry.records import Record
from p2p.telemetry.trace import read_trace


def read_records(trace: Path, page: Path) -> list[Record]:
    """All records of a peer: those of its trace, and those only on its page, if it runs or was killed.

    Raises:
        OSError: the trace cannot be read.
        RemoteProtocolError: the trace is of another version.
    """
    _, records = read_trace(trace)
    known = {(record.time_ns, record.number, record.kind): record for record in records}
    with suppress(OSError, RemoteProtocolError):
        known |= {(record.time_ns, record.number, record.kind): record for record in read_page(page).records}
    return sorted(known.values(), key=attrgetter("time_ns"))
