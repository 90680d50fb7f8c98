"""Parcels to send, and views to name in them."""

from collections.abc import Sequence

from gossip import Member, Policy, Seat, View
from gossip.progress import Finish
from p2p.net.parcels import Parcel, StateRecord, StepRecord

A, B, C = (Member(16 * name, 1) for name in "abc")
LINEAGE = bytes(range(16))


def view_of(*members: Member, number: int = 1) -> View:
    return View(LINEAGE, number, 1, tuple(Seat(member, 1) for member in members), b"", Policy.LIVE, members[0].peer_id)


def digest(step: int) -> bytes:
    return step.to_bytes(16, "little", signed=True)


def state(step: int, *parts: bytes, view: View | None = None) -> Parcel:
    return Parcel(step, StateRecord(digest(step), view or view_of(A)), parts or (b"tree",))


def fed(step: int, *results: bytes, fingerprints: Sequence[bytes] = (), num_added: int = 0) -> Parcel:
    """A step that A has committed alone, after the previous one; by default with made-up fingerprints.

    `num_added`: number of operations that the runtime has added.
    """
    named = tuple(fingerprints) or tuple(bytes([index] * 16) for index in range(len(results)))
    finish = Finish(step, b"r" * 16, b"p" * 16, 1)
    algorithms = ("ring",) * (len(results) - num_added)
    record = StepRecord(digest(step - 1), digest(step), finish, view_of(A), ((-1, 0, 0),), algorithms, named)
    return Parcel(step, record, results)
