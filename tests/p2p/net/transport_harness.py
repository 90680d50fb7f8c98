"""Transports with listeners on the loopback interface, for tests."""

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from p2p.net.addresses import Endpoint
from p2p.net.listener import TcpListeners
from p2p.net.tcp import Network, TcpConfig
from p2p.net.transport import Transport

SECRET = bytes(range(32))
HANG_S = 20.0
"""Timeout of waits for certain events: a longer wait is a hang."""


class TransportHarness:
    """Transports with a listeners each, in one folder."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self._stack = stack
        self._folder = folder
        self.gates: dict[str, TcpListeners] = {}

    def open(
        self,
        name: str,
        secret: bytes | None = SECRET,
        *,
        swarm: str = "pond",
        port: int = 0,
        host: str = "127.0.0.1",
        network: Network = Network.LAN,
        io_threads: int = 1,
    ) -> Transport:
        config = TcpConfig(
            swarm=swarm, bind=Endpoint(host, port), secret=secret, network=network, io_threads=io_threads
        )
        listeners = TcpListeners(config, name)
        control, data = (f"ipc://{self._folder}/{secrets.token_hex(4)}" for _ in range(2))
        transport = Transport(control, data, listeners)
        self._stack.callback(transport.close)
        self.gates[name] = listeners
        return transport

    def addresses(self, name: str) -> tuple[str, str]:
        return self.gates[name].control_address, self.gates[name].data_address

    def port(self, name: str) -> int:
        return Endpoint.parse(self.gates[name].control_address.removeprefix("tcp://")).port


@contextmanager
def open_pond() -> Iterator[TransportHarness]:
    with TemporaryDirectory(prefix="shoal") as folder, ExitStack() as stack:
        yield TransportHarness(stack, Path(folder))


def poll_until(is_so: Callable[[], bool], *transports: Transport) -> None:
    """Poll until `is_so`. A poll may return immediately, and often, so the limit is a time."""
    end_s = time.monotonic() + HANG_S
    while time.monotonic() < end_s:
        for transport in transports:
            transport.poll(0.005)
        if is_so():
            return
    raise AssertionError(f"it did not become so within {HANG_S:g} s")
