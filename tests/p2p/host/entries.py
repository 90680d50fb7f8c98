"""A registry of the swarm `pond`, and the entries that dead peers leave in it."""

import json
import os
from dataclasses import asdict, replace
from pathlib import Path

from p2p.host.entry import Entry, Role, parse_entry
from p2p.host.registry import Registry


def registry(home: Path) -> Registry:
    return Registry(home, "pond", lock_timeout_s=5.0)


def socket_paths(entry: Entry) -> list[Path]:
    return [Path(address.removeprefix("ipc://")) for address in (entry.control_address, entry.data_address)]


def enter_and_die(home: Path, peer_id: str, incarnation: int, *, role: Role | None = None) -> Entry:
    """Leave the files of a killed peer: its entry, with the given role, and its sockets."""
    one = registry(home)
    path = one.folder / f"{peer_id}.json"
    child = os.fork()
    if child == 0:
        try:
            for socket in socket_paths(one.enter(peer_id, incarnation).own):
                socket.touch()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    entry = parse_entry(path.read_bytes())
    dead = replace(entry, role=role or entry.role)
    path.write_text(json.dumps(asdict(dead)))
    return dead
