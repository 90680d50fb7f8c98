"""Four members, and views of them."""

from gossip import Claim, Contact, Member, Seat, State, View

A, B, C, D = (Member(name, 1) for name in "abcd")
A2 = Member("a", 2)
LINEAGE = b"lineage of tests"


def claim(member: Member, state: State = State.ALIVE) -> Claim:
    contact = Contact(f"control {member.peer_id}", f"data {member.peer_id}", 100 + member.incarnation, 7)
    return Claim(member, state, contact)


def view_of(number: int, *members: Member, since: int = 1, founding_size: int = 1, parent: bytes = b"parent") -> View:
    return View(LINEAGE, number, founding_size, tuple(Seat(member, since) for member in members), parent)
