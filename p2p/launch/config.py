"""What `shoal run` starts, and the environment that each peer is given."""

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
"""Of the checkpoints in a folder, the last ones, which are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchConfig:
    """What to start, and how often.

    Attributes:
        swarm: its name; None: that of the target.
        only: `join`: found nothing; `new`: join nothing; empty: whatever there is.
        policy: `live` or `majority`; None: as for `p2p.join`.
        min_peers: the swarm's first step waits for this many; None: for `num_peers`.
        home: the registry folder; None: `folders.default_home`.
        resume: folder of the checkpoint to go on from; None: the last one, if the script has any.
        receipts: folder for the peers' receipts; None: they write none.
        is_traced: whether whoever starts the peers keeps their traces beside the receipts, so that they do not.
        join_timeout_s, step_timeout_s: as of `p2p.join`; None: its own.
        receipts_full: `warn` or `stop`; None: as for `p2p.join`.
        may_differ: as of `p2p.join`.
        mixed: `resync` or `refuse`; None: as for `p2p.join`.
        slow_peers, slow_factor, on_all_dead: as of `p2p.join`; None: its own.
        tcp: how other hosts reach the peers; peer i listens at ports 2 i and 2 i + 1 beyond the one in `bind`.
        num_restarts: a peer that fails is replaced so many times.
        fence_s: a peer that was stopped (state T) for so long is killed; None: never.
        log_dir: folder for one file per peer, with all that it writes; None: none.
        gpus: of this host; each peer sees one of them.
        is_auto: `num_peers` follows from these.
        verbosity: -1: only failures; 0: what happens; 1: the log of each peer, too.
        grace_s: a peer that was asked to leave is killed after this.
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
        """How to reach other hosts, if at all.

        Raises:
            LaunchError: something cannot be started.
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
        """Whether peers of other hosts may come."""
        return bool(self.tcp.seeds or self.tcp.bind)

    @property
    def key_fds(self) -> tuple[int, ...]:
        """The descriptor that the peers read the key from, if that is how they get it."""
        fd = None if self.tcp.key is None else descriptor_of(self.tcp.key)
        return () if fd is None else (fd,)

    def with_readable_key(self) -> Self:
        """The same with a key that each peer can read, where it comes from a descriptor, which may be a pipe.

        Raises:
            SecurityError: there is no key.
        """
        if not self.key_fds:
            return self
        assert self.tcp.key is not None
        return replace(self, tcp=replace(self.tcp, key=in_memory(self.tcp.key)))

    @property
    def swarm_name(self) -> str:
        """Those who may meet. Raises LaunchError if the target has no name that the peers of all hosts could have."""
        return self.swarm or self.target.swarm(one_host=not self.is_open)


OF_TORCHRUN: Final = (
    *("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE"),
    *("ROLE_NAME", "MASTER_ADDR", "MASTER_PORT"),
)
"""Beside `TORCHELASTIC_*`. Rank and size change, so no variable can say them."""
NOT_OURS: Final = (
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
"""Of another launcher, if anybody's. Or of this one, which has read them, or are secret."""
SHARED: Final = ("SHOAL_HOME", "SHOAL_KEY")
"""Of what peers are given, what holds for a run that a peer starts in its turn, too."""


@dataclass(frozen=True, slots=True)
class Predecessor:
    """Whose place a peer takes; `since_ns` and `elsewhere`: as of `PeerConfig`."""

    since_ns: int = 0
    elsewhere: Mapping[str, str] = field(default_factory=dict)


NOBODY: Final = Predecessor()


def peer_environment(
    config: LaunchConfig,
    index: int,
    environ: Mapping[str, str],
    place: int | None = None,
    predecessor: Predecessor = NOBODY,
) -> dict[str, str]:
    """The environment of peer `index`, number `place` on this host: `environ`, and what `p2p.join()` reads."""
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
    if predecessor.elsewhere:
        added["SHOAL_ELSEWHERE"] = ",".join(f"{host}@{address}" for host, address in predecessor.elsewhere.items())
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
    # Left to itself, torch would give every peer a thread on every core.
    num_threads = len(peer_cores(config, environ, place)) or max(1, num_usable_cores() // config.num_peers)
    inherited = {name: value for name, value in environ.items() if not is_of_another(name)}
    added |= config.tcp.to_environment(place)
    added["SHOAL_EXPORTED"] = ",".join(name for name in added if name.startswith("SHOAL_") and name not in SHARED)
    return {**KEEPS_MEMORY, "OMP_NUM_THREADS": str(num_threads), **inherited, **added}


def is_of_another(name: str) -> bool:
    """Whether no peer inherits this variable."""
    return name in NOT_OURS or name.startswith("TORCHELASTIC_")


def peer_cores(config: LaunchConfig, environ: Mapping[str, str], place: int) -> frozenset[int]:
    """Those that peer `place` should keep to, near its GPU; empty: any."""
    if not config.gpus:
        return frozenset()
    names, usable = visible_devices(environ, config.gpus), usable_cores()
    return cores_of_peer(place, config.num_peers, names, config.gpus, usable, Path("/sys"))


def parse_num_peers(text: str, environ: Mapping[str, str], gpus: Sequence[Gpu]) -> int:
    """Of `-n`: a number, or `auto`, one peer per GPU that can be seen, and 1 without.

    Raises:
        LaunchError: it is neither, or CUDA_VISIBLE_DEVICES names what is not there.
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
    raise LaunchError(f"--resume: {folder} is no checkpoint; give FOLDER/STEP" + there * bool(steps))


def num_usable_cores() -> int:
    return len(usable_cores())
