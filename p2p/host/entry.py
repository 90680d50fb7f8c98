"""A peer's entry in the registry: its process, addresses and role.

The role tells what the peer's death costs. If a founder dies before any view is agreed, no state is lost, and a joiner
may found in its place. A peer in an agreed view has the role "member"; when the last member dies, the swarm's state is
lost, and no joiner may found in its place.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Final

from ..version import VERSION
from .processes import Offsets

HEX_NAME: Final = re.compile(r"[0-9a-f]{16}")
ENTRY_MAX_BYTES: Final = 16 * 1024
PROGRAM_MAX_BYTES: Final = 4 * 1024

ProgramTraits = Mapping[str, tuple[bytes, str]]
"""Traits of a peer's program by name: a digest, and a text for messages."""


class Role(StrEnum):
    """The role of a peer in the swarm; for its meaning see the module."""

    FOUNDER = "founder"
    JOINER = "joiner"
    MEMBER = "member"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The entry of one peer.

    Attributes:
        incarnation: nanoseconds; with `peer_id` the identity of a member.
        process_start: clock ticks from boot to the start of `pid`; distinguishes the process from a later one with
            the same pid.
        remote_control_address, remote_data_address: for peers of other hosts; empty: none.
        network: as in `tcp.TcpOptions`.
        script: file name of the script that it runs, or name of the module; empty: unknown.
        program: the traits of its program, in the format of `pack_program`, for launchers; empty: unknown.
        held: after the death of all members: the last of their steps whose state this peer, an observer, could
            continue from; 0: none; -1: not declared, or not allowed.
        place: index of this peer among those of `shoal run` on this host; -1: it was started in another way.
        host: peers with equal values see the same processes under the same pids; see `read_host`.
        monotonic_offset_ns, boottime_offset_ns: of its clocks, as in `processes.Offsets`.
        version: of the wire. Later versions may add fields but remove none, so that any version can tell which peers
            live.
    """

    swarm: str
    peer_id: str
    incarnation: int
    role: Role
    control_address: str
    data_address: str
    pid: int
    process_start: int
    host: str
    remote_control_address: str = ""
    remote_data_address: str = ""
    network: str = "lan"
    version: int = VERSION
    script: str = ""
    program: str = ""
    place: int = -1
    held: int = -1
    monotonic_offset_ns: int = 0
    boottime_offset_ns: int = 0

    @property
    def offsets(self) -> Offsets:
        """The offsets of its clocks."""
        return Offsets(self.monotonic_offset_ns, self.boottime_offset_ns)


FIELD_TYPES: Final = {field.name: str if field.type is Role else field.type for field in fields(Entry)}


def parse_entry(text: bytes) -> Entry:
    """Read one entry, of any version. Raises ValueError for anything else, saying what is wrong."""
    try:
        values = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if isinstance(values, dict) and values.setdefault("version", 1) != VERSION:  # version 1 did not say so
        values = {name: value for name, value in values.items() if name in FIELD_TYPES}
    if not isinstance(values, dict) or values.keys() != FIELD_TYPES.keys():
        raise ValueError(f"the fields must be {', '.join(FIELD_TYPES)}")
    for name, kind in FIELD_TYPES.items():
        if type(values[name]) is not kind:
            raise ValueError(f"{name} is {values[name]!r}")
    return Entry(**{**values, "role": Role(values["role"])})


def pack_program(program: ProgramTraits, may_differ: Sequence[str]) -> str:
    """The traits as text; empty if too long for an entry: then only the protocol compares them."""
    values = {name: (digest.hex(), text) for name, (digest, text) in program.items()}
    packed = json.dumps([list(may_differ), values]) if program else ""
    return packed if len(packed) <= PROGRAM_MAX_BYTES else ""


def unpack_program(packed: str) -> tuple[ProgramTraits, tuple[str, ...]]:
    """The inverse of `pack_program`."""
    may_differ, values = json.loads(packed) if packed else ((), {})
    return {name: (bytes.fromhex(digest), text) for name, (digest, text) in values.items()}, tuple(may_differ)


def all_wait(entries: tuple[Entry, ...]) -> bool:
    """Whether all `entries` are of joiners."""
    return all(entry.role is Role.JOINER for entry in entries)


def state_lost(swarm: str, dead: Iterable[tuple[str, int]]) -> str:
    """The error message after the death of all members, given as (peer_id, pid), if no peer can continue."""
    lost = ", ".join(f"{peer_id} (pid {pid})" for peer_id, pid in dead)
    return (
        f"all members of swarm {swarm!r} are gone, and what they trained with them: {lost}; end the peers that wait, "
        "then start anew from step 0"
    )


def heir(waiting: Sequence[Entry]) -> Entry | None:
    """The waiting peer that continues after the death of all members: the one with the newest state.

    None: not all have declared theirs.
    """
    if any(entry.held < 0 for entry in waiting):
        return None
    return min(waiting, key=lambda entry: (-entry.held, entry.incarnation, entry.peer_id))
