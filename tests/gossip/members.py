"""Five members, and views of them."""

from gossip import Claim, Contact, Member, Policy, Seat, State, View

A, B, C, D, E = (Member(name, 1) for name in "abcde")
A2 = Member("a", 2)
LINEAGE = b"lineage of tests"


def contact_of(member: Member) -> Contact:
    return Contact(f"control {member.peer_id}", f"data {member.peer_id}", 100 + member.incarnation, 7)


def claim(member: Member, state: State = State.ALIVE) -> Claim:
    return Claim(member, state, contact_of(member))


def view_of(
    number: int,
    *members: Member,
    since: int = 1,
    founding_size: int = 1,
    parent: bytes = b"parent",
    policy: Policy = Policy.MAJORITY,
) -> View:
    return View(LINEAGE, number, founding_size, tuple(Seat(member, since) for member in members), parent, policy)
