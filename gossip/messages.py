"""What peers say to each other of who exists, and of views. Plain values, no behaviour.

The names in capitals are those of the protocol description (PROTOCOL.md). Every message travels in an `Envelope`
that names its sender and the view that the sender has installed. What members say of their steps: progress.py.
"""

from dataclasses import dataclass
from enum import IntEnum

from .claim import Claim
from .given_up import GivenUp
from .progress import NOTHING_DONE, Abort, Beat, Finish, Progress, Ready, StateQuery
from .run_description import RunDescription
from .view import NO_NUMERICS, Member, Stamp, View, wrong_numerics

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
        run: what this peer runs, and the state that it can receive.
        follows: it observes: it takes committed steps while it has no seat, and wants one when it is current.
        done: the last step that it has taken over; `digest` is of the chain up to it.
        view_number: the latest view, in the receiver's lineage, up to which it knows that it had no seat; 0: none.
        numerics: 8 bytes, its numerics class, for its seat.
        step_us: what its script takes for a step, in microseconds; 0: not known.
        lags: it cannot catch up by what it is fed, and its script waits where it can load a state at once.

    Raises:
        ValueError: `numerics` has another length.
    """

    run: RunDescription
    follows: bool = False
    done: int = NOTHING_DONE
    digest: bytes = b""
    view_number: int = 0
    numerics: bytes = NO_NUMERICS
    step_us: int = 0
    lags: bool = False

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
class Difference:
    """What the sender of REFUSE has of that name, for people; None: it has nothing."""

    name: str
    text: bytes | None


@dataclass(frozen=True, slots=True)
class Refuse:
    """REFUSE: no seat for you, since you run or train something else than I do, or I cannot give you the state.

    Attributes:
        trains_model: whether its sender does.
        differences: in what you and I differ; at least one, unless there is a reason.
        reason: for which you are not given the state that you have asked me for; empty: you have not.
    """

    trains_model: bool
    differences: tuple[Difference, ...]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Leave:
    """LEAVE: I start no further step; decide a view without me.

    Attributes:
        outvoted: the step in which I have other parameters, or call something else, than who stays; without me it is
            to be done over.
        given_up: the open step, if I know that it is.
        finish: the open step, if I have finished it.
    """

    outvoted: int = NOTHING_DONE
    given_up: GivenUp | None = None
    finish: Finish | None = None


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
class Choice:
    """Where all members of `lineage` have died: its writer lets `heir` go on, or is that one, and goes on itself."""

    lineage: bytes
    heir: Member


@dataclass(frozen=True, slots=True)
class AcceptorRecord:
    """What an acceptor has promised and accepted: the page that outlives its process (policy `live`).

    Attributes:
        view: the latest view that it has installed or decided; None before the first.
        promised: its promise for the successor of `view`.
        vote: what it has accepted as the successor of `view`.
        choice: of a peer that never had a view, who goes on without its members.
    """

    view: View | None
    promised: Ballot
    vote: Vote | None
    choice: Choice | None = None


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
    FLAPPING = 7
    """It comes and goes: silent for most of the last seconds, and never for long."""


@dataclass(frozen=True, slots=True)
class Report:
    """REPORT: what I have seen, for as long as it stays so. Said again with every beat.

    Attributes:
        kind: of the observation.
        subject: whom it is about; of STALLED to READABLE, the sender.
        step: of STALLED to READABLE, the open step.
        record: of PROVEN, what the dead member has left behind, if it could be read.
        given_up: the open step, if its sender knows that it is.
    """

    kind: ReportKind
    subject: Member
    step: int = NOTHING_DONE
    record: AcceptorRecord | None = None
    given_up: GivenUp | None = None


@dataclass(frozen=True, slots=True)
class Died:
    """DIED: my process has ended, and this is my record. Said for the sender by its launcher, its parent process."""

    record: AcceptorRecord


@dataclass(frozen=True, slots=True)
class Held:
    """HELD: all members of `lineage` have died, and I, who had no seat, hold the state after `step`; 0: none.

    `heir`: who goes on, as far as I know; None: that is not decided.
    """

    lineage: bytes
    step: int
    heir: Member | None


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
    | Held
)


@dataclass(frozen=True, slots=True)
class Envelope:
    """A message, who sends it, and the view that the sender has installed."""

    sender: Member
    stamp: Stamp
    body: Body
