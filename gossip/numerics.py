"""Numerics classes: members that compute the same bits, and what is compared between members (R20 of PROTOCOL.md).

The members of one class have equal parameters: their hardware and software compute alike, and they began with the same
bits. A class is 8 bytes: 4 for what computes, and 4 for the origin: zeros for members that began with the run's first
state, else derived from the peer that received the state from members with other hardware.

Pure functions of views, and of what their members have finished.
"""

from collections.abc import Mapping, Sequence
from hashlib import blake2b

from .progress import Finish
from .seniority import NOBODY, staying
from .view import HARDWARE_BYTES, Member, Seat, View, is_akin

Words = Mapping[Member, bytes]
Case = tuple[Sequence[Seat], Words]
"""Seats whose members differ in part, and the word of each."""

NEAR = b""
"""Word of members near the source of a re-synchronisation (R21): they count as equal to it, in any class."""


def inherited(own: bytes, donors: bytes, me: Member, step: int) -> bytes:
    """Numerics class of `me`, with hardware `own`, after it has loaded the state after `step` from class `donors`.

    Before the first update all have the same bits. Later ones depend on what computed them: two peers that received the
    state of other hardware at different steps have computed different bits.
    """
    if is_akin(own, donors):
        return donors
    return own if step <= 0 else apart(own, me, step)


def apart(own: bytes, me: Member, step: int) -> bytes:
    """A separate class for `me`, with hardware `own`, which continues from the state after `step`."""
    origin = f"{me.peer_id}/{me.incarnation}/{step}".encode()
    return own[:HARDWARE_BYTES] + blake2b(origin, digest_size=len(own) - HARDWARE_BYTES).digest()


def source_of(view: View) -> int:
    """Rank of the source of a re-synchronisation in `view`: the oldest member of the largest class.

    Of classes of equal size, the class of the oldest member.
    """
    classes = [seat.numerics for seat in view.seats]
    return classes.index(max(classes, key=classes.count))  # the first of the greatest


def marked(state_digest: bytes, *, is_far: bool) -> bytes:
    """`state_digest` with the flag of a mixed view; `is_far`: this member is far from the source in this step (R21)."""
    return state_digest[:15] + bytes([is_far])


def cases(seats: Sequence[Seat], said: Mapping[Member, Finish]) -> list[Case]:
    """Differences between members' parameters, if any; R17 decides each case.

    If any member is far from the source, all are compared; else only within each class.
    """
    if any(finish.is_far for finish in said.values()):
        numerics = {seat.member: seat.numerics for seat in seats}
        return [(seats, {m: numerics[m] + finish.bits if finish.is_far else NEAR for m, finish in said.items()})]
    found: list[Case] = []
    for each in dict.fromkeys(seat.numerics for seat in seats):
        group = [seat for seat in seats if seat.numerics == each]
        words = {seat.member: said[seat.member].bits for seat in group if seat.member in said}
        if len({*words.values()}) > 1:
            found.append((group, words))
    return found


def who_stays(seats: Sequence[Seat], founded_in: int, found: Sequence[Case]) -> frozenset[Member] | None:
    """Members of `seats` that stay, by R17 in each of the cases `found`.

    Returns:
        `NOBODY`: in one of the cases none can stay, so all raise. None: it depends on members that have not spoken.
    """
    stays = frozenset(seat.member for seat in seats)
    verdicts = [(group, staying(group, founded_in, words)) for group, words in found]
    if any(verdict == NOBODY for _, verdict in verdicts):
        return NOBODY
    for group, verdict in verdicts:
        if verdict is None:
            return None
        stays -= {seat.member for seat in group} - verdict
    return stays
