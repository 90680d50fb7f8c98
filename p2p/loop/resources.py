"""Resources that a peer opens before it runs, all of which are released again if one of them cannot be opened."""

import secrets
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from gossip import Member

from ..config import LoopConfig
from ..errors import RegistryError
from ..host.acceptor_page import RecordPage
from ..host.entry import Entry, unpack_program
from ..host.files import why_too_few_files
from ..host.git_commit import git_commit_of
from ..host.naming import SCRIPT, this_program
from ..host.registry import Registry
from ..memory.host_memory import HostMemory
from ..net.frames import RECORD_CODEC
from ..net.listener import TcpListeners
from ..net.transport import Transport
from ..telemetry.page import Page
from ..telemetry.snapshot import MOST_ARGUMENTS, SHORT, Identity


@dataclass(frozen=True, slots=True)
class Resources:
    """All open resources, and the entries of other peers here. `telemetry_page`: of all incarnations of this peer."""

    registry: Registry
    own: Entry
    others: tuple[Entry, ...]
    host_memory: HostMemory
    record_page: RecordPage
    telemetry_page: Page
    transport: Transport

    def release(self, *, keeps_memory: bool) -> None:
        """Close all, even if one part raises; the exception is raised at the end.

        Args:
            keeps_memory: keep the arena and the page, for the next incarnation of this peer.
        """
        with ExitStack() as last_first:
            if not keeps_memory:
                last_first.callback(self.host_memory.close)
                last_first.callback(self.telemetry_page.remove)
            last_first.callback(self.host_memory.vacate)
            last_first.callback(self.record_page.remove)
            last_first.callback(self.record_page.close)
            last_first.callback(self.registry.leave)
            last_first.callback(self.transport.close)


def acquire(
    registry: Registry, config: LoopConfig, now_ns: int, clock_ns: Callable[[], int], former: Resources | None = None
) -> Resources:
    """Create the arena, listen for other hosts, enter the registry, create both pages, listen for this host.

    Args:
        registry: of the swarm.
        config: settings.
        now_ns: the time of day, which becomes the incarnation.
        clock_ns: the monotonic clock.
        former: of the same peer, which returns: it keeps its name and its arena, which may hold tensors of the script.

    Raises:
        NetworkError, SecurityError: this peer cannot listen for other hosts, or strangers could connect.
        RegistryError, OSError: a resource of this host cannot be opened.
    """
    peer_id = secrets.token_hex(8) if former is None else former.own.peer_id
    incarnation = now_ns if former is None else max(now_ns, former.own.incarnation + 1)  # a clock may be set back
    with ExitStack() as undo:
        # Others may open the arena as soon as they see the entry.
        host_memory = _host_memory(peer_id, config) if former is None else former.host_memory
        undo.callback(host_memory.close)
        if former is not None:
            undo.callback(former.telemetry_page.remove)
        listeners = None if config.tcp is None else TcpListeners(config.tcp, peer_id)
        remote = ("", "")
        if listeners is not None:
            undo.callback(listeners.close)
            remote = listeners.control_address, listeners.data_address
        has_seeds = config.tcp is not None and bool(config.tcp.seeds)
        network = "lan" if config.tcp is None else config.tcp.network
        founds = config.may_found and not has_seeds
        standing = registry.enter(peer_id, incarnation, remote=remote, network=network, founds=founds)
        undo.callback(registry.leave)
        own = standing.own
        if former is None and (why := why_too_few_files(len(standing.others) + 1, has_tcp=False)):
            raise RegistryError(f"this peer cannot join the {len(standing.others)} here: {why}")
        page = RecordPage(registry.folder, Member(own.peer_id, own.incarnation), RECORD_CODEC.encode)
        undo.callback(page.close)
        undo.callback(page.remove)
        seen = Page(registry.folder, _identity(own, clock_ns()), clock_ns) if former is None else former.telemetry_page
        undo.callback(seen.remove)
        transport = Transport(own.control_address, own.data_address, listeners, lambda: clock_ns() * 1e-9)
        undo.pop_all()
    return Resources(registry, own, standing.others, host_memory, page, seen, transport)


def _host_memory(peer_id: str, config: LoopConfig) -> HostMemory:
    extents = config.extent_bytes
    return HostMemory(peer_id, config.arena_bytes, extent_bytes=extents, device_adds=config.device_adds)


def _identity(own: Entry, joined_ns: int) -> Identity:
    traits, _ = unpack_program(own.program)
    program = this_program()
    return Identity(
        peer_id=own.peer_id,
        swarm=own.swarm,
        name=str(own.place) if own.place >= 0 else own.peer_id[:SHORT],
        pid=own.pid,
        process_start=own.process_start,
        host=own.host,
        script=own.script,
        joined_ns=joined_ns,
        wall_ns=own.incarnation,
        monotonic_offset_ns=own.monotonic_offset_ns,
        boottime_offset_ns=own.boottime_offset_ns,
        arguments=" ".join(text for name, (_, text) in traits.items() if name != SCRIPT)[:MOST_ARGUMENTS],
        commit="" if program is None or not program.file else git_commit_of(Path(program.file)),
    )
