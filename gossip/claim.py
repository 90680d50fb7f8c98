"""Claims about peers, and the one rule that says which of two claims stands (SWIM, Das et al. 2002, section 4.2).

Leaves out: suspicion and its refutation.
"""

from dataclasses import dataclass
from enum import IntEnum

from .view import Member


class State(IntEnum):
    """What a claim says of its subject, in the order in which claims of one incarnation override each other."""

    ALIVE = 0
    LEFT = 1
    DEAD = 2


@dataclass(frozen=True, slots=True)
class Contact:
    """Where a peer is reached, and its process as the kernel of its host knows it."""

    control: str
    data: str
    pid: int
    process_start: int


NOWHERE = Contact("", "", 0, 0)
"""Of a peer that died before it was met."""


@dataclass(frozen=True, slots=True)
class Claim:
    """`member`, reached at `contact`, is in `state`."""

    member: Member
    state: State
    contact: Contact


def overrides(new: Claim, old: Claim) -> bool:
    """Whether `new` replaces `old` about the same peer_id.

    A greater incarnation is another, later process and always wins; within one, leaving and death are final.
    """
    return (new.member.incarnation, new.state) > (old.member.incarnation, old.state)
