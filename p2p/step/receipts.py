"""Receipts: which members were counted in a committed step, with which samples, and which bits came out.

A receipt holds the agreed part only: the same bytes at every member. What differs from peer to peer (when it
committed, when it learned of a death) is in its flight recorder, and goes into a trace beside it.
"""

import errno
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from io import FileIO
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import numpy.typing as npt

from gossip import Member, View
from gossip.progress import Finish

from ..errors import ShoalError
from ..host.folders import create_private
from ..telemetry.trace import OwnTrace, trace_path

Counts = tuple[int, int, int]
"""A member's samples in a step: position of the first in the global batch, number, and weight in means."""

WEIGHT: Final = 2
"""Column of the weight, in an array of `Counts`."""

UNKNOWN_SAMPLE: Final = -1
"""Place of the first sample of a member whose samples were not handed out by a loader."""

FAILS_BEHIND: Final = -2
"""Less the place of the first sample: those are counted, and the one behind the last could not be loaded."""

_WEIGHT: Final = attrgetter("weight")
_NUM_SAMPLES: Final = attrgetter("num_samples")

NUM_COUNTED: Final = 3
"""Columns of `Counts`; behind them what peers say of measured links (agreed_rows.py) and their pace (stragglers.py)."""

WANTS: Final = 3
"""Column: whether rows are to be gathered."""

HAS: Final = 4
"""Column: the step whose rows its member has a table of."""

TOOK: Final = 5
"""Column: microseconds that its member has needed for its own part of the training step before; 0: unknown."""

NUM_COLUMNS: Final = 6

NO_SAMPLES: Final[Counts] = (UNKNOWN_SAMPLE, 0, 0)
"""Of a member that adds nothing."""

FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a disk without room, for all users or for this one."""


@dataclass(frozen=True, slots=True)
class Contribution:
    """The contribution of one member to a step.

    Attributes:
        peer_id: of the member.
        incarnation: of the member; another one after each return.
        samples: (first, number) of ranges of the stream of a `Loader`, which counts on from epoch to epoch; empty if
            the script has a loader of its own, or the member added nothing.
        num_samples: how many it added; 0 where a step has no samples.
        weight: weight in means; the number of samples, unless the script says otherwise.
        failed: (position, 1) of a sample that it could not load, so that it added nothing; or nothing more, where it
            has samples (in a round by time).
    """

    peer_id: str
    incarnation: int
    samples: tuple[tuple[int, int], ...]
    num_samples: int
    weight: int
    failed: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """One committed step: the same at every member.

    Attributes:
        lineage: of the run, 32 hex digits.
        view_number: the view in which all had finished the step.
        step: its number; consecutive; step 0 is the start of the swarm, and has no operation.
        contributions: of the members of that view, in rank order.
        algorithms: of the step's operations in order, without the counts.
        digest: xxh3-128 over the digests of all chunks of all results, hex.
        state_digest: xxh3-128 of the parameters that the step was computed with, hex; empty where there are none.
        loader: number of the loader whose samples these are, in the order in which the script has made them; -1: none.
        unused: in a round by time: (first, number) of ranges that members were given beyond what they have added.
        returned: (first, number) of other ranges that were handed out for this step and not added, since a member has
            died, say; they are handed out again.
    """

    lineage: str
    view_number: int
    step: int
    contributions: tuple[Contribution, ...]
    algorithms: tuple[str, ...]
    digest: str
    state_digest: str
    loader: int = -1
    unused: tuple[tuple[int, int], ...] = ()
    returned: tuple[tuple[int, int], ...] = ()

    @property
    def weight(self) -> int:
        """Of all samples, in means."""
        return sum(map(_WEIGHT, self.contributions))

    @property
    def num_samples(self) -> int:
        return sum(map(_NUM_SAMPLES, self.contributions))

    def samples_of(self, peer_id: str) -> int:
        """So many; 0 of who is none of the members."""
        return next((each.num_samples for each in self.contributions if each.peer_id == peer_id), 0)


@dataclass(frozen=True, slots=True)
class Continued:
    """The receipts behind this line are of a lineage that goes on where all members of another one have died.

    Attributes:
        lineage: of those.
        last_step: the last one that they have committed, by their flight recorders.
        step: the last one in the state that was gone on with: those between are lost, and their samples not counted.
    """

    lineage: str
    last_step: int
    step: int

    def __str__(self) -> str:
        lost = (
            f"steps {self.step + 1} to {self.last_step} are lost" if self.last_step > self.step else "no step is lost"
        )
        return f"from step {self.step} of lineage {self.lineage[:8]}, whose last known one is {self.last_step}; {lost}"


class Ledger:
    """Appends to `<folder>/<peer_id>.receipts.jsonl`, and to the trace of the same peer, as long as it can."""

    def __init__(self, folder: Path, peer_id: str, failed: Callable[[str], None], page: Path | None = None) -> None:
        """Open what is written.

        Args:
            folder: is made, if it is not there.
            peer_id: whose it is.
            failed: is told once why something cannot be written; from then on nothing is, in either file.
            page: of this peer; None: somebody else writes its trace, or nobody.
        """
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder, self._failed = folder, failed
        self._trace = None if page is None else OwnTrace(page, trace_path(folder, peer_id))
        self._receipts = FileIO(folder / f"{peer_id}.receipts.jsonl", "ab", opener=create_private)

    @staticmethod
    def open(
        folder: Path | None, peer_id: str, failed: Callable[[str], None], page: Path | None = None
    ) -> "Ledger | None":
        """The files of a peer in `folder`, if there is one. None also where `failed` was told that the disk is full.

        Raises:
            ShoalError: they cannot be written.
        """
        try:
            return None if folder is None else Ledger(folder, peer_id, failed, page)
        except OSError as error:
            why = f"receipts cannot be written to {folder}: {error}"
            if error.errno not in FULL:
                raise ShoalError(why) from error
            failed(why)
            return None

    def record(self, receipt: Receipt) -> None:
        self._append(receipt)

    def begin(self, continued: Continued) -> None:
        self._append(continued)

    def follow(self) -> None:
        """Append what the flight recorder has, if that is much."""
        if self._trace is not None and self._trace.is_due():
            self._write_trace()

    def _append(self, record: Receipt | Continued) -> None:
        file = self._receipts
        line = b"" if file.closed else to_line(record).encode()
        start = 0 if file.closed else file.tell()
        try:
            while line:  # the last of a disk that is nearly full may take a part of it
                line = line[file.write(line) :]
        except OSError as error:
            with suppress(OSError):
                file.truncate(start)
            self._fail(error)

    def _write_trace(self) -> None:
        try:
            if self._trace is not None:
                self._trace.write()
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        self._receipts.close()
        self._trace = None
        self._failed(f"receipts cannot be written to {self._folder}: {error}")

    def close(self) -> None:
        """Write what is left in the flight recorder to the trace, if there is room."""
        self._write_trace()
        self._receipts.close()


def write_receipt(finish: Finish, view: View, counts: npt.NDArray[Any] | None, algorithms: tuple[str, ...]) -> Receipt:
    """The receipt of a step that all members of `view` have finished.

    Args:
        finish: of any of them; they are equal.
        view: in which the step was finished.
        counts: `Counts` per rank; None where nobody counted. The samples on the receipt are places in the global batch.
        algorithms: of the operations, without the counts.
    """
    return Receipt(
        lineage=view.lineage.hex(),
        view_number=view.number,
        step=finish.step,
        contributions=_of_nobody(view.members) if counts is None else _contributions(view.members, counts.tolist()),
        algorithms=algorithms,
        digest=finish.digest.hex(),
        state_digest=finish.state_digest.hex(),
    )


def _contributions(members: Sequence[Member], rows: Sequence[Counts]) -> tuple[Contribution, ...]:
    made = []
    for member, (first, number, weight) in zip(members, rows, strict=True):
        samples = ((first, number),) if first != UNKNOWN_SAMPLE else ()
        made.append(Contribution(member.peer_id, member.incarnation, samples, number, weight))
    return tuple(made)


@lru_cache(maxsize=16)
def _of_nobody(members: tuple[Member, ...]) -> tuple[Contribution, ...]:
    """Contributions to a step without samples: the same in each such step of a view."""
    return _contributions(members, [NO_SAMPLES] * len(members))


def counts_of(receipt: Receipt) -> tuple[Counts, ...]:
    """The counts per member from which `write_receipt` made the receipt."""
    return tuple(
        (each.samples[0][0] if each.samples else UNKNOWN_SAMPLE, each.num_samples, each.weight)
        for each in receipt.contributions
    )


def to_line(record: Receipt | Continued) -> str:
    """One line of JSON."""
    values: dict[str, Any] = asdict(record)
    return json.dumps({"continued": values} if isinstance(record, Continued) else values, separators=(",", ":")) + "\n"


def read_receipts(path: Path) -> list[Receipt]:
    """All receipts of one peer, in order. A line that a death cut short is left out."""
    rows = [json.loads(line) for line in _whole_lines(path)]
    return [parse_receipt(row) for row in rows if "continued" not in row]


def read_continued(path: Path) -> dict[str, Continued]:
    """The lineages that this peer began after the death of all members of another one, with what each continues."""
    rows = [json.loads(line) for line in _whole_lines(path)]
    pairs = pairwise(rows)
    return {after["lineage"]: Continued(**row["continued"]) for row, after in pairs if "continued" in row}


def parse_receipt(fields: dict[str, Any]) -> Receipt:
    """A receipt from the object on its line."""
    contributions = tuple(
        Contribution(**{**entry, **{name: tuple(map(tuple, entry[name])) for name in ("samples", "failed")}})
        for entry in fields.pop("contributions")
    )
    algorithms = tuple(fields.pop("algorithms"))
    unused, returned = (tuple(map(tuple, fields.pop(name, ()))) for name in ("unused", "returned"))
    return Receipt(contributions=contributions, algorithms=algorithms, unused=unused, returned=returned, **fields)


def _whole_lines(path: Path) -> list[str]:
    return [line for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")]
