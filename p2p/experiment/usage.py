"""Whether peers take more and more memory, or files, the longer they run: by what their snapshots say. Pure."""

from collections.abc import Sequence
from statistics import median
from typing import Final, NamedTuple

LEAST: Final = 40
"""Samples of a peer; of one that lived for less it is not known."""
LEAST_OF_SIZE: Final = 5
"""Samples beside as many members: a single one may be of the moment at which another peer comes or goes."""


class Usage(NamedTuple):
    """Of one peer at one moment.

    Attributes:
        time_ns: by the monotonic clock.
        peer: its index.
        num_files: that are open.
        num_members: of its view, with each of which it is connected.
    """

    time_ns: int
    peer: int
    resident_bytes: int
    num_files: int
    num_members: int


def growth(samples: Sequence[Usage]) -> dict[str, float]:
    """From the second quarter of a peer's life to the last one, the most of any peer; empty: nobody lived for so long.

    Memory by the medians, in MB. Files by the least there were, beside as many members.
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
    """By how many members there were, the least files that were open."""
    found: dict[int, list[int]] = {}
    for each in samples:
        found.setdefault(each.num_members, []).append(each.num_files)
    return {size: min(files) for size, files in found.items() if len(files) >= LEAST_OF_SIZE}
