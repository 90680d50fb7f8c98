"""Messages about peers and views. Plain values, no behaviour.

The names in capitals are those of the protocol description (PROTOCOL.md). Every message travels in an `Envelope` that
names its sender and the view that the sender has installed. Messages about steps: progress.py.
"""

from dataclasses import dataclass
from enum import IntEnum

from .claim import Claim
from .given_up import GivenUp
from .progress import NOTHING_DONE, Abort, Beat, Finish, Progress, Ready, StateQuery
from .run_description import RunDescription
from .view import NO_NUMERICS, Member, Stamp, View, wrong_numerics

# Discovery and admission: sent to any peer, in any view.


@dataclass(frozen=True, slots=True)
class Ping:
    """PING: are you alive? Carries news about other peers."""

    nonce: int
    claims: tuple[Claim, ...]


@dataclass(frozen=True, slots=True)
class Ack:
    """ACK: I am, and this is my news. A peer that got PING-REQ passes it on."""

    nonce: int
    claims: tuple[Claim, ...]


@dataclass(frozen=True, slots=True)
class PingRequest:
    """PING-REQ: probe `target` for me."""

    nonce: int
    target: Member


@dataclass(frozen=True, slots=True)
class NoAck:
    """NO-ACK: I probed as you asked, without an answer; but I am alive (Lifeguard)."""

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
    """SYNC-REPLY: these buckets differ, and these are my claims in them; answered with GOSSIP."""

    buckets: tuple[int, ...]
    claims: tuple[Claim, ...]


@dataclass(frozen=True, slots=True)
class Join:
    """JOIN: I ask for a seat. Valid in the view with this number and in the next one.

    Attributes:
        run: what this peer runs, and the state that it can receive.
        follows: it observes: without a seat it takes committed steps, and wants a seat once it is current.
        done: the last step that it has taken over; `digest` is of the chain up to it.
        view_number: the latest view of the receiver's lineage up to which it had no seat for certain; 0: none.
        numerics: 8 bytes, its numerics class, for its seat.
        step_us: time that its script takes for a step, in microseconds; 0: not known.
        lags: it cannot catch up by the steps it is fed, and its script waits where it can load a state at once.

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
    """HEAD: I have installed this view, and you have no seat in it. Answers a JOIN, and is repeated for the next view.

    Attributes:
        step: the last step committed here, if the sender feeds the receiver; `digest` is of the chain up to it, and
            empty if the sender does not.
        view_number: number of that view.
        absent_since: the first of the views, up to this one, in which the receiver had no seat for certain: the one
            after the view that its JOIN named, or as far back as the sender knows.
    """

    step: int
    digest: bytes
    view_number: int = 0
    absent_since: int = 0


@dataclass(frozen=True, slots=True)
class LineageQuery:
    """LINEAGE?: does this swarm exist already? Sent by a peer that may found it."""


@dataclass(frozen=True, slots=True)
class LineageAnswer:
    """LINEAGE: the lineage that I know; empty if none."""

    lineage: bytes


@dataclass(frozen=True, slots=True)
class Difference:
    """The text of one trait at the sender of REFUSE, for people; None: the sender lacks the trait."""

    name: str
    text: bytes | None


@dataclass(frozen=True, slots=True)
class Refuse:
    """REFUSE: no seat for you, since you run or train something other than I do, or I cannot give you the state.

    Attributes:
        trains_model: whether the sender trains a model.
        differences: traits in which the receiver and the sender differ; at least one, unless there is a reason.
        reason: why the state is not given that the receiver has asked for; empty: it has not asked for one.
    """

    trains_model: bool
    differences: tuple[Difference, ...]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Leave:
    """LEAVE: I start no further step; decide a view without me.

    Attributes:
        outvoted: the step in which I have parameters, or call operations, other than those of the members that stay; it
            is to be redone without me.
        given_up: the open step, if I know that it is given up.
        finish: the open step, if I have finished it.
    """

    outvoted: int = NOTHING_DONE
    given_up: GivenUp | None = None
    finish: Finish | None = None


@dataclass(frozen=True, slots=True)
class ViewQuery:
    """VIEW?: do you know a later view than the one on this envelope?"""


@dataclass(frozen=True, slots=True)
class Decide:
    """DECIDE: this view is decided."""

    view: View


# Agreement on the next view: between the members of the view on the envelope.


@dataclass(frozen=True, slots=True, order=True)
class Ballot:
    """Number of a proposal; the rank makes it unique."""

    round: int
    rank: int


@dataclass(frozen=True, slots=True)
class Vote:
    """A view that an acceptor has accepted, and the ballot."""

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
    """The writer's choice of the heir, the peer that continues `lineage` after all its members have died."""

    lineage: bytes
    heir: Member


@dataclass(frozen=True, slots=True)
class AcceptorRecord:
    """Promise and vote of an acceptor, on the page that outlives its process (policy `live`).

    Attributes:
        view: the latest view that it has installed or decided; None before the first.
        promised: its promise for the successor of `view`.
        vote: its vote for the successor of `view`.
        choice: written by a peer that never had a view: the heir, which continues without its members.
    """

    view: View | None
    promised: Ballot
    vote: Vote | None
    choice: Choice | None = None


class ReportKind(IntEnum):
    """Subject and certainty of a report."""

    PROVEN = 0
    """The kernel says that the process has ended."""
    REFUSED = 1
    """The link to the subject was lost, and a new one was refused."""
    SILENT = 2
    """The subject was silent for too long."""
    STALLED = 3
    """An operation that all have submitted does not complete: frames were lost."""
    WITHDRAWN = 4
    """The sender restarts the open step, and takes part in it with weight 0."""
    ABORTED = 5
    """The sender has given up the open step."""
    READABLE = 6
    """The sender can now read the memory of all others, and could not when it installed the view."""
    FLAPPING = 7
    """The subject was silent for most of the last seconds, though never for long."""


@dataclass(frozen=True, slots=True)
class Report:
    """REPORT: an observation of mine, repeated with every beat as long as it holds.

    Attributes:
        kind: of the observation.
        subject: the member that it is about; of STALLED to READABLE, the sender.
        step: of STALLED to READABLE, the open step.
        record: of PROVEN, the acceptor record of the dead member, if it could be read.
        given_up: the open step, if the sender knows that it is given up.
    """

    kind: ReportKind
    subject: Member
    step: int = NOTHING_DONE
    record: AcceptorRecord | None = None
    given_up: GivenUp | None = None


@dataclass(frozen=True, slots=True)
class Died:
    """DIED: my process has ended, and this is my record. Sent for the sender by its launcher, its parent process."""

    record: AcceptorRecord


@dataclass(frozen=True, slots=True)
class Held:
    """HELD: all members of `lineage` have died, and I, without a seat, hold the state after `step`; 0: none.

    `heir`: the peer that is to continue, as far as I know; None: not decided.
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
    """A message with its sender and the stamp of the view that the sender has installed."""

    sender: Member
    stamp: Stamp
    body: Body
