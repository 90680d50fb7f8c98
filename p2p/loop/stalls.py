"""Frames that are lost again and again: over connections that something between two hosts has forgotten.

A firewall that forgets a connection swallows what is sent there, which the kernel finds out in some seconds
(`limit_silence` of net/links.py); a proxy goes on acknowledging it. Control says that all are well, so each attempt at
the step would stall as the one before.
"""

import logging
from collections.abc import Iterable
from typing import Final

from gossip import Member
from gossip.progress import NOTHING_DONE

from ..net.transport import Transport

logger = logging.getLogger("p2p")

_PATIENCE: Final = 2
"""So many attempts at a step in a row stall, then connections are opened anew before each further one."""


class Stalls:
    """Attempts at the open step of one peer that have stalled."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._step, self._number = NOTHING_DONE, 0

    def redone(self, step: int, members: Iterable[Member]) -> None:
        """`step` has stalled, and is done over in another view: what was sent to these members of it is out of date."""
        self._step, self._number = step, self._number + 1 if step == self._step else 1
        if self._number < _PATIENCE or not self._transport.reopen_data(member.peer_id for member in members):
            return
        if self._number == _PATIENCE:
            logger.warning(
                "step %d has stalled twice: what peers of other hosts were sent did not come, though all answer; "
                "connections for data are opened anew. Does a proxy, a NAT or a firewall between hosts drop some "
                "without a word, or the way between them all packets that are large (net.ipv4.tcp_mtu_probing=2)?",
                step,
            )
