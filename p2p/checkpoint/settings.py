"""The settings of a script for its checkpoints."""

import os
from dataclasses import dataclass, field
from pathlib import Path

from ..given import check_whole
from ..host.folders import absolute


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where and how often `DataParallel` writes the state of the run, and which checkpoint the run resumes.

    A checkpoint is a folder, `FOLDER/00000500` after step 500, with everything that a joiner receives: parameters and
    buffers, optimizer, `extra`, `peer.done` and the position of each loader. One peer writes it, in the background,
    from a copy; if that peer dies, another one writes. A folder with such a name is complete: synced to the disk, with
    digests. The last checkpoint is written when the run ends, or when SIGTERM asks a peer to leave, which it does at
    the end of its step.

    Peers that found a swarm resume a checkpoint of the run's latest start: the one with the most steps that any of them
    can read; all receive it. With an empty folder a new run begins. Random number generators are not saved, since the
    number of peers may change. See docs/checkpoints.md.

    Memory: the peer that writes keeps one copy of the state; a founder that resumes needs two while it reads.

    Attributes:
        folder: of all checkpoints of one run; the same path on every peer, which hosts need not share.
        every: steps of training from one checkpoint to the next.
        keep: how many checkpoints remain, older ones are removed; None: all remain.
        resume: the checkpoint to resume (`FOLDER/STEP`), even if there are newer ones; None: as `shoal run --resume`
            says.

    Raises:
        TypeError, ValueError: `every` or `keep` is not a whole number of at least 1.
    """

    folder: str | os.PathLike[str]
    every: int = field(kw_only=True)
    keep: int | None = field(default=3, kw_only=True)
    resume: str | os.PathLike[str] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check_whole(every=self.every, keep=self.keep)
        for name, value in (("every", self.every), ("keep", 1 if self.keep is None else self.keep)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, is {value}")
        for name in ("folder", "resume"):  # the script may change its working directory later
            if (path := getattr(self, name)) is not None:
                object.__setattr__(self, name, absolute(Path(path)))

    @property
    def path(self) -> Path:
        """`folder` as a Path."""
        return Path(self.folder)
