"""Notices from the loop to the training thread."""

from dataclasses import dataclass

from gossip import View

from ..errors import ShoalError
from ..net.parcels import PackedState
from .operation import Operation, Outcome
from .receipts import Receipt


@dataclass(frozen=True, slots=True)
class Commit:
    """A step is committed, with these results, in this view.

    `fingerprints`: of its operations; `path`: as of `Place`, if the script has called them by itself.
    """

    receipt: Receipt
    view: View
    operations: list[Operation]
    fingerprints: tuple[bytes, ...]
    path: bytes = b""


@dataclass(frozen=True, slots=True)
class Uncommitted:
    """The result of `operation` is complete here, and nobody writes it any more. Its step is not committed yet."""

    operation: Operation
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Complete:
    """The result of `operation`, submitted in this attempt, is complete in `view`, which may still be redone."""

    operation: Operation
    attempt: int
    view: View


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """What was submitted for `step` is taken back: submit it anew."""

    step: int


@dataclass(frozen=True, slots=True)
class StateOffer:
    """The state after `step`, which was committed in `view`: load it, then post `Loop.loaded`.

    `is_due`: the next training step gathers rows (agreed_rows.py).
    """

    step: int
    chain: bytes
    view: View
    state: PackedState
    is_due: bool = False


@dataclass(frozen=True, slots=True)
class Admitted:
    """This peer takes part in `view`, from step `done` + 1 on."""

    view: View
    done: int


Notice = Commit | Complete | Uncommitted | Withdrawn | StateOffer | Admitted | ShoalError
