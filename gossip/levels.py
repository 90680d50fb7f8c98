"""Comparison of what members have finished: the level of a barrier, the members that stay, and differences.

Pure functions of what members have said; commit.py acts on them.
"""

from collections.abc import Mapping
from dataclasses import replace
from hashlib import blake2b

from . import numerics
from .given_up import GivenUp, latest_view
from .progress import LAST_STEP, NOTHING_DONE, Finish, Progress, Ready
from .seniority import NOBODY
from .view import Member, View


def chain(digest: bytes, finish: Finish) -> bytes:
    """Digest of the chain up to `finish`; `digest`: of the chain before it. Of results alone, in a mixed view."""
    step, agreed = finish.step.to_bytes(8, "little", signed=True), finish.agreed
    return blake2b(digest + step + agreed.digest + agreed.state_digest, digest_size=16).digest()


def without_void(seated: dict[Member, Ready], given_up: list[GivenUp]) -> dict[Member, Ready]:
    """READY of the seated members, without finishes of steps that were given up since."""

    def is_void(finish: Finish) -> bool:
        return any(finish.step == each.step and finish.view_number <= each.void_until for each in given_up)

    return {m: replace(r, finish=None) if r.finish and is_void(r.finish) else r for m, r in seated.items()}


def common_level(seated: dict[Member, Ready], view: View, founded_in: int) -> tuple[int, bytes, str]:
    """The last step that every seated member has finished, the digest of the chain up to it, and any contradiction.

    A step that was finished in different views, or with different digests, was committed by no member.
    """
    done = min(ready.done if ready.finish is None else ready.finish.step for ready in seated.values())
    finishes = [r.finish for r in seated.values() if r.finish is not None and r.finish.step == done]
    committed = [ready.digest for ready in seated.values() if ready.done == done]
    if committed:
        return done, committed[0], ""
    base = next(ready.digest for ready in seated.values() if ready.done == done - 1)
    seats = [seat for seat in view.seats if seat.member in seated]
    found = numerics.cases(seats, {m: ready.finish for m, ready in seated.items() if ready.finish is not None})
    if len({finish.agreed for finish in finishes}) == 1 and not found:
        return done, chain(base, finishes[0]), ""
    is_settled = found and numerics.who_stays(seats, founded_in, found) != NOBODY
    if is_settled or (not found and len({finish.digest for finish in finishes}) == 1):
        return done - 1, base, ""  # where some stay, the redone step shows again which do not
    shown = {m: r.finish for m, r in seated.items() if r.finish is not None and r.finish.step == done}
    if len({finish.digest for finish in shown.values()}) > 1:
        what, digests = "results", {m: finish.digest for m, finish in shown.items()}
    else:
        what, digests = "parameters", {m: finish.state_digest for m, finish in shown.items()}
    names = ", ".join(f"{m}: {digest.hex()}" for m, digest in digests.items())
    return done - 1, base, f"step {done} was finished with different bits, of its {what}: {names}"


def has_finished(progress: Progress, mine: Finish) -> bool:
    """Whether a member has finished the step of `mine` in the same view; older finishes count only in a barrier."""
    theirs = progress.finish
    if theirs is not None and (theirs.step, theirs.view_number) == (mine.step, mine.view_number):
        return True
    return progress.done >= mine.step


def recency(progress: Progress) -> tuple[int, ...]:
    """Sort key of what one member says in one view."""
    number, step = (0, 0) if progress.finish is None else (progress.finish.view_number, progress.finish.step)
    return progress.done, number, step, progress.submitted, progress.inner_steps


def who_stays(
    view: View, founded_in: int, me: Member, mine: Finish, others: Mapping[Member, Progress]
) -> frozenset[Member]:
    """Members that stay, if members have finished this step with different parameters; `NOBODY` also if none differ."""
    found = numerics.cases(view.seats, _finishes(me, mine, others))
    return numerics.who_stays(view.seats, founded_in, found) or NOBODY if found else NOBODY


def difference(view: View, me: Member, mine: Finish, others: Mapping[Member, Progress], committed: bytes) -> str:
    """In what members differ in this step; empty if they do not. `committed`: digest of the chain up to it."""
    said = _finishes(me, mine, others)
    for _, words in numerics.cases(view.seats, said):
        one = me if me in words else next(iter(words))
        other = next(member for member, word in words.items() if word != words[one])
        return _differ("parameters", mine.step, one, said[one].state_digest, other, said[other].state_digest)
    for other, finish in said.items():
        if finish.digest != mine.digest:
            return _differ("results", mine.step, me, mine.digest, other, finish.digest)
    for other, progress in others.items():
        if other not in said and progress.done == mine.step and progress.digest != committed:
            return f"step {mine.step} has another digest at {other} than at {me}, which has finished it"
    return ""


def _finishes(me: Member, mine: Finish, others: Mapping[Member, Progress]) -> dict[Member, Finish]:
    """Finishes of this step, as members have said."""
    finishes = {member: progress.finish for member, progress in others.items()}
    return {me: mine, **{m: finish for m, finish in finishes.items() if finish and finish.step == mine.step}}


def _differ(what: str, step: int, one: Member, at_one: bytes, other: Member, at_other: bytes) -> str:
    return f"{what} of step {step} differ: {at_one.hex()} at {one}, {at_other.hex()} at {other}"


def is_sound(body: Ready | Progress, view: View) -> bool:
    """Whether a member of `view` can send this: a finish of the next step only, a step given up in an older view."""
    if isinstance(body, Ready) and body.given_up is not None and latest_view(body.given_up) >= view.number:
        return False
    in_range = NOTHING_DONE <= body.done < LAST_STEP
    return in_range and (body.finish is None or body.finish.step == body.done + 1)
