"""Discovery of a swarm whose peers are known by address only. Belongs to the loop.

Each seed is called until the peer at that address is known by name, and again once that peer is suspected or gone: the
call introduces this peer, and the answer names all peers that the seed knows. Members of a swarm keep calling as long
as they live, so a peer that starts at the address of a seed hears of them. The core decides who founds
(gossip/founding.py).
"""

import logging
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Final, Self

from gossip import Core, Foundation, Member, Policy, State
from gossip.founding import NO_HOSTS

from ..config import LoopConfig
from ..errors import RemoteProtocolError
from ..host.entry import Role
from ..net.frames import Frames
from ..net.links import SeedCalls, Verdict
from ..version import OtherVersion
from .resources import Resources

logger = logging.getLogger("p2p")

CALL_S: Final = 0.25
SILENT_S: Final = 5.0
"""A seed that is silent for this long is named in a warning; definite failures are named at once."""

ITSELF: Final = "leads back to this peer, which advertises {0}: start this peer with that seed as --advertise"


class Seeds:
    """The configured seeds of this peer, and the outcomes of calling them."""

    def __init__(
        self,
        addresses: Sequence[str],
        calls: SeedCalls,
        frames: Frames,
        *,
        founds: bool,
        unknown: Collection[str] = (),
        elsewhere: Mapping[str, str] = NO_HOSTS,
    ) -> None:
        """`unknown`: the addresses whose names could not be resolved; `elsewhere`: as in `LoopConfig`."""
        self._addresses = tuple(addresses)
        self._silent = {address: Verdict.UNKNOWN if address in unknown else Verdict.SILENT for address in addresses}
        self._founds = founds
        self._elsewhere = elsewhere
        self._calls = calls
        self._frames = frames
        self._next_call = self._warn_from = 0.0
        self._verdicts: dict[str, Verdict] = {}
        self._warned: set[tuple[str, Verdict]] = set()
        self._other_version = ""
        self._own = ""

    @classmethod
    def of(cls, config: LoopConfig, resources: Resources, frames: Frames) -> Self:
        """The seeds in `config`. A peer with a member of the swarm on its own host does not found."""
        seeds, unknown = ((), ()) if config.tcp is None else (config.tcp.seeds, config.tcp.unknown_seeds)
        founds = config.may_found and not any(entry.role is Role.MEMBER for entry in resources.others)
        addresses, calls = [each.address for each in seeds], resources.transport.seed_calls
        return cls(addresses, calls, frames, founds=founds, unknown=unknown, elsewhere=config.other_hosts)

    def may_found(self, now: float, core: Core, founding_size: int, policy: Policy) -> None:
        """Let `core` found the swarm, if this peer is the first seed and no other knows of a swarm."""
        if self._addresses and self._founds:
            foundation = Foundation(self._addresses, os.urandom(16), founding_size, policy, self._elsewhere)
            core.found_from_seeds(now, foundation)

    def hear_invalid(self, now: float, core: Core, error: RemoteProtocolError) -> None:
        """Note an unusable frame on the control socket."""
        if isinstance(error, OtherVersion):
            self._other_version = str(error)
            core.heard_another_version(now)

    def hear(self, source: Member, core: Core) -> None:
        """Note who has sent a frame: a call that leads back to this peer (through a NAT, say) is heard by itself."""
        if source == core.me:
            self._own = core.claims()[0].contact.seed

    def call(self, now: float, core: Core) -> None:
        """Call the seeds that are not known yet, or are gone: others may have replaced them. For a slow cadence."""
        if now < self._next_call or not self._addresses:
            return
        if not self._next_call:
            self._warn_from = now + SILENT_S
        self._next_call = now + CALL_S
        met = {claim.contact.seed for claim in core.claims() if claim.state is State.ALIVE}  # a new one may be there
        frames = [self._frames.encode(body) for body in core.introduction()]
        for address in self._addresses:
            if address in met:
                self._calls.hang_up(address)
                self._verdicts.pop(address, None)
            else:
                verdict = self._calls.call(address, frames) or self._verdicts.get(address, Verdict.SILENT)
                self._verdicts[address] = self._silent[address] if verdict is Verdict.SILENT else verdict
                if core.view is None:
                    self._warn(now, address)

    def _warn(self, now: float, address: str) -> None:
        verdict = self._verdicts[address]
        is_time = verdict in (Verdict.OTHER_SWARM, Verdict.UNKNOWN) or now >= self._warn_from
        if is_time and (address, verdict) not in self._warned:
            self._warned.add((address, verdict))
            logger.warning("seed %s %s", address, self._outcomes()[address])

    def _outcomes(self) -> dict[str, str]:
        """The outcome of the call to each seed that is not known yet, in words."""
        verdicts = dict(self._verdicts)  # copied in one go: any thread may ask
        leads_back = bool(self._own) and [*verdicts.values()].count(Verdict.ANSWERS) == 1
        told = {address: verdict.value for address, verdict in verdicts.items()}
        itself = {address for address, verdict in verdicts.items() if leads_back and verdict is Verdict.ANSWERS}
        return told | dict.fromkeys(itself, ITSELF.format(self._own))

    def explain(self) -> str:
        """Problems with the seeds that are not known yet, or with incoming calls; empty: none."""
        amiss = [f"seed {address} {outcome}" for address, outcome in self._outcomes().items()]
        return "; ".join([*([self._other_version] if self._other_version else []), *amiss])
