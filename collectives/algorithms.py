"""The all-reduce algorithms by name, and the default choice."""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from collectives.binary_tree import binary_tree_all_reduce
from collectives.direct import direct_all_reduce
from collectives.halving_doubling import halving_doubling_all_reduce
from collectives.hierarchical import hierarchical_all_reduce
from collectives.one_shot import one_shot_all_reduce
from collectives.ring import ring_all_reduce
from collectives.schedule import Build, Schedule
from collectives.tree import tree_all_reduce

HIERARCHICAL: Final = "hierarchical"
"""The algorithm whose schedule depends on which ranks share a host."""

_BUILDS: Final[dict[str, Build]] = {
    "binary-tree": binary_tree_all_reduce,
    "direct": direct_all_reduce,
    "halving-doubling": halving_doubling_all_reduce,
    HIERARCHICAL: hierarchical_all_reduce,
    "one-shot": one_shot_all_reduce,
    "ring": ring_all_reduce,
    "tree": tree_all_reduce,
}
ALGORITHMS: Final[Mapping[str, Build]] = MappingProxyType(_BUILDS)
"""Built-in algorithms, and those that were registered (registration.py)."""

SHARES: Final = ":"
"""Separates the name of `direct` from the shares of the ranks, as in `direct:1,1,2`."""

_ADDED: Final[dict[str, tuple[str, Callable[[Build, int], None]]]] = {}

_ONE_SHOT_MAX_BYTES: Final = 256 * 1024
_ONE_SHOT_MAX_PAIR_BYTES: Final = 1 << 20
_ONE_SHOT_MAX_FAN_IN_BYTES: Final = 4 * _ONE_SHOT_MAX_BYTES
_RING_MIN_BYTES: Final = 8 << 20


@lru_cache(maxsize=1024)
def all_reduce_schedule(algorithm: str, rank: int, world_size: int, hosts: tuple[int, ...] = ()) -> Schedule:
    """The schedule of `rank`; the same object each time. `hosts`: of each rank, if the algorithm needs it.

    `algorithm` may be `with_shares`.

    Raises:
        ValueError: the algorithm is unknown, or the rank is not in `range(world_size)`.
    """
    if algorithm.startswith(f"direct{SHARES}"):
        shares = [int(each) for each in algorithm.partition(SHARES)[2].split(",") if each.isdecimal()]
        if len(shares) != world_size or not any(shares):
            raise ValueError(f"{algorithm!r} does not say what each of {world_size} ranks owns")
        return direct_all_reduce(rank, world_size, shares)
    if algorithm not in ALGORITHMS:
        raise ValueError(f"unknown algorithm {algorithm!r}, choose from {', '.join(ALGORITHMS)}")
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} is not in range({world_size})")
    if algorithm in _ADDED:
        _prove(algorithm, world_size)
    if algorithm == HIERARCHICAL:
        return hierarchical_all_reduce(rank, world_size, hosts)
    return ALGORITHMS[algorithm](rank, world_size)


def with_shares(shares: Sequence[int]) -> str:
    """The name of `direct` with these shares of the ranks, in any common unit."""
    return f"direct{SHARES}{','.join(map(str, shares))}"


def add_algorithm(name: str, build: Build, digest: str, prove: Callable[[Build, int], None]) -> None:
    """Add an algorithm, with the digest of its schedules, and a function that proves it for a number of ranks."""
    _BUILDS[name], _ADDED[name] = build, (digest, prove)


def distinct_name(algorithm: str) -> str:
    """The name; for a registered algorithm with the digest of its schedules."""
    return f"{algorithm} {_ADDED[algorithm][0]}" if algorithm in _ADDED else algorithm


@lru_cache(maxsize=1024)
def _prove(algorithm: str, world_size: int) -> None:
    _ADDED[algorithm][1](_BUILDS[algorithm], world_size)


class Medium(Enum):
    """The medium of an operation, as known without measuring: the same for all ranks."""

    MEMORY = auto()
    """Memory of one host, which all ranks share."""
    LAN = auto()
    WAN = auto()


def choose_algorithm(size_bytes: int, world_size: int, medium: Medium = Medium.LAN) -> str:
    """The algorithm for a bucket of this size: a fixed rule, until measured links decide.

    Small buckets take one hop (`one-shot`), larger ones two hops with the fewest bytes (`direct`). What all ranks
    together send to one of them is bounded, too, so the limit of 256 KiB falls with more than 4 ranks. With two ranks
    both algorithms send the same bytes, and only the doubled additions speak against `one-shot`, from 1 MiB on. Over
    slow links a ring is faster once its bytes take longer than its hops: only one rank at a time sends into a link. The
    result depends only on the arguments, so that all ranks choose alike.
    """
    most = min(_ONE_SHOT_MAX_BYTES, _ONE_SHOT_MAX_FAN_IN_BYTES // world_size)
    if size_bytes <= (_ONE_SHOT_MAX_PAIR_BYTES if world_size == 2 else most):
        return "one-shot"
    return "ring" if medium is Medium.WAN and size_bytes >= _RING_MIN_BYTES else "direct"
