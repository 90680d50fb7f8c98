"""What `shoal run` starts, and the environment that each peer is given."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import LaunchError
from ..net.tcp import TcpConfig, TcpOptions
from .target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchConfig:
    """What to start, and how often.

    Attributes:
        swarm: its name; None: that of the target.
        only: `join`: found nothing; `new`: join nothing; empty: whatever there is.
        policy: `live` or `majority`; None: as for `p2p.join`.
        min_peers: the swarm's first step waits for this many; None: for `num_peers`.
        home: the registry folder; None: `registry.default_home`.
        receipts: folder for the peers' receipts; None: they write none.
        join_timeout_s, step_timeout_s: as of `p2p.join`; None: its own.
        tcp: how other hosts reach the peers; peer i listens at ports 2 i and 2 i + 1 beyond the one in `bind`.
        grace_s: a peer that was asked to leave is killed after this.
    """

    target: Target
    num_peers: int
    swarm: str | None = None
    only: str = ""
    home: Path | None = None
    min_peers: int | None = None
    policy: str | None = None
    receipts: Path | None = None
    join_timeout_s: float | None = None
    step_timeout_s: float | None = None
    tcp: TcpOptions = field(default_factory=TcpOptions)
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
        for name in ("join_timeout", "step_timeout"):
            limit_s = getattr(self, f"{name}_s")
            if limit_s is not None and not limit_s > 0:
                raise LaunchError(f"--{name.replace('_', '-')} must be more than 0 seconds, got {limit_s:g}")
        if self.policy not in (None, "live", "majority"):
            raise LaunchError(f"--policy must be live or majority, got {self.policy!r}")
        self.target.check()
        return self.tcp.check(self.swarm_name)

    @property
    def swarm_name(self) -> str:
        """Those who may meet. Raises LaunchError if the target has no name that the peers of all hosts could have."""
        one_host = not (self.tcp.seeds or self.tcp.bind)
        return self.swarm or self.target.swarm(one_host=one_host)


def peer_environment(config: LaunchConfig, index: int, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of peer `index`: `environ`, and what `p2p.join()` reads."""
    added = {
        "PYTHONUNBUFFERED": "1",
        "SHOAL_LAUNCH_INDEX": str(index),
        "SHOAL_MIN_PEERS": str(config.min_peers or config.num_peers),
        "SHOAL_SWARM": config.swarm_name,
    }
    if config.only:
        added["SHOAL_ONLY"] = config.only
    if config.policy is not None:
        added["SHOAL_POLICY"] = config.policy
    if config.home is not None:
        added["SHOAL_HOME"] = str(config.home.absolute())
    if config.receipts is not None:
        added["SHOAL_RECEIPTS"] = str(config.receipts.absolute())
    if config.join_timeout_s is not None:
        added["SHOAL_JOIN_TIMEOUT"] = str(config.join_timeout_s)
    if config.step_timeout_s is not None:
        added["SHOAL_STEP_TIMEOUT"] = str(config.step_timeout_s)
    # Left to itself, glibc gives the memory of each large frame back to the system, and faults it in again for the
    # next: a tenth of the time of a 16 MB all-reduce.
    memory = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(256 << 20)}
    # Left to itself, torch would give every peer a thread on every core.
    num_threads = max(1, num_usable_cores() // config.num_peers)
    return {**memory, "OMP_NUM_THREADS": str(num_threads), **environ, **added, **config.tcp.to_environment(index)}


def num_usable_cores() -> int:
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
