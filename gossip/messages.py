"""What peers say to each other. Plain values, no behaviour.

The names in capitals are those of the protocol description (PROTOCOL.md). Every message travels in an `Envelope`
that names its sender and the view that the sender has installed.
"""

from dataclasses import dataclass, replace
from enum import IntEnum

from .claim import Claim
from .view import NO_NUMERICS, Member, Stamp, View, wrong_numerics

NOTHING_DONE = -1
"""The step before step 0: no step is committed."""

NOT_CALLED = "nothing, since the step ends before it,"
"""The fingerprint of an operation that a member has not called, and will not."""


# Who exists: sent to anybody, in any view.


@dataclass(frozen=True, slots=True)
class Ping:
    """PING: are you there? Carries news about others."""

    nonce: int
    claims: tuple[Claim, ...]


@dataclass(frozen=True, slots=True)
class Ack:
    """ACK: I am, and this is my news. Also passed on by who was asked with PING-REQ."""

    nonce: int
    claims: tuple[Claim, ...]


@dataclass(frozen=True, slots=True)
class PingRequest:
    """PING-REQ: ask `target` for me whether it is there."""

    nonce: int
    target: Member


@dataclass(frozen=True, slots=True)
class NoAck:
    """NO-ACK: I asked, as you wanted, and heard nothing; but I am here (Lifeguard)."""

    nonce: int


@dataclass(frozen=True, slots=True)
class Gossip:
    """GOSSIP: news, unasked."""

    claims: tuple[Claim, ...]


@dataclass(frozen=True, slots=True)
class Sync:
    """SYNC: this is what I know, as one digest per bucket of peers."""

    digests: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class SyncReply:
    """SYNC-REPLY: these buckets differ, and this is what I have in them; answered with GOSSIP."""

    buckets: tuple[int, ...]
    claims: tuple[Claim, ...]


@dataclass(frozen=True, slots=True)
class Join:
    """JOIN: I ask for a seat. Counts in the view of this number and in the next one.

    Attributes:
        state_hash: names the layout of the state that this peer can receive.
        follows: it observes: it takes committed steps while it has no seat, and wants one when it is current.
        done: the last step that it has taken over; `digest` is of the chain up to it.
        view_number: the latest view, in the receiver's lineage, up to which it knows that it had no seat; 0: none.
        numerics: 8 bytes, its numerics class, for its seat.

    Raises:
        ValueError: `numerics` has another length.
    """

    state_hash: str
    follows: bool = False
    done: int = NOTHING_DONE
    digest: bytes = b""
    view_number: int = 0
    numerics: bytes = NO_NUMERICS

    def __post_init__(self) -> None:
        if len(self.numerics) != len(NO_NUMERICS):
            raise wrong_numerics(self.numerics)


@dataclass(frozen=True, slots=True)
class Head:
    """HEAD: I have installed this view, and you have no seat in it. Answers a JOIN, and is said again of the next view.

    Attributes:
        step: the last one that was committed here, if the sender feeds the receiver; `digest` is of the chain up to
            it, and empty if it does not.
        view_number: of that view.
        absent_since: the receiver had no seat in the views from this one on, either: the one after the view that its
            JOIN has named, or as far back as the sender knows.
    """

    step: int
    digest: bytes
    view_number: int = 0
    absent_since: int = 0


@dataclass(frozen=True, slots=True)
class LineageQuery:
    """LINEAGE?: does this swarm exist already? Asked by who would found it."""


@dataclass(frozen=True, slots=True)
class LineageAnswer:
    """LINEAGE: the one that I know; empty if none."""

    lineage: bytes


@dataclass(frozen=True, slots=True)
class Refuse:
    """REFUSE: no seat for you, the state of this swarm has another layout."""

    layout: bytes


class Cause(IntEnum):
    """Why a step is given up, and what scripts are told. Of what is told of one view the greatest cause counts."""

    IN_USE = 0
    """Results of it were handed out before its commit, and members have come or gone: it is interrupted for all,
    unless the barrier commits it."""
    WITHDRAWN = 1
    """A member took back what it had submitted: the step is done over, and nobody is told."""
    VOIDED = 2
    """A script went on without a step that the others have begun: interrupted for all."""
    MISMATCH = 3
    """Members called different operations: an error for all."""


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A step that some member will not finish as it was begun.

    What is void is committed nowhere: who gave the step up had not finished it, or a barrier has dropped it.

    Attributes:
        step: the step.
        view_number: the view in which it was given up, of what scripts are told.
        cause: of that.
        reason: for people.
        void_until: what was finished of the step in this view, or before, is void; 0: it counts.
    """

    step: int
    view_number: int
    cause: Cause
    reason: str = ""
    void_until: int = 0


def graver(one: GivenUp | None, other: GivenUp | None) -> GivenUp | None:
    """What both say: of the later step; of one step, what either calls void, and the latest that scripts are told."""
    if one is None or other is None:
        return one or other
    if one.step != other.step:
        return max(one, other, key=lambda each: each.step)
    told = max(
        one, other, key=lambda each: (each.cause is not Cause.WITHDRAWN, each.view_number, each.cause, each.reason)
    )
    return replace(told, void_until=max(one.void_until, other.void_until))


@dataclass(frozen=True, slots=True)
class Leave:
    """LEAVE: I start no further step; decide a view without me.

    Attributes:
        outvoted: the step that I have finished with other parameters than most; without me it is to be done over.
        given_up: the open step, if I know that it is.
    """

    outvoted: int = NOTHING_DONE
    given_up: GivenUp | None = None


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


@dataclass(frozen=True, slots=True)
class AcceptorRecord:
    """What an acceptor has promised and accepted: the page that outlives its process (policy `live`).

    Attributes:
        view: the latest view that it has installed or decided; None before the first.
        promised: its promise for the successor of `view`.
        vote: what it has accepted as the successor of `view`.
    """

    view: View | None
    promised: Ballot
    vote: Vote | None


class ReportKind(IntEnum):
    """What a report is about, and how certain it is."""

    PROVEN = 0
    """The kernel says that the process has ended."""
    REFUSED = 1
    """Its link was lost, and a new one was refused."""
    SILENT = 2
    """Nothing was heard of it for too long."""
    STALLED = 3
    """An operation that all have submitted does not complete: frames were lost."""
    WITHDRAWN = 4
    """Its sender starts the open step over, and takes part in it with weight 0."""
    ABORTED = 5
    """Its sender has given the open step up."""
    READABLE = 6
    """Its sender can read the memory of all others by now, and could not when it installed the view."""


@dataclass(frozen=True, slots=True)
class Report:
    """REPORT: what I have seen, for as long as it stays so. Said again with every beat.

    Attributes:
        kind: of the observation.
        subject: whom it is about; of the last four kinds, the sender.
        step: of the last four kinds, the open step.
        record: of PROVEN, what the dead member has left behind, if it could be read.
        given_up: the open step, if its sender knows that it is.
    """

    kind: ReportKind
    subject: Member
    step: int = NOTHING_DONE
    record: AcceptorRecord | None = None
    given_up: GivenUp | None = None


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
    """FINISHED, when `finish` is new; repeated on every beat.

    Attributes:
        done: the last committed step; `digest` is of the chain of steps up to it.
        finish: step done + 1, if it is finished.
        submitted: how many operations of step done + 1 have been submitted; before it is finished only beats say so.
            0 with `finish`: not known.
    """

    done: int
    digest: bytes
    finish: Finish | None
    submitted: int = 0


@dataclass(frozen=True, slots=True)
class Ready:
    """READY: I complete nothing of older views any more, and this is what I have.

    Attributes:
        seated: this member has completed a barrier since it was admitted.
        done: its last committed step; `digest` is of the chain of steps up to it.
        finish: what it had finished when it installed this view.
        given_up: a step that is not committed yet, if this member knows that it is given up.
        maps_all: it can read the memory of every other member of this view.
    """

    seated: bool
    done: int
    digest: bytes
    finish: Finish | None
    given_up: GivenUp | None = None
    maps_all: bool = False


@dataclass(frozen=True, slots=True)
class Beat:
    """BEAT: both, again, for whoever lost a frame."""

    ready: Ready
    progress: Progress


@dataclass(frozen=True, slots=True)
class StateQuery:
    """STATE?: I am not seated and need the state after this step, or a later one if I observe."""

    step: int


@dataclass(frozen=True, slots=True)
class Abort:
    """ABORT: this is what I called as this operation of this step, and somebody called another."""

    step: int
    operation: int
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Died:
    """DIED: my process has ended, and this is my record. Said for the sender by its launcher, its parent process."""

    record: AcceptorRecord


Body = (
    Ping
    | Ack
    | PingRequest
    | NoAck
    | Gossip
    | Sync
    | SyncReply
    | Join
    | Head
    | LineageQuery
    | LineageAnswer
    | Refuse
    | Leave
    | ViewQuery
    | Decide
    | Prepare
    | Promise
    | Accept
    | Accepted
    | Nack
    | Report
    | Progress
    | Ready
    | Beat
    | StateQuery
    | Abort
    | Died
)


@dataclass(frozen=True, slots=True)
class Envelope:
    """A message, who sends it, and the view that the sender has installed."""

    sender: Member
    stamp: Stamp
    body: Body
