"""What is to be measured: checked in full before anything starts, and handed to every worker as one line of JSON."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Final, Self

from collectives import ALGORITHMS
from p2p.errors import LaunchError
from p2p.netlab.config import LabConfig
from p2p.netlab.units import parse_share

BY_SIZE: Final = "auto"
"""Let shoal choose the algorithm."""

CHOICES: Final = (*ALGORITHMS, BY_SIZE)
IN_ARENA: Final = "arena"
"""The arrays lie in memory that all peers of the host read, and the result goes into another one."""
SOCKETS: Final = "sockets"
"""No memory is shared."""
TCP: Final = "tcp"
"""As between hosts, without a key."""
CURVE: Final = "curve"
"""As between hosts, with a key: everything is encrypted."""
OTHER_HOSTS: Final = (TCP, CURVE)
OWN_SWARM: Final = (SOCKETS, *OTHER_HOSTS)
"""Ways for which peers meet a second time, without memory to share."""
EARLY: Final = "early"
"""The result is handed out when it is complete here, as other libraries do it, and committed with what comes next."""
WAYS: Final = ("", IN_ARENA, EARLY, *OWN_SWARM)
"""How the bytes travel; without a word, arrays lie anywhere and are replaced by the result when it is committed."""
BASELINES: Final = ("gloo",)
ITEM_BYTES: Final[Mapping[str, int]] = {"float32": 4, "float64": 8, "float16": 2, "int32": 4, "int64": 8}
"""By type of the elements."""
LEAST_BYTES: Final = 4
DEFAULT_ITERS: Final = 50
UNTIL_DURATION_S: Final = 120.0
"""`--until` gives up then, if nothing else is said."""

PEERS_MAX: Final = 64

_SIZE: Final = re.compile(r"(\d{1,12})([KMG]?)", re.IGNORECASE)
_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Every contender sums arrays of every size on every peer, in rounds, until there are enough.

    Attributes:
        algorithms: of `CHOICES`, alone or with `@` and one of `WAYS`; each once.
        baseline: of `BASELINES`; None: nobody else takes part.
        sizes_bytes: of the arrays, in rising order.
        num_iters: timed rounds of each size; None: as many as there is time for.
        num_warmup: rounds before them.
        dtype: of `ITEM_BYTES`.
        net: of a network lab with a host for each peer, as of `shoal lab --net`; None: all are on this host.
        duration_s: rounds go on for so long; None: `num_iters` says when it is over.
        until: they end before that if the crossing of the first two algorithms is known so well: the width of its
            interval over itself.
        slowed: contenders that take so much longer than they need, 0.1 for 10 %, to see whether that is found.
    """

    num_peers: int
    algorithms: tuple[str, ...]
    baseline: str | None
    sizes_bytes: tuple[int, ...]
    num_iters: int | None
    num_warmup: int
    dtype: str = "float32"
    net: str | None = None
    duration_s: float | None = None
    until: float | None = None
    slowed: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 1 <= self.num_peers <= PEERS_MAX:
            raise LaunchError(f"-n is the number of peers and must be 1 to {PEERS_MAX}, got {self.num_peers}")
        for name in self.algorithms:
            algorithm, _, way = name.partition("@")
            if algorithm not in CHOICES or way not in WAYS:
                choices = f"{', '.join(CHOICES)}, each alone or with @{' or @'.join(WAYS[1:])}"
                raise LaunchError(f"--algos names algorithms of {choices}, got {name!r}")
        if len(set(self.algorithms)) < len(self.algorithms):
            raise LaunchError(f"--algos names each algorithm once, got {', '.join(self.algorithms)}")
        if self.baseline is not None and self.baseline not in BASELINES:
            why = (
                ": MPI starts its own processes (mpirun), and none of them is a peer" if self.baseline == "mpi" else ""
            )
            raise LaunchError(f"--baseline is {' or '.join(BASELINES)}, got {self.baseline!r}{why}")
        self._check_arrays()
        self._check_rounds()
        if self.net is not None:
            if others := [name for name in self.algorithms if name.partition("@")[2] not in ("", EARLY)]:
                raise LaunchError(
                    f"--net has a host for each peer, so {', '.join(others)} cannot be: leave out what follows @"
                )
            LabConfig.uniform(self.num_peers, self.net)

    def _check_arrays(self) -> None:
        if self.dtype not in ITEM_BYTES:
            raise LaunchError(f"--dtype is {', '.join(ITEM_BYTES)}, got {self.dtype!r}")
        item_bytes = ITEM_BYTES[self.dtype]
        if odd := [size for size in self.sizes_bytes if size % item_bytes]:
            raise LaunchError(f"a size is a multiple of {item_bytes} bytes ({self.dtype}), got {odd[0]} bytes")

    def _check_rounds(self) -> None:
        if self.num_warmup < 0 or (self.num_iters is not None and self.num_iters < 1):
            raise LaunchError(
                f"--iters must be at least 1 and --warmup at least 0, got {self.num_iters} and {self.num_warmup}"
            )
        if self.duration_s is not None and not 0 < self.duration_s < math.inf:
            raise LaunchError(f"--duration is a number of seconds above 0, got {self.duration_s:g}")
        if self.num_iters is None and self.duration_s is None:
            raise LaunchError("a number of rounds is needed, or a time")
        if self.until is not None and (self.until <= 0 or len(self.algorithms) < 2 or len(self.sizes_bytes) < 2):
            raise LaunchError(
                "--until is how narrow, above 0 %, the crossing of the first two of --algos is to be known: it needs "
                "two algorithms, and two sizes"
            )

    @property
    def contenders(self) -> tuple[str, ...]:
        """Ours, then the baseline."""
        return self.algorithms if self.baseline is None else (*self.algorithms, self.baseline)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        fields = json.loads(text)
        for name in ("algorithms", "sizes_bytes"):
            fields[name] = tuple(fields[name])
        return cls(**fields)


def parse_size(text: str) -> int:
    """Bytes of `4K`, `1M` or `256`; K, M and G are powers of 1024.

    Raises:
        LaunchError: no such size, or no multiple of 4.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise LaunchError(f"a size is a number of bytes, or one with K, M or G, such as 4K or 1M, got {text!r}")
    size_bytes = int(match[1]) * _UNITS[match[2].upper()]
    if size_bytes < LEAST_BYTES or size_bytes % LEAST_BYTES:
        raise LaunchError(f"a size is a positive multiple of {LEAST_BYTES} bytes, got {text!r}")
    return size_bytes


def format_size(size_bytes: int) -> str:
    """The shortest text that `parse_size` reads as `size_bytes`."""
    unit, factor = next((u, f) for u, f in reversed(_UNITS.items()) if size_bytes % f == 0 and size_bytes >= f)
    return f"{size_bytes // factor}{unit}"


def sizes_between(first: int, last: int, factor: int) -> tuple[int, ...]:
    """`first`, and each further size that is `factor` times the one before, up to `last`.

    Raises:
        LaunchError: there is none, or the sizes would not grow.
    """
    if factor < 2:
        raise LaunchError(f"-f is the factor from size to size and must be at least 2, got {factor}")
    if first > last:
        raise LaunchError(f"-b must not exceed -e, got {format_size(first)} and {format_size(last)}")
    sizes = [first]
    while sizes[-1] * factor <= last:
        sizes.append(sizes[-1] * factor)
    return tuple(sizes)


def split_names(text: str) -> tuple[str, ...]:
    """The names in a list with commas."""
    return tuple(name.strip() for name in text.split(","))


def rounds_wanted(
    iters: int | None, duration_s: float | None, until: str | None
) -> tuple[int | None, float | None, float | None]:
    """`num_iters`, `duration_s` and `until` of a plan: rounds alone, or a time, with rounds as the most.

    Raises:
        LabError: `until` is no share.
    """
    if until is not None:
        return iters, UNTIL_DURATION_S if duration_s is None else duration_s, parse_share("--until", until)
    return DEFAULT_ITERS if iters is None and duration_s is None else iters, duration_s, None
