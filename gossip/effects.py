"""What a core asks its host to do, in the order in which it asks. Plain values, no behaviour."""

from dataclasses import dataclass, field

from .claim import Claim, State
from .given_up import GivenUp
from .messages import AcceptorRecord, Body, Refuse
from .progress import Abort, Finish
from .view import Member, Stamp, View


@dataclass(frozen=True, slots=True)
class Send:
    """Hand `body` to the transport, in an envelope; it may be lost.

    `stamp`: of the view in which it was made. The core sees to it, so that equality is of what is said to whom.
    """

    target: Member
    body: Body
    stamp: Stamp | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class WriteRecord:
    """Write this to the page that outlives the process, before anything that follows is carried out."""

    record: AcceptorRecord


@dataclass(frozen=True, slots=True)
class Explain:
    """Tell whoever reads the log; and the record, what is believed of a member now, where that is the reason.

    `claim`: with who says so. What was said is in the reason, too, so it alone is compared.
    """

    reason: str
    claim: Claim | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Discovered:
    """A peer is alive: link to it and watch its process."""

    claim: Claim


@dataclass(frozen=True, slots=True)
class Forget:
    """A peer is gone and has nothing more to hear: close the link."""

    member: Member


@dataclass(frozen=True, slots=True)
class Installed:
    """A view replaces the one before: no operation of older views may complete any more.

    The host looks up members that were not `Discovered`: whoever knew them may be dead. It meets or buries them.
    `gone`: members of the view before that are in this one no more: DEAD, LEFT (it said LEAVE), or LOST (nobody hears
    it); as this peer knows, so the view alone is compared. `has_stalled`: it is reported that frames of the open step
    were lost, and nobody has gone.
    """

    view: View
    gone: tuple[tuple[Member, State], ...] = field(default=(), compare=False)
    has_stalled: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Proposed:
    """This member asks the others to accept `view`, in a ballot of its own; once for each. For the record only."""

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
    """Give the observer `member` this committed step, as bytes; `previous` is the digest of the chain before it."""

    member: Member
    step: int
    previous: bytes
    digest: bytes


@dataclass(frozen=True, slots=True)
class Committed:
    """All have finished the step, in `view`. Final. `feeds`: which observers are to be given it."""

    finish: Finish
    view: View
    feeds: tuple[Feed, ...] = ()


@dataclass(frozen=True, slots=True)
class Aborted:
    """The step is given up by all: what was, or will be, submitted for it here raises. What was finished is void."""

    given_up: GivenUp


@dataclass(frozen=True, slots=True)
class Provide:
    """Give the state after `step` to `member`, as soon as it is complete; `frozen`: as in `StateQuery`."""

    member: Member
    step: int
    frozen: bytes = b""


@dataclass(frozen=True, slots=True)
class Apply:
    """Of an observer: run `step` with what it was fed, while that is `due`, and say `loaded`."""

    step: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Load:
    """Without a seat: let the script load the state after `step`, which has come, and say `loaded`."""

    step: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Drop:
    """The state after `step`, which has come, is of no use."""

    step: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Discard:
    """Of an observer: `step`, which it was fed, is of no use."""

    step: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Missed:
    """The script waits for the result of an operation of its own, of `step`, and will not be fed it any more."""

    step: int


@dataclass(frozen=True, slots=True)
class Refused:
    """A member of the swarm runs or trains something else than this peer, as it says itself."""

    refusal: Refuse


@dataclass(frozen=True, slots=True)
class Removed:
    """The others go on without this peer."""

    reason: str


@dataclass(frozen=True, slots=True)
class Left:
    """Nobody needs this peer any more; close."""

    reason: str


@dataclass(frozen=True, slots=True)
class Paused:
    """This side may decide nothing for now; it keeps its state. `is_final`: those who are missing never return."""

    reason: str
    is_final: bool


@dataclass(frozen=True, slots=True)
class Resumed:
    """Those who were missing are back: the view goes on."""

    reason: str


@dataclass(frozen=True, slots=True)
class Strangers:
    """Another swarm of the same name has been met: two founders. Each goes its own way; names both."""

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
class Overheard:
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
    | Drop
    | Discard
    | Missed
    | Refused
    | Removed
    | Left
    | Paused
    | Resumed
    | Strangers
    | Diverged
    | Outvoted
    | Overheard
)
