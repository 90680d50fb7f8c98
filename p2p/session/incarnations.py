"""The loops of one peer, one after the other: a peer that was removed may come back, in the same process."""

import logging

from ..config import PeerConfig
from ..errors import RemovedFromView
from ..host.entry import pack_program
from ..host.registry import Registry
from ..loop.loop import Loop

logger = logging.getLogger("p2p")

RETURNS_S, MOST_RETURNS = 600.0, 5
"""A peer that is removed more often than that within that time does not come back."""

MOST_TRIES = 20
"""Of a peer that looks for its place in a loop of several phases."""


class Incarnations:
    """The loop that runs.

    Attributes:
        loop: of the present incarnation.
    """

    def __init__(self, config: PeerConfig) -> None:
        """Enter the registry and bind the sockets; `loop.reactor.start` begins."""
        program = pack_program(config.program, config.may_differ)
        self._registry = Registry(config.home, config.swarm, script=config.script, program=program, place=config.place)
        self._config = config.for_loop()
        self._may_return = config.rejoin
        self._returns: list[float] = []
        self.loop = Loop(self._registry, self._config)

    def begin_another(self, removed: RemovedFromView, *, is_wanted: bool) -> None:
        """Come back as another incarnation; `is_wanted`: the script has a model to come back with, or has asked for it.

        Raises:
            RemovedFromView: `removed`, if this peer must not come back, was not asked to or did so too often, or if
                nobody is left.
        """
        former, now = self.loop, self.loop.now()
        self._returns = [*(at for at in self._returns if at > now - RETURNS_S), now]
        most = MOST_TRIES if removed.is_astray else MOST_RETURNS
        if not (self._may_return and is_wanted) or len(self._returns) > most:
            raise removed
        logger.warning("%s; this peer, %s, comes back", removed.reason, former.peer_id)
        former.end_incarnation()
        before = former.reactor.drive_lock.shield()
        try:
            self.loop = Loop(self._registry, self._config, former)
            self.loop.reactor.start()
        finally:
            former.reactor.drive_lock.unshield(before)
        if self.loop.is_alone:
            raise removed
