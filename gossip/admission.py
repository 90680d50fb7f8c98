"""Admission: peers that ask for a seat, and which of them may have one now.

A joiner that *follows* takes committed steps while it has no seat, and is admitted when it is current: it lags by one
step, or by a fifth of a second, which grows to a second while it asks. To require that it has every step would never
end where steps are shorter than the way to it. What it lacks must be in flight, or all would wait for its state. A
joiner that does not follow is admitted as it is, and the barrier of its view waits for its state. So is one that
*lags*: it takes longer for what it lacks than a state would take (pace.py), and receives a state in the barrier, while
members have one to give. Peers that were removed too often are held back.

A JOIN counts in the view that it names, up to which its sender had no seat for certain, and in the next one. A peer
that was seated by it and lost that seat is two views further: a late JOIN brings no peer back, whatever members
remember (R8).
"""

import math
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, replace

from .messages import Join
from .progress import NOTHING_DONE
from .view import NO_NUMERICS, Member, View


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionConfig:
    """Conditions and timers of admission."""

    lease_s: float = 1.5
    """A JOIN that is not repeated is forgotten after this long."""

    least_lag_s: float = 0.2
    """An observer is current if it lacks one step, or only steps that were committed within this time, which the others
    wait for it to run."""

    lag_s: float = 1.0
    """The same limit once it has asked for `patience_s`: it may be no faster than the members."""

    patience_s: float = 5.0

    hold_down_s: float = 10.0
    """A peer that was removed more than once waits this long for its next seat, doubled with each further removal."""

    hold_down_max_s: float = 600.0

    half_life_s: float = 60.0
    """Half-life of the penalty for removals."""

    settled_s: float = 5.0
    """A removal after this long in a seat is not counted, unless the member flaps."""

    load_timeout_max_s: float = 300.0
    """Upper limit of the extended `load_timeout_s` of a peer that has lagged for long: see `gossip.pace.Patience`."""

    load_timeout_s: float = 4.0
    """A lagging peer that has not loaded the state this long after its admission is removed. That counts as a removal,
    so it is shorter than `settled_s`. It also bounds the wait for other joiners: how long their scripts may take for
    the steps that they lack."""

    def __post_init__(self) -> None:
        lags = (self.least_lag_s, self.lag_s, self.patience_s)
        ends = (self.half_life_s, self.settled_s, self.load_timeout_s, self.load_timeout_max_s)
        values = (self.lease_s, *lags, self.hold_down_s, self.hold_down_max_s, *ends)
        is_ordered = self.least_lag_s <= self.lag_s and self.hold_down_s <= self.hold_down_max_s
        is_ordered = is_ordered and self.load_timeout_s < min(self.settled_s, self.load_timeout_max_s)
        if not all(0 < value < math.inf for value in values) or not is_ordered:
            raise ValueError(
                "need lease_s, least_lag_s, lag_s, patience_s, hold_down_s, hold_down_max_s, half_life_s, settled_s, "
                "load_timeout_s and load_timeout_max_s positive and finite, least_lag_s <= lag_s, "
                "hold_down_s <= hold_down_max_s and "
                f"load_timeout_s < settled_s and load_timeout_max_s, got {values}"
            )


FIRST = NOTHING_DONE + 1
"""An observer that has done less lacks the state itself, however early it asks: all would wait for its state."""

MOST_VIEWS = 16
"""Number of consecutive latest views of which a member can say which peers had no seat."""


@dataclass(frozen=True, slots=True)
class _Joiner:
    asked: float
    join: Join
    since: float
    """When it first asked."""
    needs_since: float
    """Since when it has needed the state in its first barrier, because it lags or is fed nothing; inf: it does not."""


@dataclass(slots=True)
class _Penalty:
    """Removals of one peer_id, with decay."""

    amount: float
    at: float


class Admission:
    """The joiners that one member knows of.

    Attributes:
        in_need_until: until then some joiner needs the state in its first barrier, as far as is known.
    """

    def __init__(self, config: AdmissionConfig) -> None:
        self._config = config
        self._joiners: dict[Member, _Joiner] = {}
        self._entering: list[Member] = []
        self._penalties: dict[str, _Penalty] = {}
        self._seated_at: dict[str, float] = {}
        self._views: deque[View] = deque(maxlen=MOST_VIEWS)
        self._commits: deque[tuple[float, int]] = deque()
        self._start = NOTHING_DONE
        self._whole = NOTHING_DONE
        self.in_need_until = -math.inf

    def receive_join(self, now: float, joiner: Member, join: Join) -> None:
        """`joiner` asks for a seat, perhaps again. Joiners are admitted in the order of their first asking."""
        known = self._joiners.get(joiner)
        needs_since = math.inf
        if join.lags or not join.follows:
            needs_since = min(now, math.inf if known is None else known.needs_since)
            self.in_need_until = now + self._config.lease_s
        self._joiners[joiner] = _Joiner(now, join, now if known is None else known.since, needs_since)

    def resume(self, now: float) -> None:
        """This process was stopped: JOINs may have been repeated unheard, so all count as repeated now."""
        self._joiners = {member: replace(joiner, asked=now) for member, joiner in self._joiners.items()}

    def forget(self, joiner: Member) -> None:
        self._joiners.pop(joiner, None)

    def install(self, view: View) -> None:
        """Members no longer ask for a seat; one that followed is still fed until its first barrier is complete."""
        if self._views and view.number != self._views[-1].number + 1:
            self._views.clear()
        self._views.append(view)
        asking = [member for member in view.members if member in self._joiners]
        following = {*self._entering, *(member for member in asking if self._joiners[member].join.follows)}
        self._entering = [member for member in view.members if member in following]
        for member in asking:
            self.forget(member)
        self.in_need_until = self.in_need_until if self._joiners else -math.inf

    def seated(self, done: int) -> None:
        """The barrier of the installed view is complete; the view starts from step `done`."""
        self._entering, self._start = [], done

    def view_changed(self, now: float, before: View, view: View) -> None:
        """`view` is installed after `before`."""
        known = self._seated_at
        first = {member.peer_id: now if before.since(member) is None else -math.inf for member in view.members}
        self._seated_at = {name: known.get(name, since) for name, since in first.items()}

    def removed(self, now: float, member: Member, *, flaps: bool = False) -> None:
        """`member` was removed from the view against its will; `flaps`: others report that it flaps."""
        if not flaps and now - self._seated_at.get(member.peer_id, now) >= self._config.settled_s:
            return
        fresh = {name: penalty for name, penalty in self._penalties.items() if self._amount(now, penalty) > 0.1}
        before = fresh.get(member.peer_id, _Penalty(0.0, now))
        self._penalties = {**fresh, member.peer_id: _Penalty(self._amount(now, before) + 1.0, now)}

    def absent_since(self, member: Member, number: int) -> int:
        """First of the views, up to the installed one, in which `member` had no seat for certain; it has none now.

        At the earliest, the view after view `number`; if that is 0, the installed view.
        """
        first = self._views[-1].number
        for view in reversed(self._views):
            if not 0 < number < view.number or view.since(member) is not None:
                break
            first = view.number
        return first

    def committed(self, now: float, step: int) -> None:
        """`step` was committed here."""
        self._commits.append((now, step))
        while self._commits[0][0] < now - self._config.lag_s:
            self._commits.popleft()

    def state_available(self, step: int) -> None:
        """This member can give the state after `step`, until another one is committed."""
        self._whole = step

    def needed_s(self, now: float, joiner: Member) -> float:
        """How long `joiner` has needed the state in its first barrier; below 0: it does not."""
        return now - self._joiners[joiner].needs_since

    def followers(self, now: float) -> list[Member]:
        """Peers to be fed with every committed step."""
        self._expire(now)
        return [*self._entering] + [member for member, joiner in self._joiners.items() if joiner.join.follows]

    def candidates(
        self, now: float, done: int, unfed: Collection[Member] = (), *, has_finished: bool = False
    ) -> list[Member]:
        """Joiners that may have a seat now; `done` is the last step that was committed here.

        The steps that an observer lacks must be in flight: committed in this view, and it is not one of the `unfed`. A
        lagging joiner, or one that is fed nothing, needs the state. It is a candidate while this member has the state
        and has not finished the open step; nor does this member finish that step before the view is installed
        (`ViewChange.holds_step`), since after an update, or between the operations of an iteration, no member has a
        complete state.
        """
        self._expire(now)
        is_whole = done < FIRST or (self._whole == done and not has_finished)
        found: list[Member] = []
        for member, joiner in self._joiners.items():
            lacks_from = max(min(self._oldest(now, joiner, done), done) - 1, self._start)
            needed = done if member in unfed else max(lacks_from, done - self._most_lacking(now, joiner))
            if joiner.join.lags:
                needed = NOTHING_DONE if is_whole else done
            may_enter = self._counts(joiner.join) and now >= self._held_until(member.peer_id)
            if may_enter and _is_current(joiner.join, max(needed, min(done, FIRST)), is_whole=is_whole):
                found.append(member)
        return found

    def _counts(self, join: Join) -> bool:
        """Whether `join` asks for a seat in the successor of the installed view."""
        number = self._views[-1].number
        return join.view_number in (number, max(1, number - 1))

    def _oldest(self, now: float, joiner: _Joiner, done: int) -> int:
        """The oldest step that `joiner` may still lack."""
        since = now - self._patient_s(now, joiner, self._config.lag_s)
        return next((step for at, step in self._commits if at >= since), done)

    def _most_lacking(self, now: float, joiner: _Joiner) -> int:
        """How many steps it may lack, by its script's time for one: all members wait until it has run them."""
        most_s = self._patient_s(now, joiner, self._config.load_timeout_s)
        return max(1, int(most_s * 1e6 / max(joiner.join.step_us, 1)))

    def _patient_s(self, now: float, joiner: _Joiner, most_s: float) -> float:
        """A limit that grows from `least_lag_s` to `most_s` while `joiner` asks."""
        config = self._config
        patience = min(1.0, (now - joiner.since) / config.patience_s)
        return config.least_lag_s + max(0.0, most_s - config.least_lag_s) * patience

    def joiners(self) -> list[Member]:
        """Known joiners."""
        return [*self._joiners]

    def join_of(self, joiner: Member) -> Join:
        """The last JOIN of one of the `joiners`."""
        return self._joiners[joiner].join

    def numerics_of(self, joiner: Member) -> bytes:
        """The numerics class in the JOIN of `joiner`, or else of its seat."""
        if (known := self._joiners.get(joiner)) is not None:
            return known.join.numerics
        return (self._views[-1].numerics_of(joiner) if self._views else None) or NO_NUMERICS

    def is_empty(self) -> bool:
        """Whether there are no joiners, and no observers to be fed."""
        return not self._joiners and not self._entering

    def _expire(self, now: float) -> None:
        for member in [m for m, joiner in self._joiners.items() if now - joiner.asked > self._config.lease_s]:
            del self._joiners[member]

    def _held_until(self, peer_id: str) -> float:
        penalty = self._penalties.get(peer_id)
        if penalty is None or penalty.amount < 1.5:  # a single removal is forgiven
            return -math.inf
        wait_s = min(self._config.hold_down_s * 2 ** min(penalty.amount - 2, 64), self._config.hold_down_max_s)
        return penalty.at + wait_s

    def _amount(self, now: float, penalty: _Penalty) -> float:
        return float(penalty.amount * 0.5 ** (max(0.0, now - penalty.at) / self._config.half_life_s))


def _is_current(join: Join, done: int, *, is_whole: bool) -> bool:
    """Whether a joiner lacks no step up to `done`; one that is fed nothing: whether there is a state for it."""
    return join.done >= max(done, NOTHING_DONE) if join.follows else is_whole
