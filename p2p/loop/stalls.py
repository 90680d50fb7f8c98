"""Stalls: data frames are lost repeatedly while control shows all members alive, so that each attempt at a step stalls.

A firewall that forgets a connection drops its packets silently, which the kernel detects in some seconds
(`limit_silence` of net/links.py); a proxy may continue to acknowledge them. Both let a new connection pass. A path that
loses large packets (RFC 2923, section 2.1) drops them on a new connection, too: evidence against the member behind it
(G16).
"""

import logging
from collections.abc import Iterable
from typing import Final

from gossip import Member
from gossip.progress import NOTHING_DONE

from ..net.transport import Transport

logger = logging.getLogger("p2p")

_PATIENCE: Final = 2
"""After this many stalled attempts at a step in a row, data connections are reopened before each further one; if that
to a peer breaks in as many further attempts in a row, data do not reach the peer."""


class Stalls:
    """Stalled attempts at the open step of one peer."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._step, self._number = NOTHING_DONE, 0
        self._num_broken: dict[Member, int] = {}
        self._num_vain: dict[Member, int] = {}

    def redone(self, step: int, members: Iterable[Member]) -> None:
        """Record that `step` has stalled and is redone in another view: data sent to these members are obsolete."""
        is_again = step == self._step
        self._step, self._number = step, self._number + 1 if is_again else 1
        numbers = {member: self._transport.num_broken(member.peer_id) for member in members}
        before, self._num_broken = self._num_broken, {each: n for each, n in numbers.items() if n is not None}
        broke = [member for member, number in self._num_broken.items() if number > before.get(member, number)]
        self._num_vain = {member: self._num_vain.get(member, 0) + 1 for member in broke if is_again}
        if self._number < _PATIENCE or not self._num_broken:
            return
        self._transport.reopen_data(member.peer_id for member in self._num_broken)
        if self._number == _PATIENCE:
            logger.warning(
                "step %d has stalled twice: data sent to peers of other hosts did not arrive, though all answer; data "
                "connections are reopened. Does a proxy, a NAT or a firewall between hosts silently drop some of "
                "them, or does the path between them drop large packets (net.ipv4.tcp_mtu_probing=2)?",
                step,
            )
        for member in [member for member, number in self._num_vain.items() if number == _PATIENCE]:
            logger.warning(
                "peer %s answers, but new data connections to it break, one after the other: what is sent is not "
                "acknowledged. The path there seems to lose large packets (net.ipv4.tcp_mtu_probing=2, or a smaller "
                "MTU at both ends, may help). A peer that most others cannot reach, or one of two, has to leave",
                member,
            )

    def has_stalled(self, step: int) -> bool:
        """Whether the open step `step` has been redone repeatedly."""
        return self._number >= _PATIENCE and step == self._step

    def undelivered(self, step: int) -> list[Member]:
        """Members that answer, although no connection delivers the data of the open step `step` to them."""
        return [member for member, number in self._num_vain.items() if number >= _PATIENCE and step == self._step]
