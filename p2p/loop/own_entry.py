"""Own registry entry: restored if the registry folder is removed while the peer runs, for others of this host to find.

A logout removes the user's runtime folder. Peers that start then find no other, and found another run of the same name.
Not restored: the acceptor record (peers that have it open would read an older one) and the page; so a later peer cannot
continue alone if all earlier ones have died, and `shoal status` does not show these.
"""

import logging
from typing import Final

from ..errors import RegistryError
from ..host.registry import Registry
from ..net.transport import Transport

logger = logging.getLogger("p2p")

LOOK_S: Final = 1.0


class OwnEntry:
    """The entry of one peer. Belongs to the loop."""

    def __init__(self, registry: Registry, transport: Transport) -> None:
        self._registry, self._transport = registry, transport
        self._next_look = 0.0
        self._has_failed = False

    def look(self, now: float) -> None:
        """If the entry is gone, write it again and rebind the sockets; log that once. Call this at a slow cadence."""
        if now < self._next_look:
            return
        self._next_look = now + LOOK_S
        if self._registry.is_whole() and not self._has_failed:
            return
        what = f"the registry folder {self._registry.folder} was removed while this peer runs"
        try:
            self._registry.write_again()
            self._transport.bind_again()
        except (RegistryError, OSError) as error:
            if not self._has_failed:
                logger.warning(
                    "%s, and cannot be made again (%s; retried every second): peers that start here now found another "
                    "run of swarm %s",
                    *(what, error, self._registry.swarm),
                )
            self._has_failed = True
            return
        self._has_failed = False
        logger.warning(
            "%s, and is there again, with its entry: peers that started meanwhile may have founded another run of "
            "swarm %s; set SHOAL_HOME to a folder that stays",
            *(what, self._registry.swarm),
        )
