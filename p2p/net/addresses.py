"""Addresses of peers: `ipc://` and a path on one host, `tcp://host:port` between hosts."""

import ipaddress
import os
import re
import socket
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, Self

from ..errors import NetworkError

ANY: Final = "*"
"""As a host to listen on: all addresses of this machine, IPv4 and IPv6."""

_WILDCARDS: Final = (ANY, "0.0.0.0", "::")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,252}")
_MAX_PATH_BYTES: Final = 107
_ELSEWHERE: Final = "192.0.2.1"  # for documentation (RFC 5737); nothing is sent there


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A host (a name, an IPv4 or an IPv6 address without brackets) and a port; 0: any free port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `host:port`, `[IPv6]:port` or `*:port`; raise ValueError otherwise, and for link-local addresses.

        Of an address there is one spelling: `[FD00:0::5]:1` is read as `[fd00::5]:1`, `0:1` as `0.0.0.0:1`.
        """
        host, colon, digits = text.rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
            is_host = _is_ip(host, ipaddress.IPv6Address) and re.fullmatch("[0-9A-Za-z:.%_-]+", host) is not None
        else:
            is_host = host == ANY or bool(_NAME.fullmatch(host))
        if not (colon and is_host and re.fullmatch("[0-9]{1,5}", digits) and int(digits) < 2**16):
            raise ValueError(f"expected host:port (an IPv6 address in brackets), got {text[:200]!r}")
        if ":" in host and ipaddress.IPv6Address(host).is_link_local:
            raise ValueError(
                f"{text!r} is link-local, and not the same from everywhere: give another address of that host"
            )
        return cls(_canonical(host), int(digits))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if self.is_ipv6 else f"{self.host}:{self.port}"

    @property
    def address(self) -> str:
        return f"tcp://{self}"

    @property
    def is_ipv6(self) -> bool:
        return ":" in self.host

    @property
    def is_wildcard(self) -> bool:
        return self.host in _WILDCARDS


def _is_ip(host: str, kind: type[ipaddress.IPv4Address] | type[ipaddress.IPv6Address]) -> bool:
    try:
        kind(host)
    except ValueError:
        return False
    return True


def _canonical(host: str) -> str:
    """The numeric address `host` as the kernel writes it; a name stays as it is."""
    if ":" in host:
        address = ipaddress.IPv6Address(host)
        return str(address.ipv4_mapped or address)
    try:
        return socket.inet_ntoa(socket.inet_aton(host))  # as `getaddrinfo` reads numbers: 127.1, 0x7f.1, 0
    except OSError:
        return host


def check_address(address: str) -> None:
    """Raise ValueError unless `address` can be connected to. It may come from a peer."""
    if address.startswith("tcp://"):
        endpoint = Endpoint.parse(address.removeprefix("tcp://"))
        is_multicast = _is_ip(endpoint.host, ipaddress.IPv4Address) and ipaddress.ip_address(endpoint.host).is_multicast
        if endpoint.port == 0 or endpoint.is_wildcard or is_multicast:
            raise ValueError(f"no peer can be reached at {address}")
        return
    path = address.removeprefix("ipc://")
    if path == address or not path.startswith("/"):
        raise ValueError(f"an address is ipc:// and an absolute path, or tcp://host:port, got {address[:200]!r}")
    num_bytes = len(os.fsencode(path))
    if num_bytes > _MAX_PATH_BYTES:
        raise ValueError(f"a socket's path has at most {_MAX_PATH_BYTES} bytes, {path[:200]!r} has {num_bytes}")


def resolve(host: str) -> frozenset[str]:
    """The numeric addresses of `host`; empty if it cannot be resolved. Blocks for as long as the name server takes."""
    try:
        return frozenset(str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM))
    except (OSError, UnicodeError):
        return frozenset()


def has_ipv4(addresses: Collection[str]) -> bool:
    """Whether one of these numeric addresses is IPv4, which every connected host can reach."""
    return any(":" not in address for address in addresses)


def to_listen_at(host: str, addresses: Collection[str], is_here: Callable[[str], bool] | None = None) -> list[str]:
    """The `addresses` of `host` to listen at: all that belong to this machine, since other peers may use any of them.

    If none belongs to this machine, one address for the error message to name.
    """
    ordered = sorted(addresses, key=lambda address: (":" in address, address))
    return [address for address in ordered if (is_here or _is_here)(address)] or ordered[:1] or [host]


def is_interface(host: str) -> bool:
    """Whether this machine has an interface of this name, which is also valid to listen at."""
    return host in (name for _, name in socket.if_nameindex())


def why_ambiguous(seed: Endpoint, addresses: Collection[str], is_here: Callable[[str], bool] | None = None) -> str:
    """Why `seed`, a name with these numeric addresses, does not identify one peer; empty if it may.

    A name that resolves to this machine and to others makes each of them take itself for the seed and found a swarm.
    Several addresses of other machines are fine (any of these may answer), and so are several addresses of this
    machine.
    """
    here = sorted(address for address in addresses if (is_here or _is_here)(address))
    elsewhere = sorted(each for each in {*addresses} - {*here} if not ipaddress.ip_address(each).is_loopback)
    if not (here and elsewhere):
        return ""
    each = ",".join(str(Endpoint(address, seed.port)) for address in sorted(addresses))
    return (
        f"{seed} has {len(addresses)} addresses, {here[0]} of this machine and {elsewhere[0]} of another, so each of "
        f"them would take itself for the seed: give one address per host, as in --seeds {each}, the same everywhere"
    )


def advertised(
    bound: Endpoint, seeds: Sequence[Endpoint], leaves_from: Callable[[str], str | None] | None = None
) -> Endpoint:
    """The endpoint to advertise for a socket bound to `bound`, if none was configured.

    The spelling of a seed if this peer is that seed, so that all peers name a seed alike; otherwise `bound`, if it is a
    single address; for a wildcard, the source address of packets to the first seed, or to the internet.

    Raises:
        NetworkError: a wildcard, and this machine has no route to any seed.
    """
    if not bound.is_wildcard:
        mine = resolve(bound.host)
        return next((seed for seed in seeds if seed.port == bound.port and mine & resolve(seed.host)), bound)
    for seed in seeds:
        if seed.port == bound.port and any(_is_here(host) for host in resolve(seed.host)):
            return seed
    targets = [host for seed in seeds for host in sorted(resolve(seed.host))]
    hosts = ((leaves_from or _leaves_from)(target) for target in (*targets, _ELSEWHERE))
    host = next((host for host in hosts if host is not None), None)
    if host is None and targets:
        raise NetworkError(
            f"this machine has no route to {', '.join(map(str, seeds))}, and so no address to tell others: start the "
            "peer when the network is up, or give --advertise"
        )
    return Endpoint(host or "127.0.0.1", bound.port)


def _is_here(host: str) -> bool:
    """Whether the numeric address `host` belongs to this machine."""
    try:
        with _udp(host) as probe:
            probe.bind((host, 0))
    except OSError:  # also where the kernel has no IPv6
        return False
    return True


def _leaves_from(target: str) -> str | None:
    """The source address of packets to the numeric address `target`. Sends none."""
    try:
        with _udp(target) as probe:
            probe.connect((target, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return None


def _udp(host: str) -> socket.socket:
    return socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM)
