"""What the open step asks its host to do, in this order. Plain values, no behaviour.

Whatever names a view is void if the core has left that view meanwhile.
"""

from dataclasses import dataclass
from typing import NamedTuple

from collectives import Outgoing
from gossip.effects import Send

from .notices import Notice


class SendSegment(NamedTuple):
    """Send a segment of an operation, in the installed view."""

    sequence: int
    fingerprint: bytes
    outgoing: Outgoing


@dataclass(frozen=True, slots=True)
class Finish:
    """All operations of the step are complete here: tell the core, then the others."""

    step: int
    digest: bytes
    state_digest: bytes
    num_operations: int
    view_number: int


@dataclass(frozen=True, slots=True)
class HandOut:
    """The result of operation `index` is wanted before the commit: tell the core, then say `OpenStep.hand_out`."""

    index: int
    view_number: int


@dataclass(frozen=True, slots=True)
class Withdraw:
    """This peer has taken back what it had submitted: start over. `interrupts`: some may use results of it."""

    step: int
    interrupts: bool


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Members call different operations: give the step up on all."""

    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class Void:
    """The script goes on without the step: give it up on all others."""

    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class Leave:
    """This peer has no business with the others."""


@dataclass(frozen=True, slots=True)
class Tell:
    """Let the training thread know."""

    notice: Notice


@dataclass(frozen=True, slots=True)
class Note:
    """Remember that this happened now."""

    event: str
    detail: int


StepEffect = SendSegment | Finish | HandOut | Withdraw | GiveUp | Void | Leave | Tell | Note | Send
