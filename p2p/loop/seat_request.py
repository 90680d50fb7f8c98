"""Request of a peer for its first seat: it founds the swarm, or asks, and checks again while it waits."""

import os

from gossip import Core, Foundation, Run
from gossip.effects import Effect
from gossip.heir_election import ElectionStatus

from ..config import LoopConfig
from ..errors import RegistryError, RemovedFromView, RunEnded
from ..host.entry import Entry, Role, all_wait, state_lost
from ..host.registry import Registry
from .seeds import Seeds

RUN_IS_OVER = (
    "no member of the swarm is left: its run has ended; this peer knows committed steps of it, but had no seat, so it "
    "founds no other run; start all peers again to continue from a checkpoint; several runs in one script (folds) "
    'need names of their own, p2p.join(swarm=f"fold{k}")'
)

ALL_DEAD = (
    "all members have died; this peer holds the state after step {0}, but can continue only where its script waits "
    "for a step of its model; start all peers again to continue from a checkpoint"
)
NOT_HEARD = (
    "all members have died, and nothing is heard from {0}; this peer holds the state after step {1}, but does not "
    "continue, so that no two runs do: start all peers again to continue from a checkpoint"
)
GOES_ON = "all members have died, and another peer, which holds a newer state or was there first, continues the run"


class AllMembersDead(RegistryError):
    """All members have died, and this peer, an observer, holds the newest state. It continues the run if it can."""


class SeatRequest:
    """Role of this peer according to the registry, and its request for a seat."""

    def __init__(
        self,
        registry: Registry,
        config: LoopConfig,
        own: Entry,
        former: "SeatRequest | None" = None,
        not_before: float = 0.0,
    ) -> None:
        """`former`: of this peer before its removal, if it returns; `not_before`: earliest time of the request."""
        self.role = own.role
        self._first_ns: int = own.incarnation if former is None else former._first_ns
        self._registry = registry
        self._config = config
        self._is_back = former is not None
        self._not_before = not_before
        self._has_begun = False
        self._asked: tuple[Run, int] | None = None
        self._next_look = 0.0

    def ask(self, now: float, core: Core, seeds: Seeds, run: Run, founding_size: int) -> list[Effect]:
        """Found the swarm, or ask its members for a seat; the first time only.

        Raises:
            RegistryError: no member is left that this peer, which has a state, could join.
            RunEnded: the run of the peer that it replaces has ended.
        """
        if self._asked is not None:
            return []
        self._asked = run, founding_size
        return self._take_part(now, core, seeds) if now >= self._not_before else []

    def _take_part(self, now: float, core: Core, seeds: Seeds) -> list[Effect]:
        assert self._asked is not None
        self._has_begun = True
        (run, size), policy = self._asked, self._config.policy
        if self.role is Role.JOINER:
            if not self._is_back:
                seeds.may_found(now, core, size, policy)
            return core.ask_for_seat(now, run, follows=run.description.trains_model)
        self._check_is_not_over(core)
        if self._is_back or core.knows_steps:
            raise RegistryError(RUN_IS_OVER)
        if elsewhere := self._config.other_hosts:  # it listens for other hosts, and has no seeds
            own = core.claims()[0].contact.seed
            core.found_from_seeds(now, Foundation((own,), os.urandom(16), size, policy, elsewhere))
            return core.ask_for_seat(now, run, follows=run.description.trains_model)
        self._registry.warn_of_end()
        return core.found(now, os.urandom(16), size, run, policy)

    def _check_is_not_over(self, core: Core) -> None:
        """Raise RunEnded if the run that this peer was to join has ended successfully."""
        since_ns = self._first_ns if core.knows_steps or self._is_back else self._config.since_ns
        if since_ns and self._registry.has_ended_well_since(since_ns):
            raise RunEnded(self._registry.swarm)

    def look_soon(self) -> None:
        """Make the next check due: a peer is gone."""
        self._next_look = 0.0

    def look_again(self, now: float, core: Core, seeds: Seeds) -> list[Effect]:
        """Ask if due; if no peer that it could join is alive, found the swarm. Call this at a slow cadence.

        Raises:
            AllMembersDead: this peer holds the newest remaining state.
            RegistryError: the state is lost, or the peers that decide who continues are not heard.
            RemovedFromView: all members have died, and another peer continues.
            RunEnded: this peer only joins, replaces a peer, or has observed the run, and the run has ended.
        """
        if self._asked is not None and not self._has_begun and now >= self._not_before:
            return self._take_part(now, core, seeds)
        if self._asked is None or self.role is not Role.JOINER or core.view is not None:
            return []
        several_hosts = self._config.tcp is not None
        if several_hosts and (estate := core.election_status(now)) is not None:
            return self._handle_all_dead(core, estate)
        if now < self._next_look:
            return []
        self._next_look = now + self._config.member_check_s
        if several_hosts and core.knows_members and self._have_members_died_here():
            return []  # members on other hosts may be alive
        if not self._config.may_found and self._config.tcp is None:
            self._registry.check_can_join()
        held = max(core.held_step, 0)
        census = self._registry.take_over(held if self._config.restarts and not several_hosts else -1)
        self.role = census.own.role
        if census.own.held >= 0 and core.knows_steps:
            if self.role is Role.FOUNDER:
                raise AllMembersDead(ALL_DEAD.format(held))
            if not all_wait(census.others):
                raise RemovedFromView(GOES_ON)
        return self._take_part(now, core, seeds) if self.role is Role.FOUNDER else []

    def _have_members_died_here(self) -> bool:
        _, dead = self._registry.read(apart_from="")
        return any(entry.role is Role.MEMBER for entry in dead)

    def _handle_all_dead(self, core: Core, estate: ElectionStatus) -> list[Effect]:
        """All members, on several hosts, are dead: continue, wait for the peer that does, or end (R29)."""
        if estate.is_lost or not (self._config.restarts and self._config.may_found):
            lost = [(seat.member.peer_id, seat.contact.pid) for seat in estate.view.seats]
            raise RegistryError(state_lost(self._registry.swarm, lost))
        if estate.heir == core.me:
            self._registry.inherit()
            self.role = Role.FOUNDER
            raise AllMembersDead(ALL_DEAD.format(core.held_step))
        if estate.waits_for:
            raise RegistryError(NOT_HEARD.format(estate.waits_for, max(core.held_step, 0)))
        return []
