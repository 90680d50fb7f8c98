"""Settings of one peer: meanings, and permitted values."""

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, Self

from collectives import Medium
from gossip import WAN, CoreConfig, Policy

from .device import Device
from .host.arguments import NAME_MAX
from .host.choices import CHOICES
from .host.folders import absolute, default_home
from .host.memory_left import memory_bytes
from .host.naming import NO_NAME
from .host.processes import usable_cores
from .memory.extents import EXTENT_BYTES
from .net.tcp import Network, TcpConfig, TcpOptions, share_cores
from .staging import device_of

LEAST_ARENA_BYTES: Final = 1 << 30
"""Minimum size of an arena whose size was not configured."""

WAN_SEGMENT_BYTES: Final = 256 << 10
"""Segment size of operations between distant hosts: with longer ones, later data wait longer at each hop."""

TCP_NAMES: Final = tuple(field.name for field in fields(TcpOptions))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopConfig:
    """Settings of the loop of one peer."""

    core: CoreConfig = field(default_factory=CoreConfig)
    segment_bytes: int = 1 << 20
    """Maximum payload of a data frame."""
    policy: Policy = Policy.LIVE
    """Policy on deciding the next view, if this peer founds the swarm."""
    arena_bytes: int = 0
    """As in `PeerConfig`."""
    extent_bytes: int = EXTENT_BYTES
    """Size of a part of the arena that is registered with a device: whole pages."""
    device_adds: bool = False
    """Whether devices that can add up do so, if all members share memory. Not by default: never run on a GPU yet."""
    link_check_s: float = 0.05
    """Interval of the checks for lost links."""
    least_shared_bytes: int = 8 << 20
    """A state whose shared part is smaller than this comes from a single donor."""
    member_check_s: float = 1.0
    """Interval at which a waiting joiner checks whether a member is still alive."""
    tcp: TcpConfig | None = None
    """TCP configuration; None: this host only."""
    may_found: bool = True
    """As in `PeerConfig`."""
    since_ns: int = 0
    """As in `PeerConfig`."""
    other_hosts: Mapping[str, str] = field(default_factory=dict)
    """As in `PeerConfig`."""
    restarts: bool = False
    """Whether peers without a seat continue when all members have died."""
    device_of: Callable[[Any], Device] = device_of
    """Returns the device of a tensor."""

    @property
    def medium(self) -> Medium:
        """Medium of its messages; the same for all peers of a swarm."""
        return Medium.WAN if self.tcp is not None and self.tcp.network is Network.WAN else Medium.LAN

    @property
    def operation_segment_bytes(self) -> int:
        """Maximum payload of a frame of an operation; the same for all peers of a swarm."""
        return self.segment_bytes if self.medium is Medium.LAN else min(self.segment_bytes, WAN_SEGMENT_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerConfig:
    """Settings of a peer: how it finds its swarm, how long it waits. For `Peer`; `join` creates one from its arguments.

    Attributes:
        swarm: name of the swarm that this peer joins; one name, one run. 1 to 64 letters, digits, `.`, `_` or `-`.
        home: the registry folder, private to this user.
        min_peers: step 0 waits until this many peers take part. The founder's value counts.
        policy: which members may decide the next view: `live` (more than half, or all survivors, if the others are
            proven dead) or `majority`. The founder's value counts.
        receipts: folder for receipts, and for records of the flight recorder, in `traces/`; None: none are written.
        is_traced: whether the parent process of this peer, such as a launcher, writes these records.
        receipts_full: what to do when receipts cannot be written any more: `warn` (log it once, and continue without)
            or `stop` (it leaves before the next step, which raises `ShoalError`).
        join_timeout_s: for a seat, and for the first `min_peers` peers.
        step_timeout_s: for a step to commit; longer than the slowest member's backward pass.
        leave_timeout_s: for the others to agree on a view without this peer.
        arena_bytes: the most memory of this peer that the others of its host read in place; 0: none, all their data go
            through sockets. None: this peer's part of a quarter of the memory that this machine, and the cgroups around
            this process, leave, or 1 GiB if that is more.
        may_found: whether this peer founds the swarm if there is none; False: it waits for one.
        since_ns: this peer replaces one that has ended, of peers that were started then (nanoseconds since 1970): it
            founds no swarm if a run of the swarm has ended since. 0: it replaces none.
        other_hosts: other hosts with members of the replaced peer's run, each with an address there: this peer founds
            no swarm before all of them have answered that they know of no run.
        only_founds: whether this peer leaves a swarm that had committed a step before it joined.
        script: file name of this peer's script, shown to others on this host.
        program: traits of the script that must be equal on all peers: by name, digest and text; empty: no script.
        may_differ: names of arguments in which this peer may differ from others, or `script`.
        local_index: of this peer among those of `shoal run` on this host; -1: unknown.
        local_peers: number of peers of `shoal run` on this host.
        mixed: treatment of peers that compute other bits, with another processor, torch or optimizer: `resync` (they
            train together, and one slice of the replica is resynchronised in each step) or `refuse`.
        on_all_dead: what peers without a seat do when all members have died: `stop`, or `restart` (the one with the
            newest state founds another lineage with it, and the others join that). With peers on several hosts that
            requires `shoal run`, which tells other hosts of a death. The same on every peer that trains a model.
        slow_peers: what happens to a member whose own part of a step takes `slow_factor` times as long as the others',
            by the committed times of 20 training steps: `name` (the log and `status` name it) or `leave` (that, and it
            leaves, with `TooSlow`). The same on every peer that trains a model.
        slow_factor: above 1.
        resume: folder of the checkpoint to resume from, regardless of others; None: the last one.
        rejoin: whether a peer that was removed from the view (stopped or cut off, say) may return: by itself if it
            trains a model, otherwise when its script calls `wait_view` again.
        tcp: seeds, addresses of this peer for other hosts, and kind of network: `network="wan"` replaces the timers of
            `loop.core`.
        loop: timers and sizes, for tests and experiments: `core`, `segment_bytes`, `least_shared_bytes`,
            `link_check_s`, `member_check_s` and `device_of` of a `p2p.config.LoopConfig`. Its other fields are derived
            from the settings above.

    Raises:
        ValueError: a number or the policy is out of range.
    """

    swarm: str
    home: Path
    min_peers: int = 1
    policy: str = "live"
    receipts: Path | None = None
    is_traced: bool = False
    receipts_full: str = "warn"
    join_timeout_s: float = 600.0
    step_timeout_s: float = 600.0
    leave_timeout_s: float = 5.0
    arena_bytes: int | None = None
    may_found: bool = True
    since_ns: int = 0
    other_hosts: Mapping[str, str] = field(default_factory=dict)
    only_founds: bool = False
    script: str = ""
    program: Mapping[str, tuple[bytes, str]] = field(default_factory=dict)
    may_differ: Sequence[str] = ()
    local_index: int = -1
    local_peers: int = 1
    mixed: str = "resync"
    on_all_dead: str = "stop"
    slow_peers: str = "name"
    slow_factor: float = 2.0
    resume: Path | None = None
    rejoin: bool = True
    tcp: TcpOptions = field(default_factory=TcpOptions)
    loop: LoopConfig = field(default_factory=LoopConfig)

    def __post_init__(self) -> None:
        for name in ("receipts", "resume"):  # even if the script changes its folder later
            if (path := getattr(self, name)) is not None:
                object.__setattr__(self, name, absolute(Path(path)))
        if self.min_peers < 1:
            raise ValueError(f"min_peers must be at least 1, is {self.min_peers}")
        for name, known in CHOICES.items():
            if (given := getattr(self, name)) not in known:
                raise ValueError(f"{name} must be {' or '.join(known)}, is {given!r}")
        if not 1 < self.slow_factor < math.inf:
            raise ValueError(f"slow_factor must be above 1 and finite, is {self.slow_factor}")
        if not all(0 < len(name) <= NAME_MAX for name in self.may_differ):
            raise ValueError(f"may_differ has names of at most {NAME_MAX} characters, is {list(self.may_differ)}")
        if self.arena_bytes is not None and self.arena_bytes < 0:
            raise ValueError(f"arena_bytes must be at least 0, is {self.arena_bytes}")
        for name in ("join_timeout_s", "step_timeout_s", "leave_timeout_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, is {getattr(self, name)}")
            object.__setattr__(self, name, min(getattr(self, name), threading.TIMEOUT_MAX))  # inf: no limit

    def policies(self) -> dict[str, bytes]:
        """The settings that must be equal on all peers of a swarm, as text, by name."""
        return {
            "deaths": f"on_all_dead={self.on_all_dead}".encode(),
            "slow peers": f"slow_peers={self.slow_peers} from {self.slow_factor:g} times the others on".encode(),
        }

    def for_loop(self) -> LoopConfig:
        """The settings for the loop.

        Raises:
            NetworkError, SecurityError: TCP cannot be used like this.
        """
        tcp = self.tcp.check(self.swarm)
        if tcp is not None:
            tcp = share_cores(tcp, len(usable_cores()), self.local_peers)
        return replace(
            self.loop,
            core=self.loop.core if tcp is None or tcp.network is Network.LAN else WAN,
            policy=Policy[self.policy.upper()],
            arena_bytes=default_arena_bytes(self.local_peers) if self.arena_bytes is None else self.arena_bytes,
            may_found=self.may_found,
            since_ns=self.since_ns,
            other_hosts=self.other_hosts,
            restarts=self.on_all_dead == "restart",
            tcp=tcp,
        )

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], **given: Any) -> Self:
        """The settings of `shoal run`; fields in `given`, also those of `tcp`, take precedence.

        Args:
            environ: `os.environ`, say.
            given: fields of this class, or of `TcpOptions`.

        Raises:
            ValueError: a number or the policy is out of range, or no number; or the swarm has no name.
        """
        tcp = {name: given.pop(name) for name in TCP_NAMES if name in given}
        found: dict[str, Any] = {
            "home": default_home(environ),
            "tcp": replace(TcpOptions.from_environment(environ), **tcp),
        }
        if swarm := environ.get("SHOAL_SWARM"):
            found["swarm"] = swarm
        if min_peers := environ.get("SHOAL_MIN_PEERS"):
            found["min_peers"] = _whole("SHOAL_MIN_PEERS", min_peers)
        if arena := environ.get("SHOAL_ARENA"):
            found["arena_bytes"] = _whole("SHOAL_ARENA", arena)
        if receipts := environ.get("SHOAL_RECEIPTS"):
            found["receipts"] = Path(receipts)
        if environ.get("SHOAL_TRACED"):
            found["is_traced"] = True
        for name in ("join_timeout", "step_timeout"):
            if seconds := environ.get(f"SHOAL_{name.upper()}"):
                found[f"{name}_s"] = _number(f"SHOAL_{name.upper()}", seconds, "a number of seconds")
        if place := environ.get("SHOAL_LOCAL_INDEX"):
            found["local_index"] = _whole("SHOAL_LOCAL_INDEX", place)
        if local_peers := environ.get("SHOAL_LOCAL_PEERS"):
            found["local_peers"] = max(1, _whole("SHOAL_LOCAL_PEERS", local_peers))
        if resume := environ.get("SHOAL_RESUME"):
            found["resume"] = Path(resume)
        if since := environ.get("SHOAL_SINCE_NS"):
            found["since_ns"] = _whole("SHOAL_SINCE_NS", since)
        if elsewhere := environ.get("SHOAL_ELSEWHERE"):
            found["other_hosts"] = dict(each.split("@", 1) for each in elsewhere.split(",") if "@" in each)
        only = environ.get("SHOAL_ONLY")
        found |= {"may_found": only != "join", "only_founds": only == "new"}
        found |= {name: word for name in CHOICES if (word := environ.get(f"SHOAL_{name.upper()}"))}
        if slow_factor := environ.get("SHOAL_SLOW_FACTOR"):
            found["slow_factor"] = _number("SHOAL_SLOW_FACTOR", slow_factor, "a number")
        if may_differ := environ.get("SHOAL_MAY_DIFFER"):
            found["may_differ"] = tuple(may_differ.split(","))
        if not swarm and "swarm" not in given:
            raise ValueError(NO_NAME)
        return cls(**(found | given))


def default_arena_bytes(local_peers: int) -> int:
    """Default arena size for each of `local_peers` peers. A limit: memory is allocated only when used."""
    with suppress(OSError):  # no /proc
        return max(LEAST_ARENA_BYTES, memory_bytes() // 4 // local_peers)
    return LEAST_ARENA_BYTES


def _number(name: str, text: str, what: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{name} must be {what}, is {text!r}") from None


def _whole(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{name} must be a whole number, is {text!r}") from None
