"""The endings of peers: in words, as a table, and as the exit code of the run."""

import signal
from collections.abc import Iterable, Sequence
from io import StringIO
from typing import Final

from .peer_slots import ExitOutcome, PeerSlot

WIDTH: Final = 100


def names(places: Iterable[PeerSlot]) -> str:
    return "peer " + ", ".join(place.name for place in places)


def what_became_of(place: PeerSlot, pid: int, others: Sequence[PeerSlot], what_next: str) -> str:
    """The end of the last peer in `place`, process `pid`, in words; `what_next`: whether it is replaced."""
    assert place.exit_outcome is not None
    num_left = sum(other.child is not None for other in others)
    num_completed = sum(other.exit_outcome is not None and other.exit_outcome.has_completed for other in others)
    at = f" at step {place.step}" if place.step >= 0 else ""
    rest = f"{num_left or 'none'} left here" + (f", {num_completed} completed" if num_completed else "")
    return f"peer {place.name} (pid {pid}) {place.exit_outcome.words}{at}; {rest}" + (
        f"; {what_next}" if what_next else ""
    )


def run_exit_code(endings: Sequence[ExitOutcome], ended_by: int | None) -> int:
    """The exit code of a run, from the last ending in each place; `ended_by`: a signal that asked all to leave.

    128 + N after signal N, except SIGTERM; else 0 if all have completed, or left as intended; 3 if the only failures
    are removals; 1 otherwise.
    """
    if ended_by is not None and ended_by != signal.SIGTERM:
        return 128 + ended_by
    return min((ending.exit_code for ending in endings if ending.exit_code), default=0)


def table(places: Iterable[PeerSlot]) -> str:
    """A table of the endings and contributions of all peers."""
    from rich.console import Console
    from rich.table import Table

    table = Table("peer", "how it ended", box=None)
    table.add_column("steps", justify="right")
    table.add_column("samples", justify="right")
    for place in places:
        words = "" if place.exit_outcome is None else place.exit_outcome.words
        again = f" (started again {place.num_restarts}x)" if place.num_restarts else ""
        table.add_row(place.name, words + again, str(place.steps), str(place.samples))
    console = Console(file=StringIO(), width=WIDTH, color_system=None)
    console.print(table)
    assert isinstance(console.file, StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()) + "\n"
