"""Incarnations: the successive loops of one peer, which may return after a removal in the same process."""

import logging
from collections.abc import Iterable
from dataclasses import replace

from ..config import PeerConfig
from ..errors import RemovedFromView, RunEnded, ShoalError
from ..host.entry import pack_program
from ..host.registry import Registry
from ..loop.loop import Loop
from ..loop.reactor import END_S

logger = logging.getLogger("p2p")

REMEMBERED_S, HALF_LIFE_S = 600.0, 60.0
"""How long removals count, and the half-life of their weight."""

FREE_REMOVALS = 5.0
WAIT_S, MOST_WAIT_S = 1.0, 120.0
"""A peer whose weighted removals exceed `FREE_REMOVALS` waits before it returns, with exponential backoff: its host or
its network may need repair."""

STALLED_S = 20.0
"""How long all members stall before a peer that data do not reach is removed (G16). If that happens again while
remembered, the peer waits this long, doubled each further time: its path may lose large packets for ever."""

MOST_TRIES = 20
"""Limit for a peer that searches for its position in a script with several phases."""


class Incarnations:
    """The running loop of a peer.

    Attributes:
        loop: of the present incarnation.
    """

    def __init__(self, config: PeerConfig) -> None:
        """Enter the registry and bind the sockets; `loop.reactor.start` begins."""
        program = pack_program(config.program, config.may_differ)
        self._registry = Registry(
            config.home, config.swarm, script=config.script, program=program, place=config.local_index
        )
        self._config = config.for_loop()
        self._may_return = config.rejoin
        self._removals: list[float] = []
        self._stalls: list[float] = []
        self.loop = Loop(self._registry, self._config)
        self._first_ns = self.loop.core.me.incarnation

    def begin_another(self, removed: RemovedFromView, *, is_wanted: bool) -> None:
        """Return as another incarnation; `is_wanted`: the script has a model to return with, or has asked for it.

        It asks for a seat at once, or, if it was removed often, after a delay.

        Raises:
            RemovedFromView: `removed`, if this peer must not return, was not asked to, has searched for its position
                too often, or if no member is left.
            RunEnded: no member is left, since the run has ended successfully.
            ShoalError: the former loop does not end.
        """
        former, now = self.loop, self.loop.now()
        self._removals = [*(at for at in self._removals if at > now - REMEMBERED_S), now]
        self._stalls = [*(at for at in self._stalls if at > now - REMEMBERED_S), *[now] * removed.has_stalled]
        is_lost = removed.is_astray and len(self._removals) > MOST_TRIES
        if not (self._may_return and is_wanted) or is_lost:
            raise removed
        wait_s = 0.0 if removed.is_astray else waits_s(now - at for at in self._removals)
        wait_s = max(wait_s, stalled_wait_s(len(self._stalls))) if removed.has_stalled else wait_s
        times = f", removed {len(self._removals)} times in {REMEMBERED_S / 60:g} minutes," if wait_s else ","
        when = f" in {wait_s:.1f} s" if wait_s else ""
        logger.warning("%s; this peer, %s%s comes back%s", removed.reason, former.peer_id, times, when)
        self._replace(wait_s)
        if self.loop.is_alone:
            has_ended = self._registry.has_ended_well_since(self._first_ns)
            over = RunEnded(self._registry.swarm) if has_ended else removed
            self.loop.inbox.tell(over)
            raise over

    def begin_lineage(self) -> None:
        """Begin another incarnation, which founds: all members of the lineage that this peer observed have died.

        Raises:
            ShoalError: the former loop has failed since.
        """
        if self.loop.inbox.crash is not None:
            raise self.loop.inbox.crash
        self._registry.stay()
        self._config = replace(self._config, other_hosts={})  # they are proven dead
        self._replace(0.0, founds_anew=True)

    def _replace(self, wait_s: float, *, founds_anew: bool = False) -> None:
        former = self.loop
        if not former.end_incarnation():  # it could still close resources of the next one
            raise ShoalError(f"the loop of {former.peer_id} has not ended within {END_S:g} s: it cannot come back")
        before = former.reactor.drive_lock.shield()
        try:
            another = Loop(self._registry, self._config, former, wait_s, founds_anew=founds_anew)
            another.reactor.start()
            self.loop = another  # whose lock is not shielded
        finally:
            former.reactor.drive_lock.unshield(before)


def waits_s(ages_s: Iterable[float]) -> float:
    """How long a peer waits before it asks for a seat again. `ages_s`: seconds since each of its removals."""
    more = sum(2.0 ** (-age_s / HALF_LIFE_S) for age_s in ages_s) - FREE_REMOVALS
    return 0.0 if more <= 0 else min(WAIT_S * 2.0 ** min(more, 64.0), MOST_WAIT_S)


def stalled_wait_s(number: int) -> float:
    """The same for a peer removed `number` times after all had waited for it (`STALLED_S`)."""
    return 0.0 if number < 2 else min(STALLED_S * 2.0 ** min(number - 2, 64), MOST_WAIT_S)
