"""A registry of the swarm `pond`, and what the dead leave in it."""

import json
from dataclasses import asdict, replace
from pathlib import Path

from p2p.host.entry import Entry, Role
from p2p.host.registry import Registry


def registry(home: Path) -> Registry:
    return Registry(home, "pond", lock_timeout_s=5.0)


def socket_paths(entry: Entry) -> list[Path]:
    return [Path(address.removeprefix("ipc://")) for address in (entry.control_address, entry.data_address)]


def enter_and_die(home: Path, peer_id: str, incarnation: int, *, role: Role | None = None) -> Entry:
    """Leave what a killed peer leaves: its entry, with the given role, and its socket files."""
    one = registry(home)
    entry = one.enter(peer_id, incarnation).own
    for path in socket_paths(entry):
        path.touch()
    # No process is older than the boot, so this one has never run.
    dead = replace(entry, role=role or entry.role, process_start=entry.process_start + 1)
    (one.folder / f"{peer_id}.json").write_text(json.dumps(asdict(dead)))
    return dead
