"""What `shoal run` starts, and the environment that each peer is given."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import LaunchError
from ..net.tcp import TcpConfig, TcpOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchConfig:
    """What to start, and how often.

    Attributes:
        policy: `live` or `majority`; None: as for `p2p.join`.
        min_peers: the swarm's first step waits for this many; None: for `num_peers`.
        home: the registry folder; None: `registry.default_home`.
        receipts: folder for the peers' receipts; None: they write none.
        tcp: how other hosts reach the peers; peer i listens at ports 2 i and 2 i + 1 beyond the one in `bind`.
        grace_s: a peer that was asked to leave is killed after this.
    """

    script: Path
    args: tuple[str, ...] = ()
    num_peers: int
    swarm: str = "default"
    home: Path | None = None
    min_peers: int | None = None
    policy: str | None = None
    receipts: Path | None = None
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
        if self.policy not in (None, "live", "majority"):
            raise LaunchError(f"--policy must be live or majority, got {self.policy!r}")
        if not self.script.is_file():
            what = "is not a file" if self.script.exists() else "does not exist"
            raise LaunchError(f"the script {self.script} {what}")
        return self.tcp.check(self.swarm)


def peer_environment(config: LaunchConfig, index: int, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of peer `index`: `environ`, and what `p2p.join()` reads."""
    added = {
        "PYTHONUNBUFFERED": "1",
        "SHOAL_LAUNCH_INDEX": str(index),
        "SHOAL_MIN_PEERS": str(config.min_peers or config.num_peers),
        "SHOAL_SWARM": config.swarm,
    }
    if config.policy is not None:
        added["SHOAL_POLICY"] = config.policy
    if config.home is not None:
        added["SHOAL_HOME"] = str(config.home.absolute())
    if config.receipts is not None:
        added["SHOAL_RECEIPTS"] = str(config.receipts.absolute())
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
