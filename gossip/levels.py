"""What members have finished of a step, compared: the level of a barrier, who stays, and what differs.

Pure functions of what members have said; commit.py acts on them.
"""

from collections.abc import Mapping
from dataclasses import replace
from hashlib import blake2b

from .given_up import GivenUp
from .progress import Finish, Progress, Ready
from .seniority import NOBODY, staying
from .view import Member, View


def chain(digest: bytes, finish: Finish) -> bytes:
    """Digest of all steps up to `finish`, whose predecessor's is `digest`."""
    step = finish.step.to_bytes(8, "little", signed=True)
    return blake2b(digest + step + finish.digest + finish.state_digest, digest_size=16).digest()


def without_void(seated: dict[Member, Ready], given_up: list[GivenUp]) -> dict[Member, Ready]:
    """What counts of it: not what was finished of a step that somebody has given up since."""

    def is_void(finish: Finish) -> bool:
        return any(finish.step == each.step and finish.view_number <= each.void_until for each in given_up)

    return {m: replace(r, finish=None) if r.finish and is_void(r.finish) else r for m, r in seated.items()}


def common_level(seated: dict[Member, Ready], view: View, founded_in: int) -> tuple[int, bytes, str]:
    """The last step that every seated member has finished, the digest of the chain up to it, and what is odd.

    A step that was finished in different views, or with different digests, was committed by nobody.
    """
    done = min(ready.done if ready.finish is None else ready.finish.step for ready in seated.values())
    finishes = [r.finish for r in seated.values() if r.finish is not None and r.finish.step == done]
    committed = [ready.digest for ready in seated.values() if ready.done == done]
    if committed:
        return done, committed[0], ""
    base = next(ready.digest for ready in seated.values() if ready.done == done - 1)
    if len(set(finishes)) == 1:
        return done, chain(base, finishes[0]), ""
    said = {member: ready.finish.state_digest for member, ready in seated.items() if ready.finish is not None}
    seats = [seat for seat in view.seats if seat.member in seated]
    is_settled = len({*said.values()}) > 1 and staying(seats, founded_in, said) != NOBODY
    if is_settled or len({(finish.digest, finish.state_digest) for finish in finishes}) == 1:
        return done - 1, base, ""  # where some stay, the step shows again who does not
    shown = {m: r.finish for m, r in seated.items() if r.finish is not None and r.finish.step == done}
    if len({finish.digest for finish in shown.values()}) > 1:
        what, digests = "results", {m: finish.digest for m, finish in shown.items()}
    else:
        what, digests = "parameters", {m: finish.state_digest for m, finish in shown.items()}
    names = ", ".join(f"{m}: {digest.hex()}" for m, digest in digests.items())
    return done - 1, base, f"step {done} was finished with different bits, of its {what}: {names}"


def has_finished(progress: Progress, mine: Finish) -> bool:
    """What was finished in an older view counts at the barrier only, which may yet drop it."""
    theirs = progress.finish
    if theirs is not None and (theirs.step, theirs.view_number) == (mine.step, mine.view_number):
        return True
    return progress.done >= mine.step


def recency(progress: Progress) -> tuple[int, int, int, int]:
    """Orders what one member says in one view."""
    number, step = (0, 0) if progress.finish is None else (progress.finish.view_number, progress.finish.step)
    return progress.done, number, step, progress.submitted


def who_stays(
    view: View, founded_in: int, me: Member, mine: Finish, others: Mapping[Member, Progress]
) -> frozenset[Member]:
    """Of the members that have finished this step with other parameters than others; `NOBODY` also if none has."""
    finishes = {member: progress.finish for member, progress in others.items()}
    said = {member: finish.state_digest for member, finish in finishes.items() if finish and finish.step == mine.step}
    said[me] = mine.state_digest
    return (staying(view.seats, founded_in, said) if len({*said.values()}) > 1 else None) or NOBODY


def difference(me: Member, mine: Finish, other: Member, progress: Progress, committed: bytes) -> str:
    """How what `other` says of the step differs from what this member has; empty if it does not."""
    theirs = progress.finish
    if theirs is None or theirs.step != mine.step:
        same = progress.done != mine.step or progress.digest == committed
        return "" if same else f"step {mine.step} has another digest at {other} than at {me}, which has finished it"
    if theirs.state_digest != mine.state_digest:
        what = "parameters", mine.state_digest, theirs.state_digest
    elif theirs.digest != mine.digest:
        what = "results", mine.digest, theirs.digest
    else:
        return ""
    return f"{what[0]} of step {mine.step} differ: {what[1].hex()} at {me}, {what[2].hex()} at {other}"
