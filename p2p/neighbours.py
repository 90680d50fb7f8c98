"""The peers that this one is linked to, and what the kernel says of their processes. Belongs to the loop.

Death is known in two ways. The kernel's word: a handle of the process (pidfd), opened before the process was compared
with what the peer said of itself, becomes readable when the process ends. Evidence: its link was lost, and opening it
again was refused.
"""

import logging
import os
from collections.abc import Iterator, Sequence

from gossip import Claim, Contact, Member, State

from .discovery import Entry, Registry, process_start
from .transport import Transport

logger = logging.getLogger("p2p")


def claim_of(entry: Entry) -> Claim:
    """What an entry of the registry says, as a claim."""
    contact = Contact(entry.control_address, entry.data_address, entry.pid, entry.process_start)
    return Claim(Member(entry.peer_id, entry.incarnation), State.ALIVE, contact)


class Neighbours:
    """Links and process handles of all peers that are known to be alive."""

    def __init__(self, me: Member, transport: Transport, registry: Registry) -> None:
        self._transport = transport
        self._registry = registry
        self._linked: dict[str, Member] = {}
        self._met = {me}
        self._processes: dict[int, Member] = {}

    def link(self, claim: Claim) -> str:
        """Connect to a peer and watch its process.

        Returns:
            Why it is not alive, if it is not.
        """
        member, contact = claim.member, claim.contact
        try:
            self._transport.connect(member.peer_id, contact.control, contact.data)
        except ValueError as error:
            logger.warning("peer %s cannot be reached: %s", member, error)
            return ""
        self._linked[member.peer_id] = member
        self._met.add(member)
        return self._watch(member, contact)

    def _watch(self, member: Member, contact: Contact) -> str:
        try:
            fd = os.pidfd_open(contact.pid)
        except ProcessLookupError:
            return f"there is no process {contact.pid}"
        except (OSError, OverflowError) as error:  # no pid at all, or no handle left: its link will have to tell
            logger.warning("the process of peer %s cannot be watched: %s", member, error)
            return ""
        if process_start(contact.pid) != contact.process_start:
            os.close(fd)
            return f"process {contact.pid} is another one by now"
        self._processes[fd] = member
        self._transport.watch(fd)
        return ""

    def strangers(self, members: Sequence[Member]) -> list[tuple[Member, Claim | None]]:
        """Those of `members` that this peer never linked to, and what the registry knows of them, if they live.

        Whoever knew them may have died before it could tell.
        """
        strangers = [member for member in members if member not in self._met]
        living = {claim.member: claim for claim in map(claim_of, self._registry.others())} if strangers else {}
        return [(member, living.get(member)) for member in strangers]

    def unlink(self, member: Member) -> None:
        """Close everything that belongs to `member`."""
        if self._linked.get(member.peer_id) == member:
            del self._linked[member.peer_id]
            self._transport.disconnect(member.peer_id)
        for fd in [fd for fd, watched in self._processes.items() if watched == member]:
            self._unwatch(fd)

    def ended(self, fds: tuple[int, ...]) -> Iterator[tuple[Member, str]]:
        """Whose processes have ended, of these handles, and how that is known. At once after the wait.

        Later a handle may be closed, and its number given to another.
        """
        for fd in fds:
            member = self._processes.get(fd)
            if member is not None:
                self._unwatch(fd)
                yield member, "its process has ended"

    def lost(self) -> Iterator[tuple[Member, str]]:
        """Whose links are lost, and how that is known. For a slow cadence."""
        for peer_id in self._transport.lost_links():
            yield self._linked[peer_id], "its link was lost, and a new one refused"

    def close(self) -> None:
        for fd in list(self._processes):
            self._unwatch(fd)

    def _unwatch(self, fd: int) -> None:
        self._transport.unwatch(fd)
        del self._processes[fd]
        os.close(fd)
