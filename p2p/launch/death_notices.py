"""The launcher's word of a death, for peers of other hosts (PROTOCOL.md, DIED).

On its own host the kernel tells everybody. Elsewhere nobody can know, but the launcher can say it: it is the parent, so
the kernel tells it too, and it outlives its peers. It looks whether their threads exit (host/exiting.py), which shows
long before a large process has ended. It finds out who the dead process was by its entry in the registry, reads what it
had promised and accepted, and tells every seat of the views in that record that is not of this folder; and all others
that the dead peer knew, by its page, since those without a seat have to know when nobody is left.

It also remembers which other hosts had members of the run, for who takes the place of the dead one (G15).

Leaves out: processes that the script started and that joined in its place, of whose end the launcher hears nothing.
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
"""So often it looks at the threads of its peers: 20 us for each."""


class DeathNotices:
    """What the launcher tells of its dead.

    Attributes:
        elsewhere: other hosts with members of the last view that a dead one knew, each with an address there.
    """

    def __init__(self, registry: Registry, config: TcpConfig | None, clock: Callable[[], float]) -> None:
        """Without a `config` there are no other hosts, and nothing happens. `clock`: monotonic seconds."""
        self.elsewhere: dict[str, str] = {}
        self._last: View | None = None
        self._registry = registry
        self._clock = clock
        self._one_way = None if config is None else OneWaySends(config, clock)
        self._living: dict[tuple[int, int | None], Threads] = {}
        self._told: set[tuple[int, int | None]] = set()
        self._look_at = math.inf

    @property
    def deadline(self) -> float:
        """When to `look`, by the clock; infinite if there is nobody to look at and nothing under way."""
        return math.inf if self._one_way is None else min(self._one_way.deadline, self._look_at)

    def watch(self, pid: int, process_start: int | None) -> None:
        """Look at this child from now on; `announce` it all the same when it has ended."""
        if self._one_way is None or process_start is None:
            return
        if (threads := Threads.open(pid, process_start)) is not None:
            self._living[pid, process_start] = threads
            self._look_at = self._clock() + LOOK_S

    def announce(self, pid: int, process_start: int | None) -> str:
        """Tell of the end of a child, which is not reaped yet, unless that was seen to come. Returns at once.

        Returns:
            What went wrong, if anything did.
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
            member = self._who_was(pid, process_start)
            record = None if member is None else self._last_record(member)
            if member is not None and record is not None:
                self._remember(record)
                frame = _CODEC.encode(Envelope(member, NO_VIEW, Died(record)))
                for peer_id, address in self._readers(member, record).items():
                    try:
                        self._one_way.send(address, peer_id, frame)
                    except ValueError as error:
                        failures.append(str(error))
        except (RegistryError, ValueError) as error:
            failures.append(str(error))
        if not failures:
            return ""
        return f"not all peers of other hosts are told of the end of process {pid}: {'; '.join(failures)}"

    def look(self) -> str:
        """Tell of children that are about to end; and what could not be delivered in time."""
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
        """Wait until everything is delivered, a few seconds at most; what could not be."""
        for threads in self._living.values():
            threads.close()
        self._living.clear()
        return "" if self._one_way is None else _unreached(self._one_way.close())

    def _who_was(self, pid: int, process_start: int | None) -> Member | None:
        """Who left no word of its own: it would have removed its entry."""
        process = self._registry.host, pid, process_start
        for entries in self._registry.read(apart_from=""):
            for entry in entries:
                if (entry.host, entry.pid, entry.process_start) == process:
                    return Member(entry.peer_id, entry.incarnation)
        return None

    def _last_record(self, member: Member) -> AcceptorRecord | None:
        """Raises ValueError if it cannot be read; without it the word would not help."""
        reader = RecordReader.open(self._registry.folder, member, RECORD_CODEC.decode)
        if reader is None:
            return None  # said already
        try:
            record = reader.read()
        finally:
            reader.close()
        if record is None:
            raise ValueError(f"the acceptor record of peer {member} cannot be read: {reader.why}")
        return record

    def _readers(self, member: Member, record: AcceptorRecord) -> dict[str, str]:
        """Addresses, by peer_id, of who has a seat beside `member`, also in the view that it voted for, and of others.

        Not of those who see its process end.
        """
        seats = {seat.member: seat.contact for view in _views(record) for seat in view.seats}
        told = {
            other.peer_id: contact.remote_control
            for other, contact in seats.items()
            if contact.remote_control
            and other != member
            and not (contact.host == self._registry.host and self._registry.knows(other.peer_id))
        }
        return {**self._acquaintances(member), **told}

    def _remember(self, record: AcceptorRecord) -> None:
        """Who has died before has not known a later view; who was in none says nothing of the run."""
        last = self._last
        if record.view is None or (
            last is not None and last.lineage == record.view.lineage and last.number > record.view.number
        ):
            return
        self._last, self.elsewhere = record.view, {}
        for contact in (seat.contact for view in _views(record) for seat in view.seats):
            if contact.host != self._registry.host:
                self.elsewhere.setdefault(contact.host, contact.seed)
            elif not contact.control.startswith(f"ipc://{self._registry.folder}/"):  # another folder of this machine
                self.elsewhere.setdefault("", contact.seed)

    def _acquaintances(self, member: Member) -> dict[str, str]:
        """As `member` has known them a second before, from its page."""
        snapshot = None
        with suppress(OSError, RegistryError, RemoteProtocolError):  # there is no page, or none that can be read
            snapshot = read_page(page_path(self._registry.folder, member.peer_id)).snapshot
        others = () if snapshot is None else snapshot.others
        return {
            each.peer_id: each.address for each in others if each.address and not self._registry.knows(each.peer_id)
        }


def _views(record: AcceptorRecord) -> list[View]:
    """In which the peer had a seat, or voted to have one."""
    views = [record.view, None if record.vote is None else record.vote.view]
    return [view for view in views if view is not None]


def _unreached(addresses: list[str]) -> str:
    if not addresses:
        return ""
    return f"could not tell {', '.join(addresses)} of a death here: whoever is there may wait for the dead peer"
