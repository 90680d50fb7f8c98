"""Numerics classes: which members compute the same bits, and what of theirs is compared (R20 of PROTOCOL.md).

The members of one class have equal parameters: what computes there is the same, and it began with the same bits. A
class is 8 bytes, 4 of what computes, and 4 of where such hardware came in: zeros for those who began with the run's
first state, else of the peer that was given the state by members with other hardware.

Pure functions of views, and of what their members have finished.
"""

from collections.abc import Mapping, Sequence
from hashlib import blake2b

from .progress import Finish
from .seniority import NOBODY, staying
from .view import HARDWARE_BYTES, Member, Seat, View, is_akin

Words = Mapping[Member, bytes]
Case = tuple[Sequence[Seat], Words]
"""Seats of which some members differ, and what each has said."""

NEAR = b""
"""Who is not far from the source of a re-synchronisation (R21) is like it, whatever its class."""


def inherited(own: bytes, donors: bytes, me: Member, step: int) -> bytes:
    """The class of `me`, of hardware `own`, with the state after `step` of a member of class `donors`.

    Before the first update all have the same bits. Later ones are computed on: two peers that were given the state of
    other hardware at different steps have computed other bits.
    """
    if is_akin(own, donors):
        return donors
    return own if step <= 0 else apart(own, me, step)


def apart(own: bytes, me: Member, step: int) -> bytes:
    """A class of its own for `me`, of hardware `own`, which goes on from the state after `step`."""
    origin = f"{me.peer_id}/{me.incarnation}/{step}".encode()
    return own[:HARDWARE_BYTES] + blake2b(origin, digest_size=len(own) - HARDWARE_BYTES).digest()


def source_of(view: View) -> int:
    """The rank whose bytes all take at a re-synchronisation in `view`: the oldest member of the largest class.

    Of classes of one size that of the oldest member.
    """
    classes = [seat.numerics for seat in view.seats]
    return classes.index(max(classes, key=classes.count))  # the first of the greatest


def marked(state_digest: bytes, *, is_far: bool) -> bytes:
    """`state_digest` as it is said in a view of several classes; `is_far`: from the source, in this step (R21)."""
    return state_digest[:15] + bytes([is_far])


def cases(seats: Sequence[Seat], said: Mapping[Member, Finish]) -> list[Case]:
    """Where the parameters of members differ, if they do anywhere; each case is one for R17.

    Far from the source, all are compared; else within each class.
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
    """Who stays of `seats`, by R17 in each of the cases that were `found`.

    Returns:
        `NOBODY`: in one of them none can stay, so all raise. None: what others have still to say may count.
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
