"""Effects: what a core asks its host to do, in that order. Plain values, no behaviour."""

from dataclasses import dataclass, field

from .claim import Claim, State
from .given_up import GivenUp
from .messages import AcceptorRecord, Body, Refuse
from .progress import Abort, Finish
from .view import Member, Stamp, View


@dataclass(frozen=True, slots=True)
class Send:
    """Pass `body` to the transport, in an envelope; it may be lost.

    `stamp`: of the view in which the message was made, set by the core. It is not compared, so that equality is about
    target and body.
    """

    target: Member
    body: Body
    stamp: Stamp | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class WriteRecord:
    """Write `record` to the page that outlives the process, before any later effect is carried out."""

    record: AcceptorRecord


@dataclass(frozen=True, slots=True)
class Explain:
    """Log `reason`; and record what is believed of a member now, if that is the reason.

    `claim`: that belief, with its accuser. Its content is in the reason, too, so only the reason is compared.
    """

    reason: str
    claim: Claim | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Discovered:
    """A peer is alive: link to it and watch its process."""

    claim: Claim


@dataclass(frozen=True, slots=True)
class Forget:
    """A peer is gone and needs no more messages: close the link."""

    member: Member


@dataclass(frozen=True, slots=True)
class Installed:
    """A view replaces the one before: operations of older views must not complete any more.

    The host looks up members that were not `Discovered`, since the peers that knew them may be dead; it links to them
    or reports their death. `gone`: members of the view before that are not in this one: DEAD, LEFT (they said LEAVE),
    or LOST (unreachable); each peer has its own knowledge of that, so only the view is compared. `has_stalled`: frames
    of the open step are reported lost, and no member has gone.
    """

    view: View
    gone: tuple[tuple[Member, State], ...] = field(default=(), compare=False)
    has_stalled: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Proposed:
    """This member asks the others to accept `view`, in a ballot of its own; once per ballot. For the record only."""

    view: View


@dataclass(frozen=True, slots=True)
class Activated:
    """Every member of the view is at step `done`: run step done + 1, from its first operation, in this view.

    `maps_all`: every member can read the memory of all others. `founded_in`: as in READY.
    """

    view: View
    done: int
    maps_all: bool = False
    founded_in: int = 0


@dataclass(frozen=True, slots=True)
class Feed:
    """Send the observer `member` the bytes of this committed step; `previous` is the digest of the chain before it."""

    member: Member
    step: int
    previous: bytes
    digest: bytes


@dataclass(frozen=True, slots=True)
class Committed:
    """All members have finished the step, in `view`. Final. `feeds`: the observers to be fed with it."""

    finish: Finish
    view: View
    feeds: tuple[Feed, ...] = ()


@dataclass(frozen=True, slots=True)
class Aborted:
    """All members give up the step: its operations raise here, later ones too. Its results so far are void."""

    given_up: GivenUp


@dataclass(frozen=True, slots=True)
class Provide:
    """Give the state after `step` to `member`, as soon as it is complete; `frozen`: as in `StateQuery`."""

    member: Member
    step: int
    frozen: bytes = b""


@dataclass(frozen=True, slots=True)
class Apply:
    """At an observer: run `step` with the results it was fed, while that is `due`, then call `loaded`."""

    step: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Load:
    """Without a seat: let the script load the state after `step`, which has arrived, then call `loaded`."""

    step: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class DropState:
    """Drop the state after `step`, which has arrived and is not needed."""

    step: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class DropStep:
    """At an observer: drop `step`, which it was fed and does not need."""

    step: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class ResultUnavailable:
    """The script waits for the result of an operation of its own, `step`, which will not be fed any more."""

    step: int


@dataclass(frozen=True, slots=True)
class Refused:
    """A member of the swarm refuses this peer, since it runs or trains something else."""

    refusal: Refuse


@dataclass(frozen=True, slots=True)
class Removed:
    """The others continue without this peer."""

    reason: str


@dataclass(frozen=True, slots=True)
class Left:
    """The others no longer need this peer, which leaves: close."""

    reason: str


@dataclass(frozen=True, slots=True)
class Paused:
    """This side cannot decide anything now; it keeps its state. `is_final`: the missing members never return."""

    reason: str
    is_final: bool


@dataclass(frozen=True, slots=True)
class Resumed:
    """The missing members are back: the view continues."""

    reason: str


@dataclass(frozen=True, slots=True)
class OtherSwarmFound:
    """Another swarm of the same name was found. Both continue separately; the reason names both founders."""

    reason: str


@dataclass(frozen=True, slots=True)
class Diverged:
    """Members finished one step with different bits, and no side can stay: the script is told, and leaves."""

    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class Outvoted:
    """This member leaves with `step`, the open one, and is removed once the others continue without it.

    Its parameters are not those of the members that stay (R17), or, if it `is_damaged`, are not those that it has
    computed with (R28).
    """

    step: int
    is_damaged: bool = False


@dataclass(frozen=True, slots=True)
class AbortReceived:
    """ABORT of `source`, for the operations of this view."""

    source: Member
    abort: Abort


Effect = (
    Send
    | WriteRecord
    | Explain
    | Discovered
    | Forget
    | Installed
    | Proposed
    | Activated
    | Committed
    | Aborted
    | Provide
    | Apply
    | Load
    | DropState
    | DropStep
    | ResultUnavailable
    | Refused
    | Removed
    | Left
    | Paused
    | Resumed
    | OtherSwarmFound
    | Diverged
    | Outvoted
    | AbortReceived
)
