"""Pages and snapshots of peers that have nothing else."""

import itertools
import os
from pathlib import Path
from typing import Any

from p2p.host.processes import process_start, read_host
from p2p.telemetry.page import Page
from p2p.telemetry.records import _RECORD, Record, peer_number
from p2p.telemetry.snapshot import Identity, Snapshot
from tests.p2p.launch.standings import standing

A, B = "a" * 16, "b" * 16


def identity(peer_id: str = A, **changes: Any) -> Identity:
    values = {"swarm": "pond", "name": "0", "pid": 1, "process_start": 1, "host": "f" * 16, "script": "train.py"}
    return Identity(peer_id=peer_id, **{**values, "joined_ns": 10**9, "wall_ns": 10**18, **changes})


def of_this_process() -> dict[str, Any]:
    """The fields of an identity for this process."""
    return {"pid": os.getpid(), "process_start": process_start(os.getpid()), "host": read_host()}


def page(folder: Path, who: Identity) -> Page:
    """A page whose clock advances by a millisecond per reading."""
    return Page(folder, who, itertools.count(10**9, 10**6).__next__)


def snapshot(who: Identity, **changes: Any) -> Snapshot:
    from dataclasses import replace

    return replace(standing(), identity=who, **changes)


def pack_record(record: Record) -> bytes:
    """A record's bytes in a half of a page, and in a trace."""
    *values, peer_id, value = record
    return _RECORD.pack(*values, peer_number(peer_id) if peer_id else 0, value, record.number)
