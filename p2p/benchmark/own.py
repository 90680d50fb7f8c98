"""Schedules of a user, `--schedule FILE.py:NAME`: read and proven, here and by each peer, before any runs."""

import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from collectives import ALGORITHMS, Schedule, ScheduleError, register_algorithm

from ..errors import LaunchError

Build = Callable[[int, int], Schedule]


def name_of(schedule: str) -> str:
    """What the algorithm of `FILE.py:NAME` is called: `recursive-doubling` of `recursive_doubling`."""
    return schedule.rpartition(":")[2].replace("_", "-")


def resolved(schedule: str) -> str:
    """The same from any folder.

    Raises:
        LaunchError: it is not `FILE.py:NAME`, or there is no such file.
    """
    file, _, name = schedule.rpartition(":")
    if not file.endswith(".py") or not name.isidentifier():
        raise LaunchError(f"--schedule is FILE.py:NAME, of a function of rank and number of peers, got {schedule!r}")
    if not Path(file).is_file():
        raise LaunchError(f"--schedule {schedule}: there is no file {file}")
    return f"{Path(file).absolute()}:{name}"


def register(schedules: Sequence[str], num_peers: int) -> None:
    """Make each an all-reduce of this process, proven for so many peers.

    Args:
        schedules: as `resolved` gives them.
        num_peers: of the run.

    Raises:
        LaunchError: one cannot be read, or is no all-reduce; says which rank lacks which contribution.
    """
    for schedule in schedules:
        name = name_of(schedule)
        if name in ALGORITHMS:
            raise LaunchError(f"--schedule {schedule}: there is an algorithm {name!r} already, give it another name")
        build = _load(schedule)
        try:
            register_algorithm(name, build, [num_peers])
        except ScheduleError as error:
            raise LaunchError(f"--schedule {schedule} is no all-reduce of {num_peers} peers: {error}") from None
        except Exception as error:  # of the user's function: anything, and still one line
            raise LaunchError(
                f"--schedule {schedule} makes no schedules of {num_peers} peers: {_say(error)}"
            ) from error


def _load(schedule: str) -> Build:
    file, _, name = schedule.rpartition(":")
    spec = importlib.util.spec_from_file_location(f"schedules of {file}", file)
    assert spec is not None and spec.loader is not None, "a file that ends with .py"
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # as dataclasses in it need
    if (folder := str(Path(file).parent)) not in sys.path:
        sys.path.append(folder)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # of the user's file: anything, and still one line
        raise LaunchError(f"--schedule {schedule}: the file cannot be imported: {_say(error)}") from error
    build: Build | None = getattr(module, name, None)
    if not callable(build):
        raise LaunchError(f"--schedule {schedule}: the file has no function {name}")
    return build


def _say(error: BaseException) -> str:
    """In one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())
