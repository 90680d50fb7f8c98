"""Failed peers in the order of causes, from records of peers and the ends of their processes. Pure.

A peer has failed at the first sign of it: it raised, its process ended, another peer recorded that it is gone, or
continued without it. A peer that waited for one that stood still, and then ended by itself, failed because of the
other, which comes first.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from .records import ADVANCES, COMMITS, How, Kind, Record
from .timeline import activity

LATER_S: Final = 0.5
"""A peer killed more than this after the first sign of its failure had fallen silent before."""

MOST_CHARACTERS: Final = 200
"""Of the last words of a peer."""
_GREETING: Final = re.compile(r"(founded|joined) swarm \S+ at step \d+")
"""As of `p2p.join`: who has said nothing since has not said why it ended."""

_KNOWN_BY: Final = {How.KERNEL: "the kernel", How.LAUNCHER: "its launcher"}
_OF_OTHERS: Final = (Kind.GONE, Kind.IN, Kind.OUT)
_HAD_A_SEAT: Final = (Kind.ACTIVE, Kind.COMMITTED)
_HAD_NONE: Final = (Kind.ASKED, Kind.LOADED, Kind.FOLLOWED)
_DOUBTS: Final = (Kind.SUSPECTED, Kind.CLEARED, Kind.LOST)
_LEAVING: Final = (Kind.LEAVES, Kind.LEFT)
_WAITS: Final = ("exchanging", "waiting for the others to finish")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessTrace:
    """The records of one peer, and the end of its process.

    Attributes:
        name: in messages.
        records: in the order of their times.
        last_step: on its receipts; -1: there is none.
        ended_ns: when its process had ended; 0: unknown.
        code: exit code of its process, -N for signal N; None: unknown.
        how: the end in words ("was killed by SIGKILL").
        has_failed: by its code; None: unknown.
        last_words: the last line that it wrote.
    """

    peer_id: str
    name: str
    records: Sequence[Record] = ()
    last_step: int = -1
    ended_ns: int = 0
    code: int | None = None
    how: str = ""
    has_failed: bool | None = None
    last_words: str = ""

    def until(self, time_ns: int) -> list[Record]:
        """Its records up to this time, without those of its end."""
        return [record for record in self.records if record.time_ns <= time_ns and record.kind not in _ENDS]

    def ends(self) -> list[Record]:
        """Records of its final end (left, removed or diverged), latest first; empty: there is none, or it came back."""
        found = list[Record]()
        for record in reversed(self.records):
            if record.kind in ADVANCES:
                break  # the peer has come back since
            if record.kind in _ENDS:
                found.insert(0, record)
        return found

    def has_seat(self, time_ns: int) -> bool:
        """Whether others may have waited for it then; so it is where nothing is known of it."""
        for record in reversed(self.until(time_ns)):
            if record.kind in (*_HAD_A_SEAT, *_HAD_NONE):
                return record.kind in _HAD_A_SEAT
        return True


@dataclass(frozen=True, slots=True)
class Other:
    """Another peer at the time of a failure.

    Attributes:
        at: its activity.
        for_s: how long that had lasted.
        waits: it waited for the peer that failed.
        lags: the failed peer waited for it: it had not submitted the step.
        went_on_s: time from the failure to its next commit; None: there is none.
    """

    name: str
    at: str
    for_s: float
    waits: bool
    lags: bool
    went_on_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One peer that has failed.

    Attributes:
        how: the kind of failure, in words.
        time_ns: of the first sign of it.
        since_ns: when its last activity began; 0: unknown.
        step: in which it failed; -1: before its first one.
        at: its last activity; empty: unknown.
        last_words: the last line that it wrote, if it ended by itself.
        known_by: the source of the first word that it is gone; empty: there is none, or it was silence.
        others: peers that took part at the time.
        redone: steps that the others redid.
        suspected: (name, seconds) of each peer that suspected it at that time, and since when.
        after: name of a peer that failed earlier, since which this peer has committed nothing; empty: none.
    """

    name: str
    how: str
    time_ns: int
    since_ns: int
    step: int
    at: str
    last_words: str
    known_by: str
    others: tuple[Other, ...]
    redone: tuple[int, ...]
    suspected: tuple[tuple[str, float], ...]
    after: str = ""

    @property
    def waited_for(self) -> tuple[str, ...]:
        """Names of the peers that it waited for when it failed."""
        return tuple(other.name for other in self.others if other.lags)


def failures(trails: Sequence[ProcessTrace]) -> list[Failure]:
    """All failures, in the order of causes."""
    found = [(each, trail) for trail in trails if (each := _failure(trail, trails)) is not None]
    found.sort(key=lambda item: item[0].time_ns)
    ordered: list[tuple[Failure, ProcessTrace]] = []
    for each, trail in found:
        by_itself = trail.code is not None and trail.code > 0
        for item in found:
            cause = item[0]
            stood = cause.name in each.waited_for and cause.since_ns <= each.time_ns < cause.time_ns
            if by_itself and stood and item not in ordered:
                ordered.append(item)
        if (each, trail) not in ordered:
            ordered.append((each, trail))
    return [
        _linked(each, [cause for cause, _ in ordered[:index]], trail.records)
        for index, (each, trail) in enumerate(ordered)
    ]


def _failure(trail: ProcessTrace, trails: Sequence[ProcessTrace]) -> Failure | None:
    said = _word_of_others(trail, trails)
    sign = _sign(trail, said)
    if sign is None:
        return None
    time_ns, how, known_by = sign
    view = said.view if said is not None and said.kind == Kind.OUT else _NEVER
    own = trail.until(time_ns)
    at, since_ns = activity(own)
    done = _last_step(own) if trail.records else trail.last_step
    there = [other for other in trails if other is not trail and _is_there(other, time_ns)]
    is_idle = at.startswith(_WAITS)
    others = tuple(_other(other, time_ns, done, view, is_idle=is_idle) for other in there)
    if not trail.has_seat(time_ns):
        others = tuple(replace(other, waits=False) for other in others)
    until = time_ns + max((each.went_on_s or 0.0 for each in others), default=0.0) * 1e9
    redone = {r.step for other in there for r in other.records if r.kind == Kind.REDO and time_ns < r.time_ns <= until}
    return Failure(
        name=trail.name,
        how=how,
        time_ns=time_ns,
        since_ns=since_ns,
        step=done + 1 if done >= 0 else -1,
        at=at if own else "",
        last_words=trail.last_words if trail.code is not None and trail.code > 0 else "",
        known_by=known_by,
        others=others,
        redone=tuple(sorted(redone)),
        suspected=_suspected(trail, trails, time_ns),
    )


def _sign(trail: ProcessTrace, said: Record | None) -> tuple[int, str, str] | None:
    """When the peer had failed, how, and the source of that; None: there is no sign. `said`: by others."""
    ends = trail.ends()
    known_by = _KNOWN_BY.get(How(said.how), "") if said is not None and said.how in set(How) else ""
    last_ns = trail.records[-1].time_ns if trail.records else 0
    signs = [time_ns for time_ns in (trail.ended_ns, said and said.time_ns, *(end.time_ns for end in ends)) if time_ns]
    time_ns = min(signs, default=last_ns)
    if trail.has_failed is not None:
        later_s = (trail.ended_ns - time_ns) / 1e9
        was_silent = trail.code is not None and trail.code < 0 and not ends and not known_by and later_s > LATER_S
        how = f"{_SILENT}, and {later_s:.1f} s later it {trail.how}" if was_silent else trail.how
        return (time_ns, how, known_by) if trail.has_failed or was_silent else None  # its launcher may have killed it
    if ends:
        bad = [_ENDS_BADLY[Kind(end.kind)] for end in ends if end.kind in _ENDS_BADLY]
        return (time_ns, bad[-1], known_by) if bad else None
    if said is not None:
        return time_ns, "died" if said.kind == Kind.GONE else _SILENT, known_by
    return None


def _suspected(trail: ProcessTrace, trails: Iterable[ProcessTrace], time_ns: int) -> tuple[tuple[str, float], ...]:
    """(name, seconds) of the peers that suspected it at its failure, longest suspicion first."""
    found = []
    for other in trails:
        about = [r for r in other.records if r.peer_id == trail.peer_id and r.kind in _DOUBTS and r.time_ns <= time_ns]
        if about and about[-1].kind != Kind.CLEARED:
            since = next((r for r in reversed(about) if r.kind == Kind.SUSPECTED), about[-1])
            found.append((other.name, (time_ns - since.time_ns) / 1e9))
    return tuple(sorted(found, key=lambda each: -each[1]))


def _word_of_others(trail: ProcessTrace, trails: Iterable[ProcessTrace]) -> Record | None:
    """The first record by which another peer notes that it is gone or removed, without a later return."""
    found = []
    for other in trails:
        about = [r for r in other.records if r.kind in _OF_OTHERS and r.peer_id == trail.peer_id and other is not trail]
        back = max((index for index, record in enumerate(about) if record.kind == Kind.IN), default=-1)
        found += about[back + 1 : back + 2]
    return min(found, key=lambda record: record.time_ns, default=None)


def _other(other: ProcessTrace, time_ns: int, done: int, view: int, *, is_idle: bool) -> Other:
    """The state of `other`.

    `done`: last step of the peer that failed; `view`: the first without it, if that is its sign; `is_idle`: it waited.
    """
    before = [each for each in other.until(time_ns) if each.kind != Kind.INSTALLED or each.view < view]
    submitted = max((each.step for each in before if each.kind in (*ADVANCES, Kind.SUBMITTED)), default=-1)
    lags = is_idle and submitted == _last_step(before) == done
    # The activity of a lagging peer is that of its script, whatever its loop has heard since, such as a new view.
    at, since_ns = activity([each for each in before if each.kind < Kind.FINISHED] if lags else before)
    next_ns = next((each.time_ns for each in other.records if each.time_ns > time_ns and each.kind in COMMITS), None)
    return Other(
        other.name,
        at,
        max(0, time_ns - since_ns) / 1e9 if since_ns else 0.0,
        waits=at.startswith(_WAITS) and not is_idle and _last_step(before) >= done,
        lags=lags,
        went_on_s=None if next_ns is None else (next_ns - time_ns) / 1e9,
    )


def _is_there(other: ProcessTrace, time_ns: int) -> bool:
    """Whether the peer had begun by then, and neither ended nor left."""
    over_ns = [each for each in (other.ended_ns, *(end.time_ns for end in other.ends()[-1:])) if each]
    return bool(other.records) and other.records[0].time_ns <= time_ns < min(over_ns, default=1 << 63)


def _last_step(records: Iterable[Record]) -> int:
    return max((record.step for record in records if record.kind in ADVANCES), default=-1)


def _linked(failure: Failure, earlier: Sequence[Failure], records: Sequence[Record]) -> Failure:
    """The failure with `after` set to the first earlier one since which the peer had committed nothing."""
    done = [record.time_ns for record in records if record.kind in COMMITS]
    for cause in earlier:
        if not any(cause.time_ns < time_ns <= failure.time_ns for time_ns in done):
            return replace(failure, after=cause.name)
    return failure


_NEVER: Final = 1 << 63
"""No view has this number."""
_SILENT: Final = "fell silent: the others continued without it"
_ENDS_BADLY: Final = {
    Kind.REMOVED: "was removed: the others continued without it",
    Kind.DIVERGED: "had different bits than the others",
}
_ENDS: Final = (*_LEAVING, *_ENDS_BADLY)


# Messages.


def shortened(last_words: str) -> str:
    """What a peer wrote last, if that may be why it ended."""
    words = last_words.removeprefix("shoal: ")
    if _GREETING.match(words):
        return ""
    return words if len(words) <= MOST_CHARACTERS else words[: MOST_CHARACTERS - 1] + "…"


def sentence(failure: Failure, *, is_first: bool = True) -> str:
    """The failure in one sentence: peer, step, kind and last activity."""
    where = f"in step {failure.step}" if failure.step >= 0 else "before its first step"
    at = f" while {failure.at}" if failure.at else ""
    words = f" ({failure.last_words})" if failure.last_words else ""
    when = "first" if is_first else "then"
    return f"peer {failure.name} failed {when}, {where}: it {failure.how}{at}{words}"


def consequences(failure: Failure) -> list[str]:
    """Lines about the other peers: their activities, and when they continued."""
    if not failure.others:
        return ["no other peer was there"]
    waiting = [each for each in failure.others if each.waits]
    lines = [f"peer {each.name} waited for it, {each.at}, {_ms(each.for_s)} already" for each in waiting]
    lines += [
        f"it waited for peer {each.name}, which was {each.at} for {_ms(each.for_s)} already"
        if each.lags
        else f"peer {each.name} was {each.at}"
        for each in failure.others
        if not each.waits
    ]
    if failure.suspected:
        name, for_s = failure.suspected[0]
        others = f" and {len(failure.suspected) - 1} more" if len(failure.suspected) > 1 else ""
        lines.append(f"suspected by peer {name}{others}, {_ms(for_s)} before")
    if went_on := [each.went_on_s for each in failure.others if each.went_on_s is not None]:
        redone = f", step {', '.join(map(str, failure.redone))} redone" if failure.redone else ""
        by = f"known by {failure.known_by}; " if failure.known_by else ""
        lines.append(f"{by}all that continued had a step after {_ms(max(went_on))}{redone}")
    if stuck := [each.name for each in failure.others if each.went_on_s is None]:
        lines.append(f"peer {', '.join(stuck)} committed nothing after it")
    if failure.after:
        lines.append(f"it had committed nothing since peer {failure.after} failed, which may be why")
    return lines


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms" if seconds < 10 else f"{seconds:.0f} s"
