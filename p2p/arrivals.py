"""What the loop tells the training thread."""

from dataclasses import dataclass

from gossip import View

from .errors import ShoalError
from .handover import PackedState
from .operations import Operation
from .receipts import Receipt


@dataclass(frozen=True, slots=True)
class Commit:
    """A step is committed, with these results, in this view."""

    receipt: Receipt
    view: View
    operations: list[Operation]


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """What was submitted for `step` is taken back: submit it anew."""

    step: int


@dataclass(frozen=True, slots=True)
class StateOffer:
    """The state after `step`: load it, then post `Loop.loaded`."""

    step: int
    chain: bytes
    state: PackedState


@dataclass(frozen=True, slots=True)
class Admitted:
    """This peer takes part in `view`, from step `done` + 1 on."""

    view: View
    done: int


Arrival = Commit | Withdrawn | StateOffer | Admitted | ShoalError
