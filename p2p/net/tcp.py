"""TCP options of a peer: the address to listen at, the seeds, and the swarm key."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Final, Self

from ..errors import NetworkError, SecurityError
from ..host.keys import read_key, reference
from .addresses import ANY, Endpoint, has_ipv4, is_interface, resolve, why_ambiguous

YES: Final = ("1", "true", "t", "yes", "y", "on")
"""Values that `shoal run` reads as yes; any other is no."""

TCP_VARIABLES: Final = (
    *("SHOAL_SEEDS", "SHOAL_BIND", "SHOAL_ADVERTISE"),
    *("SHOAL_KEY", "SHOAL_INSECURE", "SHOAL_NETWORK"),
)
"""Environment variables with the contents of `TcpOptions`."""

PORTS_PER_PEER: Final = 2
"""Control uses the given port, data the next."""

NUM_PORTS: Final = 1 << 16

MOST_IO_THREADS: Final = 4


class Network(StrEnum):
    """Kind of network between the hosts of a swarm, the same for all peers: which delays are normal."""

    LAN = "lan"
    WAN = "wan"


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpOptions:
    """Options as given by a user, unchecked. All empty: no TCP, only peers on this host.

    Attributes:
        seeds: `host:port,host:port`, the same list everywhere: the peers to call first; the first of them founds the
            swarm.
        bind: `host:port` to listen at, and the next port; port 0: any two free ports. Default: any host, port 0.
        advertise: `host` or `host:port` given to others; default: chosen from `bind` and `seeds`.
        key: file with the swarm key; or `env:NAME`, a variable of the environment; or `fd:N`, a descriptor.
        insecure: TCP without a key, for a network where all hosts are trusted.
        network: `lan`, or `wan` for delays of a tenth of a second and more; the same for all peers of a swarm.
    """

    seeds: str = ""
    bind: str = ""
    advertise: str = ""
    key: Path | None = None
    insecure: bool = False
    network: str = "lan"

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Self:
        """The options that `shoal run` has set."""
        key = environ.get("SHOAL_KEY")
        return cls(
            seeds=environ.get("SHOAL_SEEDS", ""),
            bind=environ.get("SHOAL_BIND", ""),
            advertise=environ.get("SHOAL_ADVERTISE", ""),
            key=Path(key) if key else None,
            insecure=environ.get("SHOAL_INSECURE", "").lower() in YES,
            network=environ.get("SHOAL_NETWORK") or "lan",
        )

    def to_environment(self, index: int = 0) -> dict[str, str]:
        """Environment for peer `index` of several on one host, each of which gets two ports of its own."""
        offset = PORTS_PER_PEER * index
        given = {
            "SHOAL_SEEDS": self.seeds,
            "SHOAL_BIND": _shifted(self.bind, offset),
            "SHOAL_ADVERTISE": _shifted(self.advertise, offset),
            "SHOAL_KEY": "" if self.key is None else reference(self.key),
            "SHOAL_INSECURE": "1" if self.insecure else "",
            "SHOAL_NETWORK": self.network,
        }
        return {name: value for name, value in given.items() if value}

    def check(self, swarm: str, num_peers: int = 1) -> "TcpConfig | None":
        """The checked configuration for the first of `num_peers` peers; None: no TCP. Resolves all hosts.

        Raises:
            NetworkError: an address is malformed, cannot be resolved, or belongs to this machine and others.
            SecurityError: no key and not `insecure`, or the key cannot be used.
        """
        if self.network not in tuple(Network):
            raise NetworkError(f"--network must be {' or '.join(Network)}, got {self.network!r}")
        if not (self.bind or self.seeds):
            if self.advertise or self.insecure or self.network != Network.LAN:
                raise NetworkError("--advertise, --insecure and --network are for TCP: give --bind or --seeds, too")
            return None
        bind = Endpoint(ANY, 0) if not self.bind else _parse("--bind", self.bind)
        if not (bind.is_wildcard or resolve(bind.host) or is_interface(bind.host)):
            raise NetworkError(f"--bind {bind}: the host {bind.host} is unknown; give an address of this machine")
        seeds = tuple(_parse("--seeds", seed.strip()) for seed in self.seeds.split(",")) if self.seeds else ()
        advertise = _parse_advertised(self.advertise) if self.advertise else None
        _check_ports("--bind", bind, num_peers)
        if advertise is not None:
            _check_ports("--advertise", advertise, num_peers)
        if len(set(seeds)) < len(seeds) or any(seed.port == 0 or seed.is_wildcard for seed in seeds):
            raise NetworkError(f"--seeds needs distinct hosts, each with its port, got {self.seeds!r}")
        known = {seed: resolve(seed.host) for seed in seeds}
        if why := next(filter(None, (why_ambiguous(seed, addresses) for seed, addresses in known.items())), ""):
            raise NetworkError(f"--seeds: {why}")
        _check_distinct(known)
        unknown = frozenset(seed.address for seed, addresses in known.items() if not addresses)
        if self.key is not None and self.insecure:
            raise SecurityError("--key and --insecure contradict each other: give one")
        if self.key is None and not self.insecure:
            raise SecurityError(
                "TCP needs a key: make one with `shoal key new --out swarm.key`, copy it to every host and give --key "
                "swarm.key; or pass --insecure, if every host on the network may take part"
            )
        secret = None if self.key is None else read_key(self.key)
        network = Network(self.network)
        given = TcpConfig(swarm=swarm, bind=bind, advertise=advertise, seeds=seeds, secret=secret, network=network)
        ipv4_names = frozenset(seed.host for seed, at in known.items() if has_ipv4(at) and seed.host not in at)
        return replace(given, unknown_seeds=unknown, ipv4_names=ipv4_names)


def share_cores(config: "TcpConfig", num_cores: int, num_peers: int) -> "TcpConfig":
    """`config` with as many I/O threads as this peer has cores, of `num_peers` on this host, if it encrypts."""
    if config.secret is None:
        return config
    return replace(config, io_threads=min(MOST_IO_THREADS, max(1, num_cores // num_peers)))


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpConfig:
    """Checked TCP configuration of one peer.

    Attributes:
        bind: of the control socket; data listens at the next port, or at any.
        advertise: of the control socket, for others; port 0: the bound one; None: to be chosen.
        unknown_seeds: addresses of seeds whose names could not be resolved.
        ipv4_names: of seeds that have an IPv4 address, which is then used: libzmq would prefer an IPv6 address, to
            which not every host has a route.
        secret: of the swarm key; None: insecure.
        io_threads: of libzmq; each connection belongs to one of them, which encrypts all that it carries.
    """

    swarm: str
    bind: Endpoint
    advertise: Endpoint | None = None
    seeds: tuple[Endpoint, ...] = ()
    unknown_seeds: frozenset[str] = frozenset()
    ipv4_names: frozenset[str] = frozenset()
    secret: bytes | None = field(default=None, repr=False)
    network: Network = Network.LAN
    io_threads: int = 1

    @property
    def realm(self) -> str:
        """The name that peers must share to let each other in. Names of swarms contain no blanks."""
        return self.swarm if self.network is Network.LAN else f"{self.swarm} {self.network}"


def _parse(option: str, text: str) -> Endpoint:
    try:
        return Endpoint.parse(text)
    except ValueError as error:
        raise NetworkError(f"{option}: {error}") from None


def _parse_advertised(text: str) -> Endpoint:
    try:
        endpoint = Endpoint.parse(text)
    except ValueError:
        endpoint = _parse("--advertise", f"{text}:0")
    if endpoint.is_wildcard:
        raise NetworkError(f"--advertise is what others connect to, and no peer can connect to {text!r}")
    return endpoint


def _check_distinct(known: Mapping[Endpoint, frozenset[str]]) -> None:
    """Raise NetworkError if two seeds, with their numeric addresses, are one peer, which would wait for itself."""
    found: dict[tuple[frozenset[str], int], Endpoint] = {}
    for seed, addresses in known.items():
        if not addresses:
            continue
        same = found.setdefault((addresses, seed.port), seed)
        if same != seed:
            at = ", ".join(str(Endpoint(address, seed.port)) for address in sorted(addresses))
            raise NetworkError(f"--seeds: {same} and {seed} are the same peer, at {at}: give it once")
    for (addresses, port), seed in found.items():
        if other := found.get((addresses, port + 1)):
            raise NetworkError(
                f"--seeds: {seed} and {other} cannot both be peers, since each takes two ports from there on: those of "
                f"one host are {PORTS_PER_PEER} ports apart"
            )


def _check_ports(option: str, first: Endpoint, num_peers: int) -> None:
    """Raise NetworkError if there are too few ports from that of `first` on."""
    num_ports = PORTS_PER_PEER * num_peers
    if first.port and first.port + num_ports > NUM_PORTS:
        raise NetworkError(
            f"{option} {first}: each peer takes two ports from there on, {num_peers} of them up to "
            f"{first.port + num_ports - 1}, and the last one is {NUM_PORTS - 1}; give one up to {NUM_PORTS - num_ports}"
        )


def _shifted(text: str, offset: int) -> str:
    """An address `offset` ports further on, if it has a port; a malformed one is reported later."""
    try:
        endpoint = Endpoint.parse(text)
    except ValueError:
        return text
    return str(replace(endpoint, port=endpoint.port + offset)) if endpoint.port else text
