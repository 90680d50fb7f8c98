"""The launcher's notices of a death, for peers of other hosts (PROTOCOL.md, DIED).

On the same host the kernel notifies all peers of a death. Peers of other hosts cannot detect it, so the launcher
notifies them: as the parent it learns of the death from the kernel, and it outlives its peers. It polls whether their
threads exit (host/exiting.py), which shows long before a large process has ended. It identifies the dead peer by its
entry in the registry, reads its acceptor record, and notifies every seat of the views in that record that is not of
this folder. It also notifies all other peers that the dead peer knew, by its page, since peers without a seat must
learn when no member is left.

It remembers which other hosts had members of the run, for the peer that replaces the dead one (G15).

Leaves out: processes that the script started and that joined in its place; the launcher does not learn of their end.
"""

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from gossip import NO_VIEW, Envelope, Member, View
from gossip.messages import AcceptorRecord, Died

from ..errors import RegistryError, RemoteProtocolError
from ..host.acceptor_page import RecordReader
from ..host.exiting import Threads
from ..host.registry import Registry
from ..net.frames import RECORD_CODEC
from ..net.one_way import OneWaySends
from ..net.tcp import TcpConfig
from ..net.wire import Codec
from ..telemetry.page import page_path, read_page

_CODEC = Codec([Envelope])

LOOK_S: Final = 0.02
"""Interval of polling the threads of the peers, which takes 20 us each."""


class DeathNotices:
    """Sends notices of the deaths of a launcher's peers.

    Attributes:
        remote_hosts: other hosts with members of the latest view that a dead peer knew, each with an address there.
    """

    def __init__(self, registry: Registry, config: TcpConfig | None, clock: Callable[[], float]) -> None:
        """Without a `config` there are no other hosts, and all methods are no-ops. `clock`: monotonic seconds."""
        self.remote_hosts: dict[str, str] = {}
        self._last: View | None = None
        self._registry = registry
        self._clock = clock
        self._one_way = None if config is None else OneWaySends(config, clock)
        self._living: dict[tuple[int, int | None], Threads] = {}
        self._told: set[tuple[int, int | None]] = set()
        self._look_at = math.inf

    @property
    def deadline(self) -> float:
        """When to `poll`, by the clock; infinite if no child is watched and no send is in flight."""
        return math.inf if self._one_way is None else min(self._one_way.deadline, self._look_at)

    def watch(self, pid: int, process_start: int | None) -> None:
        """Poll this child from now on; `announce` must still be called when it has ended."""
        if self._one_way is None or process_start is None:
            return
        if (threads := Threads.open(pid, process_start)) is not None:
            self._living[pid, process_start] = threads
            self._look_at = self._clock() + LOOK_S

    def announce(self, pid: int, process_start: int | None) -> str:
        """Send notices of the end of a child that is not reaped yet, unless `poll` has sent them. Does not wait.

        Returns:
            What went wrong; empty: nothing.
        """
        if (threads := self._living.pop((pid, process_start), None)) is not None:
            threads.close()
        if (pid, process_start) in self._told:
            self._told.remove((pid, process_start))
            return ""
        return self._tell(pid, process_start)

    def _tell(self, pid: int, process_start: int | None) -> str:
        if self._one_way is None:
            return ""
        failures: list[str] = []
        try:
            member = self._find_member(pid, process_start)
            record = None if member is None else self._last_record(member)
            if member is not None and record is not None:
                self._remember(record)
                frame = _CODEC.encode(Envelope(member, NO_VIEW, Died(record)))
                for peer_id, address in self._recipients(member, record).items():
                    try:
                        self._one_way.send(address, peer_id, frame)
                    except ValueError as error:
                        failures.append(str(error))
        except (RegistryError, ValueError) as error:
            failures.append(str(error))
        if not failures:
            return ""
        return f"could not tell all peers of other hosts that process {pid} ended: {'; '.join(failures)}"

    def poll(self) -> str:
        """Send notices of children that are about to end. Returns what went wrong, or was not delivered in time."""
        if self._one_way is None:
            return ""
        told = []
        if (now := self._clock()) >= self._look_at:
            exiting = [child for child, threads in self._living.items() if threads.are_exiting()]
            for child in exiting:
                self._living.pop(child).close()
            self._told.update(exiting)
            told = [self._tell(*child) for child in exiting]
            self._look_at = now + LOOK_S if self._living else math.inf
        return "; ".join(filter(None, (*told, _unreached(self._one_way.look()))))

    def close(self) -> str:
        """Wait until all notices are delivered, a few seconds at most. Returns what was not."""
        for threads in self._living.values():
            threads.close()
        self._living.clear()
        return "" if self._one_way is None else _unreached(self._one_way.close())

    def _find_member(self, pid: int, process_start: int | None) -> Member | None:
        """The member whose process this was; None: it never joined, or has left, which removes its entry."""
        process = self._registry.host, pid, process_start
        for entries in self._registry.read(apart_from=""):
            for entry in entries:
                if (entry.host, entry.pid, entry.process_start) == process:
                    return Member(entry.peer_id, entry.incarnation)
        return None

    def _last_record(self, member: Member) -> AcceptorRecord | None:
        """The acceptor record of `member`; None: its page cannot be opened, and the log says why.

        Raises:
            ValueError: the record cannot be read; a notice without it would not help.
        """
        reader = RecordReader.open(self._registry.folder, member, RECORD_CODEC.decode)
        if reader is None:
            return None  # logged already
        try:
            record = reader.read()
        finally:
            reader.close()
        if record is None:
            raise ValueError(f"the acceptor record of peer {member} cannot be read: {reader.why}")
        return record

    def _recipients(self, member: Member, record: AcceptorRecord) -> dict[str, str]:
        """Addresses of the peers to notify, by peer_id.

        These are the other seats in the member's view and in the view it voted for, and other peers that it knew.
        Peers of this host and folder are left out: the kernel notifies them.
        """
        seats = {seat.member: seat.contact for view in _views(record) for seat in view.seats}
        told = {
            other.peer_id: contact.remote_control
            for other, contact in seats.items()
            if contact.remote_control
            and other != member
            and not (contact.host == self._registry.host and self._registry.knows(other.peer_id))
        }
        return {**self._known_peers(member), **told}

    def _remember(self, record: AcceptorRecord) -> None:
        """Update `remote_hosts` from the record, unless it has no view, or an older view than an earlier record."""
        last = self._last
        if record.view is None or (
            last is not None and last.lineage == record.view.lineage and last.number > record.view.number
        ):
            return
        self._last, self.remote_hosts = record.view, {}
        for contact in (seat.contact for view in _views(record) for seat in view.seats):
            if contact.host != self._registry.host:
                self.remote_hosts.setdefault(contact.host, contact.seed)
            elif not contact.control.startswith(f"ipc://{self._registry.folder}/"):  # another folder of this machine
                self.remote_hosts.setdefault("", contact.seed)

    def _known_peers(self, member: Member) -> dict[str, str]:
        """Addresses of the peers that `member` knew, from its page, which may be a second old."""
        snapshot = None
        with suppress(OSError, RegistryError, RemoteProtocolError):  # no page, or an unreadable one
            snapshot = read_page(page_path(self._registry.folder, member.peer_id)).snapshot
        others = () if snapshot is None else snapshot.others
        return {
            each.peer_id: each.address for each in others if each.address and not self._registry.knows(each.peer_id)
        }


def _views(record: AcceptorRecord) -> list[View]:
    """The view of the record, and the one that the peer voted for."""
    views = [record.view, None if record.vote is None else record.vote.view]
    return [view for view in views if view is not None]


def _unreached(addresses: list[str]) -> str:
    if not addresses:
        return ""
    return f"could not tell {', '.join(addresses)} of a death here: peers there may wait for the dead peer"
