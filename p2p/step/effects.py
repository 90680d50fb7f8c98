"""Effects of the open step, to be carried out by its host in this order. Plain values, no behaviour.

An effect that names a view is void if the core has left that view meanwhile.
"""

from dataclasses import dataclass
from typing import NamedTuple

from collectives import Outgoing
from gossip.given_up import Cause
from gossip.progress import NOTHING_DONE, Abort

from ..telemetry.records import Kind
from .notices import Notice


class SendSegment(NamedTuple):
    """Send a segment of an operation."""

    view_number: int
    sequence: int
    fingerprint: bytes
    outgoing: Outgoing


class Finish(NamedTuple):
    """Every operation of the step is complete here: tell the core, then the other members."""

    step: int
    digest: bytes
    state_digest: bytes
    num_operations: int
    view_number: int


@dataclass(frozen=True, slots=True)
class DeliverEarly:
    """The result of operation `index` is wanted before the commit: tell the core, then say `OpenStep.deliver_early`."""

    index: int
    view_number: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The step is given up here, as it was begun: `Core.give_up`."""

    step: int
    cause: Cause
    reason: str
    is_told: bool


@dataclass(frozen=True, slots=True)
class Disagree:
    """Say to all members what is called here, again with every beat: somebody calls something else."""

    abort: Abort


@dataclass(frozen=True, slots=True)
class Leave:
    """Leave: this peer only observes, or calls something else than the members that stay, in the step `outvoted`."""

    outvoted: int = NOTHING_DONE


@dataclass(frozen=True, slots=True)
class Tell:
    """Let the training thread know."""

    notice: Notice


@dataclass(frozen=True, slots=True)
class Note:
    """Remember that this happened now; `size` and `value` as of the records (telemetry/records.py)."""

    kind: Kind
    detail: int
    size: int = 0
    value: float = 0.0


StepEffect = SendSegment | Finish | DeliverEarly | GiveUp | Disagree | Leave | Tell | Note
