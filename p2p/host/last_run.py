"""The end of a swarm's last run: whether and when it happened.

A swarm's lock file outlives its runs. The last member that leaves writes to it, so the file's time is the end of the
run; the first member of the next run empties it.
"""

from contextlib import suppress
from pathlib import Path
from typing import Final

ENDED: Final = "the last run of this swarm has ended\n"
CUT_OFF: Final = "the last run of this swarm was ended: its last peer left by an error, or by a signal\n"
JUST_NOW_S: Final = 60.0


def mark_ended(lock: Path, *, is_well: bool) -> None:
    """Record the end of a run in the swarm's lock file. Has no effect on a full disk."""
    with suppress(OSError):
        lock.write_text(ENDED if is_well else CUT_OFF)


def mark_begun(lock: Path) -> None:
    """Record the start of a run. On a full disk this fails silently: the run appears ended once its peers are gone."""
    with suppress(OSError):
        if ended_at_ns(lock) is not None:
            lock.write_text("")


def ended_at_ns(lock: Path) -> int | None:
    """Wall-clock time, in nanoseconds, at which the last run ended; None: no run yet, or it has not ended."""
    try:
        status = lock.stat()
    except FileNotFoundError:
        return None
    return status.st_mtime_ns if status.st_size else None


def has_ended_well_since(lock: Path, time_ns: int) -> bool:
    """Whether the last run ended after `time_ns`, because the script of the last member came to its end."""
    ended_ns = ended_at_ns(lock)
    return ended_ns is not None and ended_ns >= time_ns and lock.read_text(errors="replace") == ENDED
