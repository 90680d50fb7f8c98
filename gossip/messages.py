"""What peers say to each other, and what a core asks its host to do. Plain values, no behaviour.

The names in capitals are those of the protocol description (PROTOCOL.md). Every message travels in an `Envelope`
that names its sender and the view that the sender has installed.
"""

from dataclasses import dataclass

from .claim import Claim
from .view import Member, Stamp, View

NOTHING_DONE = -1
"""The step before step 0: no step is committed."""


# Who exists: sent to anybody, in any view.


@dataclass(frozen=True, slots=True)
class Ping:
    """PING: are you there? Carries news about others."""

    nonce: int
    claims: tuple[Claim, ...]


@dataclass(frozen=True, slots=True)
class Ack:
    """ACK: I am, and this is my news."""

    nonce: int
    claims: tuple[Claim, ...]


@dataclass(frozen=True, slots=True)
class Join:
    """JOIN: I ask for a seat; `state_hash` names the layout of the state that I can receive."""

    state_hash: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """REFUSE: no seat for you, the state of this swarm has another layout."""

    layout: bytes


@dataclass(frozen=True, slots=True)
class Leave:
    """LEAVE: I start no further step; decide a view without me."""


@dataclass(frozen=True, slots=True)
class ViewQuery:
    """VIEW?: does anybody know a later view than the one on this envelope?"""


@dataclass(frozen=True, slots=True)
class Decide:
    """DECIDE: this view is decided."""

    view: View


# Which view is next: between the members of the view on the envelope.


@dataclass(frozen=True, slots=True, order=True)
class Ballot:
    """A proposal's number; the rank makes it unique."""

    round: int
    rank: int


@dataclass(frozen=True, slots=True)
class Vote:
    """What an acceptor has accepted."""

    ballot: Ballot
    view: View


@dataclass(frozen=True, slots=True)
class Prepare:
    """PREPARE: Paxos phase 1a."""

    ballot: Ballot


@dataclass(frozen=True, slots=True)
class Promise:
    """PROMISE: Paxos phase 1b."""

    ballot: Ballot
    vote: Vote | None


@dataclass(frozen=True, slots=True)
class Accept:
    """ACCEPT: Paxos phase 2a."""

    vote: Vote


@dataclass(frozen=True, slots=True)
class Accepted:
    """ACCEPTED: Paxos phase 2b."""

    ballot: Ballot


@dataclass(frozen=True, slots=True)
class Nack:
    """NACK: I have promised this greater ballot."""

    promised: Ballot


# Which step is committed: between the members of the view on the envelope.


@dataclass(frozen=True, slots=True)
class Finish:
    """A step whose operations are all complete at one member.

    Attributes:
        step: the step.
        digest: of the results of its operations.
        state_digest: of the parameters that the step was computed with; empty where there are none.
        view_number: the view in which it was finished.
    """

    step: int
    digest: bytes
    state_digest: bytes
    view_number: int


@dataclass(frozen=True, slots=True)
class Progress:
    """FINISHED, when `finish` is new; repeated on every beat."""

    done: int
    digest: bytes
    finish: Finish | None


@dataclass(frozen=True, slots=True)
class Ready:
    """READY: I complete nothing of older views any more, and this is what I have.

    Attributes:
        seated: this member has completed a barrier since it was admitted.
        done: its last committed step; `digest` is of the chain of steps up to it.
        finish: what it had finished when it installed this view.
        aborted_in: the view in which step done + 1 was given up; 0 if it was not.
        aborted: why.
    """

    seated: bool
    done: int
    digest: bytes
    finish: Finish | None
    aborted_in: int = 0
    aborted: str = ""


@dataclass(frozen=True, slots=True)
class Beat:
    """BEAT: both, again, for whoever lost a frame."""

    ready: Ready
    progress: Progress


@dataclass(frozen=True, slots=True)
class StateQuery:
    """STATE?: I am not seated and need the state after this step."""

    step: int


@dataclass(frozen=True, slots=True)
class Abort:
    """ABORT: this is what I called as this operation of this step, and somebody called another."""

    step: int
    operation: int
    fingerprint: str


Body = (
    Ping
    | Ack
    | Join
    | Refuse
    | Leave
    | ViewQuery
    | Decide
    | Prepare
    | Promise
    | Accept
    | Accepted
    | Nack
    | Progress
    | Ready
    | Beat
    | StateQuery
    | Abort
)


@dataclass(frozen=True, slots=True)
class Envelope:
    """A message, who sends it, and the view that the sender has installed."""

    sender: Member
    stamp: Stamp
    body: Body


# Effects: what the host is asked to do, in the order in which it is asked.


@dataclass(frozen=True, slots=True)
class Send:
    """Hand `body` to the transport, in an envelope; it may be lost."""

    target: Member
    body: Body


@dataclass(frozen=True, slots=True)
class Explain:
    """Tell whoever reads the log."""

    reason: str


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
    """

    view: View


@dataclass(frozen=True, slots=True)
class Activated:
    """Every member of the view is at step `done`: run step done + 1, from its first operation, in this view."""

    view: View
    done: int


@dataclass(frozen=True, slots=True)
class Committed:
    """All have finished the step, in `view`. Final."""

    finish: Finish
    view: View


@dataclass(frozen=True, slots=True)
class Aborted:
    """Others have given the step up: what was, or will be, submitted for it here raises."""

    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class Provide:
    """Give the state after `step` to `member`, as soon as it is complete."""

    member: Member
    step: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The swarm's state has another layout than ours."""

    layout: bytes


@dataclass(frozen=True, slots=True)
class Removed:
    """The others go on without this peer."""

    reason: str


@dataclass(frozen=True, slots=True)
class Left:
    """Nobody needs this peer any more; close."""

    reason: str


@dataclass(frozen=True, slots=True)
class QuorumGone:
    """This side may decide nothing any more."""

    alive: int
    size: int
    reason: str


@dataclass(frozen=True, slots=True)
class Diverged:
    """Members finished one step with different bits; nothing commits."""

    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class Overheard:
    """ABORT of `source`, for the operations of this view."""

    source: Member
    abort: Abort


Effect = (
    Send
    | Explain
    | Discovered
    | Forget
    | Installed
    | Activated
    | Committed
    | Aborted
    | Provide
    | Refused
    | Removed
    | Left
    | QuorumGone
    | Diverged
    | Overheard
)
