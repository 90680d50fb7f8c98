"""One-way sends: single frames to peers on other hosts, each over its own connection, from a process without links.

libzmq's thread does the work, so that only `close` blocks. Sends that are not handed over in time are reported as late
and retried: a network partition may separate the hosts, and the peer waits for the frame when it has healed.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import zmq
from zmq.utils.monitor import recv_monitor_message

from .addresses import check_address
from .links import open_socket
from .listener import Credentials
from .tcp import Network, TcpConfig
from .wire import MAX_CONTROL_BYTES

PATIENCE_S: Final = {Network.LAN: 5.0, Network.WAN: 20.0}
"""How long one send may take: five round trips, and some time for lost packets and stalled links."""

MOST_LATE: Final = 32
"""Late sends that are retried; beyond it, the oldest are given up. Each takes some descriptors."""

LATE_S: Final = 600.0
"""How long late sends are retried; after that, members that wait for a step have ended (`step_timeout_s`)."""

_LATE_LOOK_S: Final = 1.0  # interval of the checks whether late sends are done

_LAST_WORDS_MS: Final = 1000  # for frames that an open connection has not sent yet


@dataclass(frozen=True, slots=True)
class _OneWaySend:
    address: str
    dealer: "zmq.Socket[bytes]"
    monitor: "zmq.Socket[bytes]"
    until: float

    def is_done(self) -> bool:
        """Whether the target peer has let us in: then the frame is in flight. Do not call again once true."""
        return bool(self.monitor.poll(0)) and bool(recv_monitor_message(self.monitor))

    def close(self, linger_ms: int) -> None:
        self.dealer.disable_monitor()
        self.monitor.close(linger=0)
        self.dealer.close(linger_ms)


class OneWaySends:
    """Frames in flight. For one thread."""

    def __init__(self, config: TcpConfig, clock: Callable[[], float]) -> None:
        """`clock`: monotonic seconds."""
        self._credentials = Credentials(config.realm, "", config.secret, config.ipv4_names)
        self._patience_s = PATIENCE_S[config.network]
        self._clock = clock
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._one_way: list[_OneWaySend] = []
        self._late: list[_OneWaySend] = []
        self._late_look_at = math.inf

    @property
    def deadline(self) -> float:
        """When to call `look` next; infinite if no sends are open."""
        return min((self._late_look_at, *(each.until for each in self._one_way)))

    def send(self, address: str, peer_id: str, frame: bytes) -> None:
        """Send `frame` to the peer `peer_id` at a control address. Returns at once.

        Raises:
            ValueError: not a usable address, or no sockets are left.
        """
        check_address(address)
        if self._context is None:
            self._context = zmq.Context()
        try:
            dealer = open_socket(self._context, zmq.DEALER, MAX_CONTROL_BYTES, high_water_mark=1, is_tcp=True)
            self._credentials.introduce(dealer, peer_id, address)
            monitor = dealer.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
            self._one_way.append(_OneWaySend(address, dealer, monitor, self._clock() + self._patience_s))
            dealer.connect(address)
            dealer.send(frame, zmq.DONTWAIT)
        except zmq.ZMQError as error:
            raise ValueError(f"libzmq refuses to connect to {address}: {error}") from None

    def look(self) -> list[str]:
        """Drop finished sends. Returns the addresses of sends that became late since; these are retried."""
        now = self._clock()
        if now >= self._late_look_at:
            self._late = _go_on(self._late, now - LATE_S)
        self._one_way = _go_on(self._one_way)
        late = [each for each in self._one_way if each.until <= now]
        self._one_way = [each for each in self._one_way if each.until > now]
        self._late += late
        while len(self._late) > MOST_LATE:
            self._late.pop(0).close(linger_ms=0)
        if not self._late or late or now >= self._late_look_at:
            self._late_look_at = now + _LATE_LOOK_S if self._late else math.inf
        return [each.address for each in late]

    def close(self) -> list[str]:
        """Wait until each send is done or late; close all. Returns the addresses of sends that became late since."""
        late = self.look()
        while self._one_way:
            poller = zmq.Poller()
            for each in self._one_way:
                poller.register(each.monitor, zmq.POLLIN)
            until = min(each.until for each in self._one_way)
            poller.poll(math.ceil(1000 * max(0.0, until - self._clock())))
            late += self.look()
        for each in self._late:
            each.close(linger_ms=0)
        self._late, self._late_look_at = [], math.inf
        if self._context is not None:
            self._context.destroy(linger=0)  # for sends that failed to start; the other sockets are closed, and linger
        return late


def _go_on(sends: list[_OneWaySend], since: float = -math.inf) -> list[_OneWaySend]:
    """The sends that are neither done nor late since before `since`; the others are closed."""
    left = []
    for each in sends:
        if each.is_done():
            each.close(_LAST_WORDS_MS)
        elif each.until <= since:
            each.close(linger_ms=0)
        else:
            left.append(each)
    return left
