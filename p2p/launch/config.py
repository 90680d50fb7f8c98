"""The settings of `shoal run`, and the environment of each peer."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Self

from ..errors import LaunchError
from ..host.allocator import KEEPS_MEMORY
from ..host.choices import CHOICES
from ..host.folders import absolute
from ..host.keys import descriptor_of, in_memory
from ..host.processes import usable_cores
from ..net.tcp import TCP_VARIABLES, TcpConfig, TcpOptions
from .devices import Gpu, cores_of_peer, host_gpus, visible_devices
from .target import Target

MOST_STEPS: Final = 8
"""Checkpoints of a folder that an error names: the last ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchConfig:
    """The settings of one launch.

    Attributes:
        swarm: its name; None: that of the target.
        only: `join`: only join a run; `new`: only found one; empty: either.
        policy: `live` or `majority`; None: as for `p2p.join`.
        min_peers: the swarm's first step waits for this many; None: for `num_peers`.
        home: the registry folder; None: `folders.default_home`.
        resume: folder of the checkpoint to resume; None: the last one, if the script has any.
        receipts: folder for the peers' receipts; None: they write none.
        is_traced: the process that starts the peers writes their traces beside the receipts, so they do not.
        join_timeout_s, step_timeout_s: as of `p2p.join`; None: its own.
        receipts_full: `warn` or `stop`; None: as for `p2p.join`.
        may_differ: as of `p2p.join`.
        mixed: `resync` or `refuse`; None: as for `p2p.join`.
        slow_peers, slow_factor, on_all_dead: as of `p2p.join`; None: its own.
        tcp: how other hosts reach the peers; peer i listens at ports 2 i and 2 i + 1 above the one in `bind`.
        num_restarts: how many times a failed peer is replaced.
        fence_s: a peer that has been stopped (state T) for this long is killed; None: never.
        log_dir: folder for one file per peer, with all its output; None: none.
        gpus: of this host; each peer sees one of them.
        is_auto: `num_peers` was derived from `gpus`.
        verbosity: -1: failures only; 0: events, too; 1: also the log of each peer.
        grace_s: peers that were asked to leave are killed after this.
    """

    target: Target
    num_peers: int
    swarm: str | None = None
    only: str = ""
    home: Path | None = None
    min_peers: int | None = None
    policy: str | None = None
    resume: Path | None = None
    receipts: Path | None = None
    is_traced: bool = False
    join_timeout_s: float | None = None
    step_timeout_s: float | None = None
    receipts_full: str | None = None
    may_differ: Sequence[str] = ()
    mixed: str | None = None
    slow_peers: str | None = None
    slow_factor: float | None = None
    on_all_dead: str | None = None
    tcp: TcpOptions = field(default_factory=TcpOptions)
    num_restarts: int = 0
    fence_s: float | None = None
    log_dir: Path | None = None
    gpus: Sequence[Gpu] = field(default_factory=host_gpus)
    is_auto: bool = False
    verbosity: int = 0
    grace_s: float = 10.0

    def check(self) -> TcpConfig | None:
        """Check all settings; returns how to reach other hosts, None: not at all.

        Raises:
            LaunchError: the settings ask for something impossible.
            NetworkError, SecurityError: TCP cannot be used.
        """
        if self.num_peers < 1:
            raise LaunchError(f"-n is the number of peers and must be at least 1, got {self.num_peers}")
        if self.min_peers is not None and self.min_peers < 1:
            raise LaunchError(f"--min-peers must be at least 1, got {self.min_peers}")
        if self.num_restarts < 0:
            raise LaunchError(f"--restarts must be at least 0, got {self.num_restarts}")
        for name in ("join_timeout", "step_timeout"):
            limit_s = getattr(self, f"{name}_s")
            if limit_s is not None and not limit_s > 0:
                raise LaunchError(f"--{name.replace('_', '-')} must be more than 0 seconds, got {limit_s:g}")
        if self.fence_s is not None and not self.fence_s >= 0:
            raise LaunchError(f"--fence must be at least 0 seconds, got {self.fence_s:g}")
        self._check_choices()
        self.target.check()
        if self.resume is not None:
            _check_resume(self.resume)
        if self.log_dir is not None:
            try:
                self.log_dir.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise LaunchError(f"cannot make the folder {self.log_dir} of --log-dir: {error.strerror}") from error
        return self.tcp.check(self.swarm_name, self.num_peers)

    def _check_choices(self) -> None:
        for name, known in CHOICES.items():
            if (given := getattr(self, name)) not in (None, *known):
                raise LaunchError(f"--{name.replace('_', '-')} must be {' or '.join(known)}, got {given!r}")
        if self.slow_factor is not None and not 1 < self.slow_factor < math.inf:
            raise LaunchError(f"--slow-factor must be above 1, got {self.slow_factor:g}")

    @property
    def is_open(self) -> bool:
        """Whether peers of other hosts may take part."""
        return bool(self.tcp.seeds or self.tcp.bind)

    @property
    def key_fds(self) -> tuple[int, ...]:
        """The descriptor that peers read the key from; empty: they read it elsewhere, or there is none."""
        fd = None if self.tcp.key is None else descriptor_of(self.tcp.key)
        return () if fd is None else (fd,)

    def with_readable_key(self) -> Self:
        """The same settings; a key that comes from a descriptor, such as a pipe, is in memory, for each peer to read.

        Raises:
            SecurityError: there is no key.
        """
        if not self.key_fds:
            return self
        assert self.tcp.key is not None
        return replace(self, tcp=replace(self.tcp, key=in_memory(self.tcp.key)))

    @property
    def swarm_name(self) -> str:
        """The name of the swarm. Raises LaunchError if none is given, and none can be derived that all hosts share."""
        return self.swarm or self.target.swarm(one_host=not self.is_open)


OF_TORCHRUN: Final = (
    *("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE"),
    *("ROLE_NAME", "MASTER_ADDR", "MASTER_PORT"),
)
"""Variables of torchrun, beside `TORCHELASTIC_*`. Rank and size change in a run, so no variable can hold them."""
NOT_INHERITED: Final = (
    *OF_TORCHRUN,
    *(
        "SHOAL_ONLY",
        "SHOAL_SINCE_NS",
        "SHOAL_ELSEWHERE",
        "SHOAL_TRACED",
        "SHOAL_WEB",
        "SHOAL_WEB_TOKEN",
        "SHOAL_EXPORTED",
    ),
    *TCP_VARIABLES,
)
"""Variables that peers do not inherit: of another launcher; or of this one, which has read them, or secret."""
SHARED: Final = ("SHOAL_HOME", "SHOAL_KEY")
"""Variables given to peers that also apply to a run that a peer starts itself."""


@dataclass(frozen=True, slots=True)
class Predecessor:
    """The failed peer that a new one replaces; `since_ns` and `remote_hosts`: as of `PeerConfig`."""

    since_ns: int = 0
    remote_hosts: Mapping[str, str] = field(default_factory=dict)


NO_PREDECESSOR: Final = Predecessor()


def peer_environment(
    config: LaunchConfig,
    index: int,
    environ: Mapping[str, str],
    place: int | None = None,
    predecessor: Predecessor = NO_PREDECESSOR,
) -> dict[str, str]:
    """The environment of peer `index`, number `place` on this host: `environ` plus the variables of `p2p.join()`."""
    place = index if place is None else place
    added = {
        "PYTHONUNBUFFERED": "1",
        "LOCAL_RANK": "0",  # each peer sees one device
        "SHOAL_LAUNCH_INDEX": str(index),
        "SHOAL_LOCAL_INDEX": str(place),
        "SHOAL_LOCAL_PEERS": str(config.num_peers),
        "SHOAL_MIN_PEERS": str(config.min_peers or config.num_peers),
        "SHOAL_SWARM": config.swarm_name,
    }
    if devices := visible_devices(environ, config.gpus):
        added["CUDA_VISIBLE_DEVICES"] = devices[place % len(devices)]
    if config.verbosity:
        added |= {"SHOAL_LOG": "INFO"} if config.verbosity > 0 else {"SHOAL_QUIET": "1"}
    if config.only:
        added["SHOAL_ONLY"] = config.only
    if predecessor.since_ns:
        added["SHOAL_SINCE_NS"] = str(predecessor.since_ns)
    if predecessor.remote_hosts:
        added["SHOAL_ELSEWHERE"] = ",".join(f"{host}@{address}" for host, address in predecessor.remote_hosts.items())
    if config.home is not None:
        added["SHOAL_HOME"] = str(absolute(config.home))
    if config.resume is not None:
        added["SHOAL_RESUME"] = str(absolute(config.resume))
    if config.receipts is not None:
        added["SHOAL_RECEIPTS"] = str(absolute(config.receipts))
        if config.is_traced:
            added["SHOAL_TRACED"] = "1"
    if config.join_timeout_s is not None:
        added["SHOAL_JOIN_TIMEOUT"] = str(config.join_timeout_s)
    if config.step_timeout_s is not None:
        added["SHOAL_STEP_TIMEOUT"] = str(config.step_timeout_s)
    if config.may_differ:
        added["SHOAL_MAY_DIFFER"] = ",".join(config.may_differ)
    for name in (*CHOICES, "slow_factor"):
        if (given := getattr(config, name)) is not None:
            added[f"SHOAL_{name.upper()}"] = str(given)
    # By default torch would start a thread per core in every peer.
    num_threads = len(peer_cores(config, environ, place)) or max(1, num_usable_cores() // config.num_peers)
    inherited = {name: value for name, value in environ.items() if not is_not_inherited(name)}
    added |= config.tcp.to_environment(place)
    added["SHOAL_EXPORTED"] = ",".join(name for name in added if name.startswith("SHOAL_") and name not in SHARED)
    return {**KEEPS_MEMORY, "OMP_NUM_THREADS": str(num_threads), **inherited, **added}


def is_not_inherited(name: str) -> bool:
    """Whether no peer inherits this variable."""
    return name in NOT_INHERITED or name.startswith("TORCHELASTIC_")


def peer_cores(config: LaunchConfig, environ: Mapping[str, str], place: int) -> frozenset[int]:
    """The cores near its GPU that peer `place` is bound to; empty: any."""
    if not config.gpus:
        return frozenset()
    names, usable = visible_devices(environ, config.gpus), usable_cores()
    return cores_of_peer(place, config.num_peers, names, config.gpus, usable, Path("/sys"))


def parse_num_peers(text: str, environ: Mapping[str, str], gpus: Sequence[Gpu]) -> int:
    """Parse `-n`: a number, or `auto`, which is one peer per visible GPU, and 1 without GPUs.

    Raises:
        LaunchError: `text` is neither, or CUDA_VISIBLE_DEVICES names an unknown device.
    """
    if text == "auto":
        return len(visible_devices(environ, gpus)) or 1
    try:
        return int(text)
    except ValueError:
        raise LaunchError(f"-n is the number of peers, or `auto`, got {text!r}") from None


def _check_resume(folder: Path) -> None:
    """Raises LaunchError if there is no checkpoint in `folder` itself."""
    from ..checkpoint.folder import checkpoints
    from ..checkpoint.manifest import FILE

    if (folder / FILE).is_file():
        return
    steps = [path.name for path in checkpoints(folder)]
    there = f": there are {', '.join(steps[-MOST_STEPS:])}" + " and earlier ones" * (len(steps) > MOST_STEPS)
    raise LaunchError(f"--resume: {folder} is not a checkpoint; give FOLDER/STEP" + there * bool(steps))


def num_usable_cores() -> int:
    return len(usable_cores())
