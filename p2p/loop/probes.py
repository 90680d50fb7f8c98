"""Bandwidth probes of links that have carried little data yet. Belongs to the loop.

They go to one peer at a time, by turns: 1 MB or 0.2 s each, in portions that grow once the previous one has arrived, so
that they do not occupy a slow link for long; and take at most a tenth of the time, averaged over some seconds: up to
three come in a row.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from ..net.flows import Flow

PROBE_BYTES: Final = 1 << 20
PROBE_S: Final = 0.2
FIRST_PORTION: Final = 64 << 10
SHARE: Final = 0.1
MOST_S: Final = 3 * PROBE_S
"""Largest budget that accumulates while no probes are sent."""


@dataclass(frozen=True, slots=True)
class _Probe:
    """A probe in progress.

    Attributes:
        portion: bytes sent last.
        num_bytes: bytes sent in all.
        until: count of acknowledged bytes of the connection at which the portion has arrived.
    """

    peer_id: str
    began: float
    portion: int
    num_bytes: int
    until: int


class Sender(Protocol):
    """Sends probes (net/frames.py)."""

    def send_probe(self, peer_id: str, num_bytes: int) -> None: ...


class Probes:
    """Probes of one sending peer."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._done: set[str] = set()
        self._probe: _Probe | None = None
        self._budget_s, self._counted_at = MOST_S, 0.0

    def is_measured(self, peer_id: str, flow: Flow) -> bool:
        """Whether the bandwidth of the connection to that peer is known."""
        return flow.rtt_us > 0 and (peer_id in self._done or flow.acked >= PROBE_BYTES)

    def keep(self, peer_ids: Container[str]) -> None:
        """Forget all peers but these."""
        self._done = {peer_id for peer_id in self._done if peer_id in peer_ids}

    def go_on(self, now: float, flows: Mapping[str, Flow]) -> None:
        """Send the next portion, if due; `flows`: of the peers to probe, in order."""
        probe = self._probe
        if probe is None:
            peer_id = next((each for each, flow in flows.items() if not self.is_measured(each, flow)), None)
            self._budget_s = min(MOST_S, self._budget_s + SHARE * (now - self._counted_at))
            self._counted_at = now
            if peer_id is not None and self._budget_s > 0:
                self._send(_Probe(peer_id, now, FIRST_PORTION, FIRST_PORTION, flows[peer_id].acked + FIRST_PORTION))
            return
        flow = flows.get(probe.peer_id)
        took_s = now - probe.began
        if flow is not None and took_s < PROBE_S and flow.acked < probe.until:
            return
        if flow is not None and took_s < PROBE_S and probe.num_bytes < PROBE_BYTES:
            portion = min(2 * probe.portion, PROBE_BYTES - probe.num_bytes)
            num_bytes, until = probe.num_bytes + portion, flow.acked + portion
            self._send(_Probe(probe.peer_id, probe.began, portion, num_bytes, until))
            return
        self._probe, self._budget_s, self._counted_at = None, self._budget_s - took_s, now
        self._done.add(probe.peer_id)

    def _send(self, probe: _Probe) -> None:
        self._probe = probe
        self._sender.send_probe(probe.peer_id, probe.portion)
