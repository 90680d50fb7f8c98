"""Single frames for peers of other hosts, each on a connection of its own: for who is no peer and has no links.

libzmq's own thread does the work, so nothing here waits but `close`. What is not handed over in time is given up.
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
"""So long one send may take: it needs five round trips, and some time for lost packets and for links that stall."""

_LAST_WORDS_MS: Final = 1000  # for what a standing connection has not sent yet


@dataclass(frozen=True, slots=True)
class _OneWaySend:
    address: str
    dealer: "zmq.Socket[bytes]"
    monitor: "zmq.Socket[bytes]"
    until: float

    def is_done(self) -> bool:
        """Whether the peer that is meant has let us in: then the frame is on its way. Once true, not to be asked."""
        return bool(self.monitor.poll(0)) and bool(recv_monitor_message(self.monitor))

    def close(self, linger_ms: int) -> None:
        self.dealer.disable_monitor()
        self.monitor.close(linger=0)
        self.dealer.close(linger_ms)


class OneWaySends:
    """Frames under way. For one thread."""

    def __init__(self, config: TcpConfig, clock: Callable[[], float]) -> None:
        """`clock`: monotonic seconds."""
        self._credentials = Credentials(config.realm, "", config.secret, config.ipv4_names)
        self._patience_s = PATIENCE_S[config.network]
        self._clock = clock
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._one_way: list[_OneWaySend] = []

    @property
    def deadline(self) -> float:
        """When to `look` for what was in vain; infinite if nothing is under way."""
        return min((each.until for each in self._one_way), default=math.inf)

    def send(self, address: str, peer_id: str, frame: bytes) -> None:
        """Say `frame` to the peer of this name at a control address. Returns at once.

        Raises:
            ValueError: nobody can be reached there, or there are no sockets left.
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
        """Forget what is done, or too late. Returns the addresses of the latter."""
        now = self._clock()
        under_way, vain = [], []
        for each in self._one_way:
            if each.is_done():
                each.close(_LAST_WORDS_MS)
            elif each.until <= now:
                each.close(linger_ms=0)
                vain.append(each.address)
            else:
                under_way.append(each)
        self._one_way = under_way
        return vain

    def close(self) -> list[str]:
        """Wait until everything is done, or too late; close all. Returns the addresses of the latter."""
        vain = self.look()
        while self._one_way:
            poller = zmq.Poller()
            for each in self._one_way:
                poller.register(each.monitor, zmq.POLLIN)
            poller.poll(math.ceil(1000 * max(0.0, self.deadline - self._clock())))
            vain += self.look()
        if self._context is not None:
            self._context.destroy(linger=0)  # of what could not be sent at all; the rest is closed, and lingers
        return vain
