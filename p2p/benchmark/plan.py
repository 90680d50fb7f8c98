"""The plan of a benchmark: checked in full before anything starts, and passed to every worker as one line of JSON."""

import difflib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Self

from p2p.errors import LaunchError
from p2p.netlab.config import LabConfig
from p2p.netlab.units import parse_share

from .own import name_of, rates_of
from .roles import ALL_REDUCE, BARRIER, BARRIER_BYTES, CALLED, CUT, IN_PLACE, OPERATIONS, algorithms_of

BY_SIZE: Final = "auto"
"""Let shoal choose the algorithm."""

IN_ARENA: Final = "arena"
"""Input arrays are in the arena, which all peers of the host can read; the result goes into another array."""
SOCKETS: Final = "sockets"
"""Peers share no memory."""
TCP: Final = "tcp"
"""As between hosts, without a key."""
CURVE: Final = "curve"
"""As between hosts, with a key: everything is encrypted."""
OTHER_HOSTS: Final = (TCP, CURVE)
WITHOUT_MEMORY: Final = (SOCKETS, *OTHER_HOSTS)
"""Ways in which peers share no memory."""
ADDS: Final = "adds"
"""The device computes sums where it is faster than the host."""
OWN_SWARM: Final = (*WITHOUT_MEMORY, ADDS)
"""Ways that need a second swarm of the same peers."""
EARLY: Final = "early"
"""The result is returned when it is complete on this rank, as other libraries do, and committed with what follows."""
WAYS: Final = ("", IN_ARENA, EARLY, *OWN_SWARM)
"""Ways to carry an operation out; `""`: arrays are in any memory, and the committed result replaces them."""
BASELINES: Final = ("gloo",)
CPU: Final = "cpu"
CUDA: Final = "cuda"
DEVICES: Final = (CPU, CUDA)
"""Devices that hold the arrays."""
ITEM_BYTES: Final[Mapping[str, int]] = {
    "float32": 4,
    "float64": 8,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "int64": 8,
}
"""Bytes of an element, by type."""
LEAST_BYTES: Final = 4
DEFAULT_ITERS: Final = 50
UNTIL_DURATION_S: Final = 120.0
"""Limit of `--until` if `--duration` is not given."""

WAN_DELAY_NS: Final = 5_000_000
"""From this delay on, peers use the timeouts of a WAN."""

HOST: Final = "SHOAL_BENCH_HOST"
"""Environment variable: the lab host that a worker is on."""

COUNTS: Final = ("num_peers", "num_iters", "num_warmup", "root", "per_host")
PEERS_MAX: Final = 64
ALL_TO_ALL_MAX: Final = 16
"""Most peers of an all-to-all: each pair has a chunk of its own, and a program has at most 256."""

_SIZE: Final = re.compile(r"(\d{1,12})([KMG]?)", re.IGNORECASE)
_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A benchmark: every peer runs the operation with every contender and size, in rounds.

    Attributes:
        algorithms: names from those of the operation and `BY_SIZE`, alone or with `@` and one of `WAYS`; each once.
        baseline: one of `BASELINES`; None: no other library takes part.
        sizes_bytes: array sizes, in rising order; where the operation cuts the array, all parts together.
        num_iters: timed rounds of each size; None: as many as there is time for.
        num_warmup: untimed rounds before those.
        dtype: a key of `ITEM_BYTES`.
        net: links of a network lab, as in `shoal lab --net`; None: all peers are on this host.
        per_host: peers on each host of the lab.
        turns: socket path at which another run takes turns with this one (turns.py); None: the run is alone.
        duration_s: time limit of the rounds; None: `num_iters` ends the run.
        until: rounds end earlier if the interval of the crossing of the first two algorithms is that narrow, relative
            to the crossing.
        operation: one of `OPERATIONS`.
        root: the rank that sends or receives everything, if the operation has one.
        swarm: name of the swarm whose peers measure the plan; None: peers are started for it.
        device: one of `DEVICES`.
        schedules: the user's schedules, as returned by `own.resolved`; algorithms like others.
        slowed: contenders that are slowed down by this share, 0.1 for 10 %, to test whether that is detected.
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
    operation: str = ALL_REDUCE
    root: int = 0
    swarm: str | None = None
    slowed: Mapping[str, float] = field(default_factory=dict)
    per_host: int = 1
    turns: str | None = None
    device: str = CPU
    schedules: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.num_peers <= PEERS_MAX:
            raise LaunchError(f"-n is the number of peers and must be 1 to {PEERS_MAX}, got {self.num_peers}")
        if self.operation not in OPERATIONS:
            raise LaunchError(f"there is no operation {self.operation!r}{meant(self.operation, OPERATIONS)}")
        own = map(name_of, self.schedules)
        choices = (*dict.fromkeys((*algorithms_of(self.operation), *own)), BY_SIZE)
        ways = ways_of(self.operation)
        for name in self.algorithms:
            algorithm, _, way = name.partition("@")
            is_for_rates = self.operation == ALL_REDUCE and self.swarm is None and way in ("", EARLY)
            if is_for_rates and rates_of(algorithm, self.num_peers) is not None:
                continue
            if algorithm not in choices or way not in ways:
                of = f"{', '.join(choices)}, each alone or with @{' or @'.join(ways[1:])}"
                hint = meant(name, [each + (at and f"@{at}") for each in choices for at in ways])
                raise LaunchError(f"--algos of {self.operation} names algorithms of {of}, got {name!r}{hint}")
        if not 0 <= self.root < self.num_peers:
            raise LaunchError(f"--root is a rank, 0 to {self.num_peers - 1}, got {self.root}")
        if len(set(self.algorithms)) < len(self.algorithms):
            raise LaunchError(f"--algos names each algorithm once, got {', '.join(self.algorithms)}")
        if self.baseline is not None and self.baseline not in BASELINES:
            why = (
                ": MPI starts its own processes (mpirun), and none of them is a peer" if self.baseline == "mpi" else ""
            )
            raise LaunchError(f"--baseline is {' or '.join(BASELINES)}, got {self.baseline!r}{why}")
        self._check_arrays()
        self._check_device()
        self._check_rounds()
        if self.net is not None:
            if others := [name for name in self.algorithms if name.partition("@")[2] not in ("", EARLY)]:
                raise LaunchError(
                    f"--net has other hosts, so {', '.join(others)} cannot be measured: leave out what follows @"
                )
            LabConfig.uniform(self.num_hosts, self.net)
        if self.per_host < 1 or self.num_peers % self.per_host or (self.net is None and self.per_host > 1):
            raise LaunchError(
                f"--per-host is how many of the {self.num_peers} peers are on each host of --net: a divisor of that, "
                f"and nothing without --net, got {self.per_host}"
            )

    def _check_arrays(self) -> None:
        if self.dtype not in ITEM_BYTES:
            raise LaunchError(f"--dtype is {', '.join(ITEM_BYTES)}, got {self.dtype!r}")
        item_bytes = ITEM_BYTES[self.dtype]
        if odd := [size for size in self.sizes_bytes if size % item_bytes]:
            raise LaunchError(f"a size is a multiple of {item_bytes} bytes ({self.dtype}), got {odd[0]} bytes")
        if self.operation in CUT and (
            odd := [size for size in self.sizes_bytes if size % (item_bytes * self.num_peers)]
        ):
            what = f"{item_bytes * self.num_peers} bytes ({self.num_peers} parts of {self.dtype})"
            raise LaunchError(f"a size of {self.operation} is a multiple of {what}, got {odd[0]} bytes")
        if self.operation == "all-to-all" and self.num_peers > ALL_TO_ALL_MAX and self.net is None:
            raise LaunchError(f"all-to-all over shared memory is for {ALL_TO_ALL_MAX} peers at most: take --net")

    def _check_device(self) -> None:
        if self.device not in DEVICES:
            numbered = self.device.startswith(f"{CUDA}:")
            hint = "; CUDA_VISIBLE_DEVICES says which GPUs" if numbered else meant(self.device, DEVICES)
            raise LaunchError(f"--device is {' or '.join(DEVICES)}, got {self.device!r}{hint}")
        if self.device == CPU:
            if adding := [name for name in self.algorithms if name.partition("@")[2] == ADDS]:
                raise LaunchError(f"@{ADDS} sums on a device: {', '.join(adding)} needs --device {CUDA}")
            return
        if self.operation != ALL_REDUCE:
            raise LaunchError(f"--device {self.device} is for {ALL_REDUCE}, got {self.operation}: leave --device out")
        if held := [name for name in self.algorithms if name.partition("@")[2] == IN_ARENA]:
            raise LaunchError(
                f"--device {self.device} has no tensors in an arena, which is memory of the host, so "
                f"{', '.join(held)} cannot be measured: leave out @{IN_ARENA}"
            )

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
        if self.turns is not None and self.swarm is not None:
            raise LaunchError("--turns is for runs whose peers are started for them: leave out --swarm")

    @property
    def num_hosts(self) -> int:
        """Hosts of the lab."""
        return max(1, self.num_peers // max(1, self.per_host))

    @property
    def contenders(self) -> tuple[str, ...]:
        """The algorithms, then the baseline."""
        return self.algorithms if self.baseline is None else (*self.algorithms, self.baseline)

    @property
    def shared(self) -> dict[str, Any]:
        """The fields that must be equal in another run that takes turns with this one, as JSON values."""
        left_out = ("turns", "slowed", "schedules")
        return {name: value for name, value in json.loads(self.to_json()).items() if name not in left_out}

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Parse and check a plan.

        Raises:
            TypeError, KeyError, ValueError: `text` is not a plan.
            LaunchError: the plan cannot be carried out.
        """
        fields = json.loads(text)
        for name in ("algorithms", "sizes_bytes", "schedules"):
            fields[name] = tuple(fields.get(name, ()))
        counts = [*fields["sizes_bytes"], *(fields[name] for name in COUNTS if name in fields)]
        if odd := [each for each in counts if type(each) is not int and each is not None]:
            raise TypeError(f"a plan has whole numbers, got {odd[0]!r}")
        return cls(**fields)


def is_wide(lab: LabConfig) -> bool:
    """Whether peers of the lab use the timeouts of a WAN."""
    return any(pair.delay_ns >= WAN_DELAY_NS for pair in lab.pairs.values())


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


def sizes_of_buckets(buckets: Iterable[int], dtype: str = "float32") -> tuple[int, ...]:
    """The distinct bucket sizes, rounded down to whole elements, in rising order."""
    unit = ITEM_BYTES.get(dtype, LEAST_BYTES)
    return tuple(sorted({max(size - size % unit, unit) for size in buckets}))


def whole_sizes(operation: str, sizes_bytes: Iterable[int], num_peers: int, dtype: str = "float32") -> tuple[int, ...]:
    """The sizes; where the operation cuts arrays, rounded down to equal parts of whole elements.

    Raises:
        LaunchError: one is less than one element for each peer.
    """
    if operation == BARRIER:
        return (BARRIER_BYTES,)
    unit = ITEM_BYTES.get(dtype, LEAST_BYTES) * (num_peers if operation in CUT else 1)
    if too_small := [size for size in sizes_bytes if operation in CUT and size < unit]:
        raise LaunchError(f"{operation} cuts a size into {num_peers} parts: at least {unit} bytes, got {too_small[0]}")
    return tuple(dict.fromkeys(size - size % unit if operation in CUT else size for size in sizes_bytes))


def ways_of(operation: str) -> tuple[str, ...]:
    """The `WAYS` that an operation supports: `IN_ARENA` needs `out`, `EARLY` needs `commit`."""
    left_out = [IN_ARENA] * (operation not in IN_PLACE) + [ADDS] * (operation != ALL_REDUCE)
    left_out += [EARLY] * (operation not in CALLED or operation == BARRIER)
    return tuple(way for way in WAYS if way not in left_out)


def meant(word: str, known: Sequence[str]) -> str:
    """A suggestion for a misspelt word, as the end of a sentence."""
    close = difflib.get_close_matches(word, known, 1, 0.5)
    return f"; did you mean {close[0]}?" if close else ""


def split_names(text: str) -> tuple[str, ...]:
    """The names in a comma-separated list."""
    return tuple(name.strip() for name in text.split(","))


def rounds_wanted(
    iters: int | None, duration_s: float | None, until: str | None
) -> tuple[int | None, float | None, float | None]:
    """`num_iters`, `duration_s` and `until` of a plan: a number of rounds, or a time and optionally a limit of rounds.

    Raises:
        LabError: `until` is not a share.
    """
    if until is not None:
        return iters, UNTIL_DURATION_S if duration_s is None else duration_s, parse_share("--until", until)
    return DEFAULT_ITERS if iters is None and duration_s is None else iters, duration_s, None
