"""Algorithms that a plan adds: schedules of a user, and `direct` with shares for lines that are given.

`--schedule FILE.py:NAME` is loaded and proven, here and by each peer, before anything runs. `direct/50/100/100/200`
names the rates of the peers' lines, in any common unit, in the order of the peers' numbers. Ranks may have another
order, so this algorithm is registered once the ranks are known.
"""

import importlib.util
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from collectives import ALGORITHMS, Schedule, ScheduleError, register_algorithm
from collectives.direct import direct_all_reduce, direct_shares

from ..errors import LaunchError

Build = Callable[[int, int], Schedule]


def name_of(schedule: str) -> str:
    """The algorithm's name for `FILE.py:NAME`: `recursive-doubling` for `recursive_doubling`."""
    return schedule.rpartition(":")[2].replace("_", "-")


def resolved(schedule: str) -> str:
    """`FILE.py:NAME` with an absolute path.

    Raises:
        LaunchError: `schedule` is not `FILE.py:NAME`, or there is no such file.
    """
    file, _, name = schedule.rpartition(":")
    if not file.endswith(".py") or not name.isidentifier():
        raise LaunchError(f"--schedule is FILE.py:NAME, of a function of rank and number of peers, got {schedule!r}")
    if not Path(file).is_file():
        raise LaunchError(f"--schedule {schedule}: there is no file {file}")
    return f"{Path(file).absolute()}:{name}"


def register(schedules: Sequence[str], num_peers: int) -> None:
    """Register each schedule as an all-reduce of this process, proven for `num_peers` peers.

    Args:
        schedules: as returned by `resolved`.
        num_peers: of the run.

    Raises:
        LaunchError: a schedule cannot be loaded, or is no all-reduce; names the rank and the missing contribution.
    """
    for schedule in schedules:
        name = name_of(schedule)
        if name in ALGORITHMS:
            raise LaunchError(f"--schedule {schedule}: there is an algorithm {name!r} already, give it another name")
        build = _load(schedule)
        try:
            register_algorithm(name, build, [num_peers])
        except ScheduleError as error:
            raise LaunchError(f"--schedule {schedule} is not an all-reduce of {num_peers} peers: {error}") from None
        except Exception as error:  # the user's function may raise anything; one line reports it
            raise LaunchError(
                f"--schedule {schedule} makes no schedules of {num_peers} peers: {_say(error)}"
            ) from error


def rates_of(algorithm: str, num_peers: int) -> tuple[int, ...] | None:
    """Rates of the peers' lines that the algorithm's name contains, in order; None: it contains none.

    Raises:
        LaunchError: the rates are not positive integers, one for each peer.
    """
    name, *rates = algorithm.split("/")
    if name != "direct" or not rates:
        return None
    if len(rates) != num_peers or not all(each.isdecimal() and int(each) for each in rates):
        raise LaunchError(
            f"{algorithm!r} has to have the rate of the line of each of {num_peers} peers, as direct/50/100 of two"
        )
    return tuple(map(int, rates))


def register_for_rates(algorithms: Sequence[str], numbers: Sequence[int]) -> None:
    """Register each algorithm that names rates as an all-reduce of this process. `numbers`: each rank's peer number."""
    for name in dict.fromkeys(each.partition("@")[0] for each in algorithms):
        rates = rates_of(name, len(numbers))
        if rates is not None and name not in ALGORITHMS:
            shares = direct_shares([rates[number] for number in numbers])
            build = partial(_direct_with, shares)
            register_algorithm(name, build, [len(numbers)])


def _direct_with(shares: Sequence[int], rank: int, world_size: int) -> Schedule:
    return direct_all_reduce(rank, world_size, shares)


def _load(schedule: str) -> Build:
    file, _, name = schedule.rpartition(":")
    spec = importlib.util.spec_from_file_location(f"schedules of {file}", file)
    assert spec is not None and spec.loader is not None, "a file that ends with .py"
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses in the file need it
    if (folder := str(Path(file).parent)) not in sys.path:
        sys.path.append(folder)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # the user's file may raise anything; one line reports it
        raise LaunchError(f"--schedule {schedule}: the file cannot be imported: {_say(error)}") from error
    build: Build | None = getattr(module, name, None)
    if not callable(build):
        raise LaunchError(f"--schedule {schedule}: the file has no function {name}")
    return build


def _say(error: BaseException) -> str:
    """The error in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())
