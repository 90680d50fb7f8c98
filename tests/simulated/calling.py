"""Calls between peers that know each other only by address: the production `Seeds`, over the simulated network."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from gossip import Envelope
from gossip.messages import Body
from p2p.loop.seeds import CALL_S, Seeds
from p2p.net.links import Verdict

if TYPE_CHECKING:
    from tests.simulation import Simulation

    from .peer import Peer


class _Quiet(Seeds):
    def _warn(self, now: float, address: str) -> None:
        """Ignores warnings."""


class Calling:
    """One peer that calls its seeds; in place of the transport of `Seeds` and its frames."""

    def __init__(self, peer: "Peer", world: "Simulation") -> None:
        self._peer, self._world = peer, world
        self._seeds = _Quiet(world.seeds, self, self, founds=True)  # type: ignore[arg-type]

    def go_on(self) -> None:
        """Call the seeds now, and then every `CALL_S`."""
        self._seeds.call(self._peer.now(), self._peer.core)
        self._world.clock.after(CALL_S, self._peer, "calls", self.go_on)

    def encode(self, body: Body) -> Envelope:
        return Envelope(self._peer.member, self._peer.core.stamp, body)

    def call(self, address: str, frames: Iterable[Envelope]) -> Verdict:
        other = self._world.named(address)
        if other is None:
            return Verdict.SILENT
        for envelope in frames:
            self._world.membership.sends(self._peer.member, envelope.stamp, envelope.body)
            self._world.network.send(self._peer, other, other.receive, envelope)
        return Verdict.ANSWERS

    def hang_up(self, address: str) -> None:
        """Does nothing: no connection is kept open."""
