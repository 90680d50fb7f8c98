"""Neighbours: the peers that this one is linked to, and the state of their processes. Belongs to the loop.

Death is known by proof or by evidence. Proof is the kernel's word: a handle of the process (pidfd), opened before the
process was compared with the peer's description of itself, becomes readable when the process ends; a peer that waits
for a member checks earlier, by the flags of its threads (host/exiting.py). Then its acceptor record, opened while it
lived, tells what it promised and accepted. Evidence: its link was lost, and reopening it was refused; or data do not
reach it (stalls.py).
"""

import logging
import os
import select
from collections.abc import Iterable, Mapping, Sequence

from gossip import Claim, Contact, Core, Member, State
from gossip.effects import Effect
from gossip.messages import AcceptorRecord

from ..host.acceptor_page import NOTHING, RecordReader
from ..host.entry import Entry
from ..host.exiting import Threads
from ..host.files import is_near_fd_limit
from ..host.processes import process_start
from ..host.registry import Registry
from ..net.frames import RECORD_CODEC
from ..net.transport import Transport
from .stalls import Stalls

logger = logging.getLogger("p2p")

REFUSED = "its link was lost, and a new one refused"
RETRY_S = 0.5
MADE_ROOM = "too many files are open, and others wait for a link"
LINKS_FOR_ONE = 2
"""Links to lost peers closed for one new link: they have no connections, so each frees fewer files than a live link
needs."""


def claim_of(entry: Entry) -> Claim:
    """An entry of the registry as a claim."""
    contact = Contact(
        entry.control_address,
        entry.data_address,
        entry.pid,
        entry.process_start,
        entry.host,
        entry.remote_control_address,
        entry.remote_data_address,
    )
    return Claim(Member(entry.peer_id, entry.incarnation), State.ALIVE, contact)


class Neighbours:
    """Links, process handles and acceptor records of all peers that are believed alive."""

    def __init__(self, transport: Transport, registry: Registry) -> None:
        self._transport = transport
        self.stalls = Stalls(transport)
        self._registry = registry
        self._linked: dict[str, Member] = {}
        self._unlinked: dict[str, tuple[Claim, str]] = {}
        self._retry_at = 0.0
        self._processes: dict[int, Member] = {}
        self._threads: dict[Member, Threads] = {}
        self._records: dict[Member, RecordReader] = {}

    def link(self, claim: Claim) -> str:
        """Connect to a peer and watch its process.

        Returns:
            The reason why it is dead; empty: it is not known to be.
        """
        is_here = claim.contact.host == self._registry.host
        if why := self._connect(claim):
            logger.warning("peer %s cannot be reached: %s; this peer keeps trying", claim.member, why)
        return self._watch(claim.member, claim.contact) if is_here else ""  # on another host its pid means nothing

    def _connect(self, claim: Claim) -> str:
        """Open a link; returns why that failed, or "". A peer without a link (too few files, say) is remembered."""
        member = claim.member
        try:
            self._transport.connect(member.peer_id, *self._addresses(member, claim.contact))
        except ValueError as error:
            self._unlinked[member.peer_id] = claim, str(error)
            return str(error)
        self._unlinked.pop(member.peer_id, None)
        self._linked[member.peer_id] = member
        return ""

    def _addresses(self, member: Member, contact: Contact) -> tuple[str, str]:
        """The sockets in our registry folder, if present: a peer of this host may use another one, out of our reach."""
        is_here = contact.host == self._registry.host
        if is_here and (self._registry.knows(member.peer_id) or not contact.remote_control):
            return contact.control, contact.data
        if not contact.remote_control:
            raise ValueError("it is on another host and listens only there: start it with --bind or --seeds")
        return contact.remote_control, contact.remote_data

    def _watch(self, member: Member, contact: Contact) -> str:
        try:
            fd = os.pidfd_open(contact.pid)
        except ProcessLookupError:
            return f"there is no process {contact.pid}"
        except (OSError, OverflowError) as error:  # no valid pid, or no handle left: its link must tell
            logger.warning("the process of peer %s cannot be watched: %s", member, error)
            return ""
        self._open_record(member)  # counts only if the writer is still alive afterwards
        try:
            start = process_start(contact.pid)
        except OSError as error:
            logger.warning("the process of peer %s cannot be watched: %s", member, error)
            os.close(fd)
            return ""
        if start is None and not _has_ended(fd):  # /proc, mounted with hidepid, does not show it to this user
            logger.warning("the process of peer %s cannot be watched: /proc hides process %d", member, contact.pid)
            os.close(fd)
            return ""
        if start != contact.process_start:
            os.close(fd)
            return f"process {contact.pid} is now another one"
        self._processes[fd] = member
        self._transport.watch(fd)
        if (threads := Threads.open(contact.pid, contact.process_start)) is not None:
            self._threads[member] = threads
        return ""

    def exiting(self, members: Sequence[Member]) -> list[Member]:
        """Those whose processes run no more code, although they have not ended yet; of this host only."""
        return [each for each in members if (threads := self._threads.get(each)) is not None and threads.are_exiting()]

    def is_watched(self, member: Member) -> bool:
        """Whether the process of `member` was found on this host and is alive."""
        return member in self._processes.values()

    def open_records(self, members: Sequence[Member]) -> None:
        """Retry for members without a record; discarded if the process may have ended meanwhile."""
        watched = {member: fd for fd, member in self._processes.items()}
        for member in members:
            if member in watched and member not in self._records:
                self._open_record(member)
                if _has_ended(watched[member]) and member in self._records:
                    self._records.pop(member).close()

    def _open_record(self, member: Member) -> None:
        if not self._registry.knows(member.peer_id):
            return  # a peer of this host with another registry folder
        record = RecordReader.open(self._registry.folder, member, RECORD_CODEC.decode)
        if record is not None:
            self._records[member] = record

    def record_of(self, member: Member) -> AcceptorRecord | None:
        """The acceptor record of `member`, whose process has ended; None if it cannot be read."""
        reader = self._records.get(member)
        if reader is None:
            return None
        record = reader.read()
        if record is None and reader.why != NOTHING:
            logger.warning("the acceptor record of peer %s cannot be read: %s", member, reader.why)
        return record

    def part(self, members: Iterable[Member]) -> None:
        """Stop sending data to members without a seat, which may not know yet: unsent data never reach them (R11)."""
        self._transport.stop_data([each.peer_id for each in members if self._linked.get(each.peer_id) == each])

    def unlink(self, member: Member) -> None:
        """Release all resources of `member`."""
        if member.peer_id in self._unlinked and self._unlinked[member.peer_id][0].member == member:
            del self._unlinked[member.peer_id]
        if self._linked.get(member.peer_id) == member:
            del self._linked[member.peer_id]
            self._transport.disconnect(member.peer_id)
        if (record := self._records.pop(member, None)) is not None:
            record.close()
        for fd in [fd for fd, watched in self._processes.items() if watched == member]:
            self._unwatch(fd)

    def ended(self, fds: tuple[int, ...]) -> list[Member]:
        """Members whose processes have ended, by these handles. Call this right after the wait.

        Later a handle may be closed, and its number reused.
        """
        members = [self._processes[fd] for fd in fds if fd in self._processes]
        for fd in fds:
            if fd in self._processes:
                self._unwatch(fd)
        return members

    def check_links(self, now: float, core: Core) -> list[Effect]:
        """Tell `core` which members answer, which refuse a link, and which have none. Call this at a slow cadence."""
        self._retry(now, core)
        self._transport.refuse_strangers()
        for peer_id in self._transport.broken_links():
            core.broke(now, self._linked[peer_id])
        for peer_id in self._transport.live_links():
            core.link_answered(now, self._linked[peer_id])
        refused = [self._linked[peer_id] for peer_id in self._transport.lost_links()]
        unopened = {self._linked[name]: why for name, why in self._transport.unopened_links().items()}
        unopened |= {claim.member: why for claim, why in self._unlinked.values()}
        effects = [effect for member in refused for effect in core.link_refused(now, member, REFUSED)]
        for member in self.stalls.undelivered(core.done + 1):
            core.undelivered(now, member)
        return [*effects, *core.unopened(now, unopened)]

    def _retry(self, now: float, core: Core) -> None:
        """Retry links that libzmq refused, or another process, or that waited for another link or for open files."""
        if now < self._retry_at:
            return
        self._retry_at = now + RETRY_S
        self._transport.retry_links()
        if not self._unlinked:
            return
        lost = {claim.member: claim for claim in core.claims() if claim.state is State.LOST}
        for claim, _ in sorted(self._unlinked.values(), key=lambda each: each[0].member in lost):
            if claim.member in lost and is_near_fd_limit():
                break
            if not self._connect(claim):
                logger.warning("peer %s can be reached now", claim.member)
        num_waiting = sum(claim.member not in lost for claim, _ in self._unlinked.values())
        if num_waiting and is_near_fd_limit():
            self._make_room(lost, LINKS_FOR_ONE * num_waiting)

    def _make_room(self, lost: Mapping[Member, Claim], most: int) -> None:
        """Close links to lost peers, at most `most`, the oldest first, and reopen them when there is room again.

        Otherwise each is kept for two minutes, since its peer may be behind a network partition, and return.
        """
        for member in [each for each in self._linked.values() if each in lost][:most]:
            del self._linked[member.peer_id]
            self._transport.disconnect(member.peer_id)
            self._unlinked[member.peer_id] = lost[member], MADE_ROOM
            logger.warning("the link to peer %s, which is lost, is closed: %s", member, MADE_ROOM)

    def close(self) -> None:
        for record in self._records.values():
            record.close()
        for fd in list(self._processes):
            self._unwatch(fd)

    def _unwatch(self, fd: int) -> None:
        self._transport.unwatch(fd)
        if (threads := self._threads.pop(self._processes.pop(fd), None)) is not None:
            threads.close()
        os.close(fd)


def _has_ended(process_fd: int) -> bool:
    """Whether the process of this handle has ended. Not by `select`, which accepts no number from 1024 on."""
    poll = select.poll()
    poll.register(process_fd, select.POLLIN)
    return bool(poll.poll(0))
