"""What a peer opens before it runs, in an order that leaves nothing behind where something cannot be opened."""

import secrets
from contextlib import ExitStack
from dataclasses import dataclass

from gossip import Member

from .commons import Commons
from .config import LoopConfig
from .discovery import Entry, Registry
from .gate import Gate
from .records import RecordPage
from .transport import Transport


@dataclass(frozen=True, slots=True)
class Entrance:
    """All that is open, and who is here already."""

    own: Entry
    others: tuple[Entry, ...]
    commons: Commons
    page: RecordPage
    transport: Transport


def enter(registry: Registry, config: LoopConfig, now_ns: int, former: Entrance | None = None) -> Entrance:
    """Make the arena, listen to other hosts, enter the registry, make the acceptor record's page, listen to this host.

    Args:
        registry: of the swarm.
        config: settings.
        now_ns: the time of day, which becomes the incarnation.
        former: of the same peer, which comes back: it keeps its name and its arena, where tensors of the script may be.

    Raises:
        NetworkError, SecurityError: this peer cannot listen to other hosts, or strangers could get in.
        RegistryError, OSError: what belongs to this host cannot be opened.
    """
    peer_id = secrets.token_hex(8) if former is None else former.own.peer_id
    incarnation = now_ns if former is None else max(now_ns, former.own.incarnation + 1)  # a clock may be set back
    with ExitStack() as undo:
        # Others may look for the arena as soon as they see the entry.
        commons = Commons(peer_id, config.arena_bytes) if former is None else former.commons
        undo.callback(commons.close)
        gate = None if config.tcp is None else Gate(config.tcp, peer_id)
        remote = ("", "")
        if gate is not None:
            undo.callback(gate.close)
            remote = gate.control_address, gate.data_address
        has_seeds = config.tcp is not None and bool(config.tcp.seeds)
        network = "lan" if config.tcp is None else config.tcp.network
        standing = registry.enter(peer_id, incarnation, remote=remote, network=network, founds=not has_seeds)
        undo.callback(registry.leave)
        own = standing.own
        page = RecordPage(registry.folder, Member(own.peer_id, own.incarnation))
        undo.callback(page.remove)
        transport = Transport(own.control_address, own.data_address, gate)
        undo.pop_all()
    return Entrance(own, standing.others, commons, page, transport)
