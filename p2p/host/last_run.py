"""Whether the last run of a swarm has ended, and when.

A swarm's lock file outlives its runs. The last member that leaves writes into it, so the file's time is that of the end
of the run; the first member of the next run empties it.
"""

from contextlib import suppress
from pathlib import Path
from typing import Final

ENDED: Final = "the last run of this swarm has ended\n"
CUT_OFF: Final = "the last run of this swarm was ended: its last peer left by an error, or by a signal\n"
JUST_NOW_S: Final = 60.0


def mark_ended(lock: Path, *, is_well: bool) -> None:
    """The run of the swarm with this lock file is over. On a full disk nobody will know."""
    with suppress(OSError):
        lock.write_text(ENDED if is_well else CUT_OFF)


def mark_begun(lock: Path) -> None:
    """There is another run. On a full disk it looks as if there were none once all of its peers are gone."""
    with suppress(OSError):
        if ended_at_ns(lock) is not None:
            lock.write_text("")


def ended_at_ns(lock: Path) -> int | None:
    """The time of day, in nanoseconds, at which the last run ended; None: there was none, or it has not."""
    try:
        status = lock.stat()
    except FileNotFoundError:
        return None
    return status.st_mtime_ns if status.st_size else None


def has_ended_well_since(lock: Path, time_ns: int) -> bool:
    """Whether the last run has come to its end since that time of day, by the script of whoever left last."""
    ended_ns = ended_at_ns(lock)
    return ended_ns is not None and ended_ns >= time_ns and lock.read_text(errors="replace") == ENDED
