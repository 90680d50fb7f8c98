"""Claims about peers, and the one order that says which of two claims stands (SWIM, Das et al. 2002, section 4.2).

A member is *suspect* when its probes fail, and *lost* when nobody denied that in time. Only the member itself denies:
it raises its refutation. What the kernel says (*dead*) and what a member says of its own end (*left*) nobody denies;
both are final for the incarnation. Two sides of a partition take each other for lost, so that must not be final.
"""

from dataclasses import dataclass
from enum import IntEnum

from .view import Contact, Member


class State(IntEnum):
    """What a claim says of its subject, in the order in which claims of one refutation override each other."""

    ALIVE = 0
    SUSPECT = 1
    LOST = 2
    LEFT = 3
    DEAD = 4


@dataclass(frozen=True, slots=True)
class Status:
    """How a peer is doing, as any other can show it.

    Attributes:
        version: raised with every change.
        view_number: of the view in which it has a seat; 0: it has none.
        step: the last one that it has committed.
        steps_per_s: lately.
        loss: of that step, as the script gave it; 0.0 if it gave none.
        digest: of the chain of steps up to it.
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
        refutation: raised by the member alone, to deny that it is suspect or lost.
        accuser: who says so, of SUSPECT and LOST: independent accusers shorten a suspicion. Not part of the order.
    """

    member: Member
    state: State
    contact: Contact
    refutation: int = 0
    status: Status = Status()
    accuser: str = ""


Order = tuple[int, int, int, int, int]


def order(claim: Claim) -> Order:
    """Of two claims about one peer_id, the greater stands; equal ones say the same.

    A greater incarnation is another, later process. Within one, leaving and death are final, then the greatest
    refutation counts, then the worse state, then the newer status.
    """
    final = claim.state if claim.state >= State.LEFT else 0
    return claim.member.incarnation, final, claim.refutation, claim.state, claim.status.version


def overrides(new: Claim, old: Claim) -> bool:
    """Whether `new` replaces `old` about the same peer_id."""
    return order(new) > order(old)
