"""A peer's entry in the registry: which process it is, its addresses, and its role.

The role tells what its owner's death costs. A founder that died before any view was agreed took nothing along, so a
joiner may found in its place. A peer in an agreed view says "member"; when the last member is dead, so is the swarm's
state, and no joiner may pretend otherwise.
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
"""What a peer runs, by name: digest, and text for people."""


class Role(StrEnum):
    """What this peer is to the swarm; the module's docstring says what follows from it."""

    FOUNDER = "founder"
    JOINER = "joiner"
    MEMBER = "member"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What a peer says of itself in the registry.

    Attributes:
        incarnation: nanoseconds; with `peer_id` the identity of a member.
        process_start: clock ticks from boot to the start of `pid`; tells it from a later process with the
            same number.
        remote_control_address, remote_data_address: for peers of other hosts; empty: there are none.
        network: as in `tcp.TcpOptions`.
        script: file name of the script that it runs, or name of the module; empty: unknown.
        program: what it runs, as `pack_program` says it, for who starts others here; empty: unknown.
        held: where all members have died: the last step of theirs whose state this peer, which observed, could go on
            with; 0: none; -1: it has not said, or is not to.
        place: of this peer among those of `shoal run` on this host; -1: it was started in another way.
        host: who has the same sees the same processes under the same numbers; see `read_host`.
        monotonic_offset_ns, boottime_offset_ns: of its clocks, as in `processes.Offsets`.
        version: of the wire. Later versions may add fields here, and take none away, so that all can tell who lives.
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
        """Of its clocks."""
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
    """As text; empty if it is too long for an entry, so that only the protocol compares it."""
    values = {name: (digest.hex(), text) for name, (digest, text) in program.items()}
    packed = json.dumps([list(may_differ), values]) if program else ""
    return packed if len(packed) <= PROGRAM_MAX_BYTES else ""


def unpack_program(packed: str) -> tuple[ProgramTraits, tuple[str, ...]]:
    """What `pack_program` was given."""
    may_differ, values = json.loads(packed) if packed else ((), {})
    return {name: (bytes.fromhex(digest), text) for name, (digest, text) in values.items()}, tuple(may_differ)


def all_wait(entries: tuple[Entry, ...]) -> bool:
    """Whether nobody among `entries` has founded, or is a member of, anything."""
    return all(entry.role is Role.JOINER for entry in entries)


def state_lost(swarm: str, dead: Iterable[tuple[str, int]]) -> str:
    """What is said where nobody goes on after the death of all members, of which each has a peer_id and a pid."""
    lost = ", ".join(f"{peer_id} (pid {pid})" for peer_id, pid in dead)
    return (
        f"all members of swarm {swarm!r} are gone, and what they trained with them: {lost}; end the peers that wait, "
        "then start anew from step 0"
    )


def heir(waiting: Sequence[Entry]) -> Entry | None:
    """Who goes on where all members have died, of all who wait: whose state is the newest. None: not all have said."""
    if any(entry.held < 0 for entry in waiting):
        return None
    return min(waiting, key=lambda entry: (-entry.held, entry.incarnation, entry.peer_id))
