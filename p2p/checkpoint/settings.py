"""What a script says of its checkpoints."""

import os
from dataclasses import dataclass, field
from pathlib import Path

from ..given import check_whole
from ..host.folders import absolute


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where and how often `DataParallel` writes the state of the run, and what the run goes on from.

    A checkpoint is a folder, `FOLDER/00000500` after step 500, with everything that a joiner is given: parameters and
    buffers, optimizer, `extra`, `peer.done` and how far each loader is. One peer writes it, in the background, from a
    copy; if it dies, another one does. It has its name when it is whole, on the disk, and its digests are there. The
    last one is written when the run ends, and when SIGTERM asks a peer to leave, which it does at the end of its step.

    Peers that found a swarm go on from the checkpoint of the latest start of the run, the one with the most steps, that
    any of them can read: all are given it. In an empty folder the run begins. Random number generators are not part of
    it: the number of peers may be another one. See docs/checkpoints.md.

    Memory: the peer that writes keeps one copy of the state. A founder that goes on from one, two while it reads it.

    Attributes:
        folder: of all checkpoints of one run; the same path on every peer. Hosts may have folders of their own.
        every: so many steps of training lie between two.
        keep: so many of the last ones stay, the others are removed; None: all stay.
        resume: go on from this one (`FOLDER/STEP`), whatever others there are; None: as `shoal run --resume` says.

    Raises:
        TypeError, ValueError: `every` or `keep` is no whole number of at least 1.
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
        for name in ("folder", "resume"):  # whatever folder the script goes to later
            if (path := getattr(self, name)) is not None:
                object.__setattr__(self, name, absolute(Path(path)))

    @property
    def path(self) -> Path:
        """Of `folder`."""
        return Path(self.folder)
