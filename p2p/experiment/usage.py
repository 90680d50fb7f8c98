"""Growth of the memory and the open files of peers over a run, from their snapshots. Pure."""

from collections.abc import Sequence
from statistics import median
from typing import Final, NamedTuple

LEAST: Final = 40
"""Samples of a peer that are needed; the growth of a peer with fewer is unknown."""
LEAST_OF_SIZE: Final = 5
"""Samples needed per number of members: a single one may fall into the moment at which another peer joins or ends."""


class Usage(NamedTuple):
    """A sample of one peer.

    Attributes:
        time_ns: by the monotonic clock.
        peer: its index.
        num_files: open files.
        num_members: of its view; the peer has a connection to each.
    """

    time_ns: int
    peer: int
    resident_bytes: int
    num_files: int
    num_members: int


def growth(samples: Sequence[Usage]) -> dict[str, float]:
    """The largest growth of any peer from the second to the last quarter of its life; empty: too few samples.

    Memory is compared by medians, in MB; open files by minima, for equal numbers of members.
    """
    memory, files = list[float](), list[int]()
    for peer in sorted({each.peer for each in samples}):
        own = sorted(each for each in samples if each.peer == peer)
        if len(own) < LEAST:
            continue
        early, late = own[len(own) // 4 : len(own) // 2], own[3 * len(own) // 4 :]
        memory.append(
            (median(each.resident_bytes for each in late) - median(each.resident_bytes for each in early)) / 1e6
        )
        before, after = _least_files(early), _least_files(late)
        files += [after[size] - before[size] for size in before.keys() & after.keys()]
    found = {"memory_growth_mb_max": round(max(memory), 3)} if memory else {}
    return found | ({"files_growth_max": float(max(files))} if files else {})


def _least_files(samples: Sequence[Usage]) -> dict[int, int]:
    """The minimum of open files, by number of members."""
    found: dict[int, list[int]] = {}
    for each in samples:
        found.setdefault(each.num_members, []).append(each.num_files)
    return {size: min(files) for size, files in found.items() if len(files) >= LEAST_OF_SIZE}
