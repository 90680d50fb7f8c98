"""Messages about steps, between members of the same view. Plain values, no behaviour; names as in messages.py."""

from dataclasses import dataclass, replace

from .given_up import GivenUp

NOTHING_DONE = -1
"""The step before step 0: no step is committed."""

LAST_STEP = 2**62
"""Limit of step numbers, which travel in 64 bits; no run gets that long."""

NOT_CALLED = "nothing, since the step ends before it,"
"""Fingerprint in place of an operation that a member has not called, and will not call."""


@dataclass(frozen=True, slots=True)
class Finish:
    """A step whose operations are all complete at one member.

    Attributes:
        step: the step.
        digest: of the results of its operations.
        state_digest: of the parameters that the step was computed with; empty where there are none.
        view_number: the view in which it was finished.
        is_mixed: that view has several numerics classes (R20), so that the last byte of `state_digest` is a flag.
    """

    step: int
    digest: bytes
    state_digest: bytes
    view_number: int
    is_mixed: bool = False

    @property
    def agreed(self) -> "Finish":
        """The finish without what differs between members: the parameters, where there are several numerics classes."""
        return replace(self, state_digest=b"") if self.is_mixed else self

    @property
    def bits(self) -> bytes:
        """The part of `state_digest` that is compared, in any view."""
        return self.state_digest[:15]

    @property
    def is_far(self) -> bool:
        """Whether this member was far from the source of a re-synchronisation (R21)."""
        return self.is_mixed and self.state_digest[15:] == b"\1"


@dataclass(frozen=True, slots=True)
class Progress:
    """FINISHED, when `finish` is new; repeated on every beat.

    Attributes:
        done: the last committed step; `digest` is of the chain of steps up to it.
        finish: step done + 1, if it is finished.
        submitted: number of submitted operations of step done + 1; only beats have it before the step is finished. 0
            with `finish`: not known.
        inner_steps: local steps of the round that step done + 1 ends, so far; only beats have it.
    """

    done: int
    digest: bytes
    finish: Finish | None
    submitted: int = 0
    inner_steps: int = 0


@dataclass(frozen=True, slots=True)
class Ready:
    """READY: I complete no operation of older views any more, and this is my state.

    Attributes:
        seated: whether this member has completed a barrier since it was admitted.
        done: its last committed step; `digest` is of the chain of steps up to it.
        finish: what it had finished when it installed this view.
        given_up: a step that is not committed yet, if this member knows that it is given up.
        maps_all: whether it can read the memory of every other member of this view.
        founded_in: number of the view in which step 0 was finished, whose seats are the founders'; 0: not known.
    """

    seated: bool
    done: int
    digest: bytes
    finish: Finish | None
    given_up: GivenUp | None = None
    maps_all: bool = False
    founded_in: int = 0


@dataclass(frozen=True, slots=True)
class Beat:
    """BEAT: READY and FINISHED repeated, for members that lost a frame."""

    ready: Ready
    progress: Progress


@dataclass(frozen=True, slots=True)
class StateQuery:
    """STATE?: I am not seated and need the state after this step, or a later one if I observe.

    `frozen`: digest of the frozen parameters that I have, which the state can leave out if they are the same (R30).
    """

    step: int
    frozen: bytes = b""


@dataclass(frozen=True, slots=True)
class Abort:
    """ABORT: I called this as this operation of this step, and another member called another."""

    step: int
    operation: int
    fingerprint: str
