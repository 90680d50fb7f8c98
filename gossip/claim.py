"""Claims about peers, and the order that decides which of two claims stands (SWIM, Das et al. 2002, section 4.2).

A member is *suspect* when its probes fail, and *lost* when it has not refuted that in time. Only the member itself
refutes, by raising its refutation. *Dead*, the kernel's word, and *left*, what a member says of its own end, cannot be
refuted: both are final for the incarnation. *Lost* is not final, since the two sides of a partition take each other for
lost.
"""

from dataclasses import dataclass
from enum import IntEnum

from .view import Contact, Member


class State(IntEnum):
    """State of a member according to a claim, in the order in which claims of one refutation override each other."""

    ALIVE = 0
    SUSPECT = 1
    LOST = 2
    LEFT = 3
    DEAD = 4


@dataclass(frozen=True, slots=True)
class Status:
    """Progress of a peer, as any other peer can display it.

    Attributes:
        version: raised with every change.
        view_number: number of the view in which the peer has a seat; 0: it has none.
        step: the last step that it has committed.
        steps_per_s: its recent rate.
        loss: loss of that step, as the script gave it; 0.0 if it gave none.
        digest: of the chain of steps up to that step.
    """

    version: int = 0
    view_number: int = 0
    step: int = -1
    steps_per_s: float = 0.0
    loss: float = 0.0
    digest: bytes = b""


@dataclass(frozen=True, slots=True)
class Claim:
    """`member`, reached at `contact`, is in `state`.

    Attributes:
        refutation: raised only by the member, to refute that it is suspect or lost.
        accuser: the peer that claims SUSPECT or LOST; independent accusers shorten a suspicion. Not part of the order.
    """

    member: Member
    state: State
    contact: Contact
    refutation: int = 0
    status: Status = Status()
    accuser: str = ""


Order = tuple[int, int, int, int, int]


def order(claim: Claim) -> Order:
    """Sort key of a claim: of two claims about one peer_id the greater stands; equal ones say the same.

    A greater incarnation is a later process. Within one incarnation, LEFT and DEAD are final; then the greater
    refutation wins, then the worse state, then the newer status.
    """
    final = claim.state if claim.state >= State.LEFT else 0
    return claim.member.incarnation, final, claim.refutation, claim.state, claim.status.version


def overrides(new: Claim, old: Claim) -> bool:
    """Whether `new` replaces `old` about the same peer_id."""
    return order(new) > order(old)
