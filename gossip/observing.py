"""Observing: how a peer without a seat gets the steps and states that it lacks. R6, R9 and R18 of PROTOCOL.md.

An observer is in no view, barrier or count, so it delays no member. It is fed with committed steps, and applies one
only if it has the chain before it, by digest; where one is missing, it asks for the state instead. In the barrier of
its first view every joiner asks for the state that it lacks there.

Knows steps and digests. The host keeps their bytes until it is told to apply, load, discard or drop them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from .commit import StepMachine
from .config import CoreConfig
from .effects import Apply, DropState, DropStep, Effect, Load, Removed, ResultUnavailable, Send
from .fed_steps import ChainPosition, FedSteps
from .messages import Head
from .pace import Pace
from .progress import NOTHING_DONE, StateQuery
from .state_fetch import StateFetch
from .swim import Swim
from .view import Member, View

NUM_PROVING = 2
"""Number of fed steps of the model that an observer runs on a state before it asks for a seat: at the second it is
compared with its feeder after an update of its own. Operations that scripts call by themselves compare nothing."""

MOST_ASKED = 20
"""An observer that has asked this often with a state, and runs operations that scripts call by themselves, is admitted
unproven, since its next step of the model may be far: it is compared once it has its seat."""

MOST_ASKED_IN_STEPS = 240
"""The same limit in front of steps of the model, which may take long: the observer is too slow for the comparison."""

MOST_STEP_US = 1 << 40
"""Limit of the step time that a JOIN names."""

MOST_LAG = 8
"""A proven observer that lacks more steps than this, and does not catch up, asks for the state."""


@dataclass(frozen=True, slots=True)
class _State:
    step: int
    digest: bytes
    lineage: bytes

    def dropped(self) -> DropState:
        return DropState(self.step, self.digest)


class Observing:
    """States and steps of one peer without a seat: taken over, waited for, requested, to be loaded, to be run next.

    Attributes:
        follows: it wants to be fed before it has a seat.
        knows_steps: it has been told of a committed step, so that it founds nothing (R18).
        frozen: digest of the frozen parameters that its host has; empty: none, so that it needs the whole state.
    """

    def __init__(self, swim: Swim, steps: StepMachine, *, config: CoreConfig) -> None:
        self.follows = self.knows_steps = False
        self.frozen = b""
        self._swim, self._steps, self._config = swim, steps, config
        self._feeder: Member | None = None
        self._head: tuple[int, bytes] | None = None
        self._fed = FedSteps(config.most_fed, config.most_fed_bytes)
        self._applying: tuple[int, bytes] | None = None
        self._gap = NOTHING_DONE, -math.inf
        self._asked = StateFetch()
        self._pace, self._held_at, self._late_at = Pace(config.admission), -math.inf, math.inf
        self._waiting: _State | None = None
        self._loading: _State | None = None
        self._lineage = b""
        self._needs = NOTHING_DONE, -math.inf
        self._barrier: tuple[View | None, float] = None, -math.inf
        self._is_barrier_known = False
        self._num_run = self._num_asked = 0
        self._least_lag = math.inf, -math.inf
        self._is_proven = self._has_run_own = False

    def return_from(self, former: "Observing") -> None:
        """This peer was `former`, which was removed: if `former` had no seat, the time without a seat continues."""
        if not former._steps.seated:
            self._pace.patience = former._pace.patience

    # Steps

    def asks_from(self) -> tuple[int, bytes]:
        """Step and chain digest for a JOIN: no step until this peer has proven that it computes the members' bits."""
        done, digest = self._steps.done, self._steps.digest
        if not self.follows or done == NOTHING_DONE:
            return done, digest
        self._num_asked += 1
        most = MOST_ASKED if self._has_run_own else MOST_ASKED_IN_STEPS
        is_proven = self._is_proven and self._pace.is_known
        return done if is_proven or self._num_asked > most else NOTHING_DONE, digest

    def pace_said(self) -> tuple[int, bool]:
        """For a JOIN: the script's time for a step, in microseconds, and whether the peer lags."""
        return min(int(self._pace.step_s * 1e6), MOST_STEP_US), self._pace.is_held

    def waits(self, now: float, fits: Callable[[], bool]) -> tuple[bool, bool]:
        """The script waits in a step of its model. Returns whether it is held there, and whether that is new.

        `fits`: whether any state can be loaded there, not within a batch. No script is held before it was compared with
        its feeder. In a view, a peer that was held at its admission is seated by the state, any other by fed steps.
        """
        if self._needs[0] == self._steps.done + 1 or not self._is_proven:
            return False, False
        if self._steps.view is not None:
            return self._lags, False
        was_held, done = self._pace.is_held, self._steps.done
        known = max(self._fed.newest(done), NOTHING_DONE if self._head is None else self._head[0])
        is_held = self._pace.waits(now, max(0, known - done - 1), self._asked.longest_s, fits)
        self._held_at = now if is_held or was_held else self._held_at
        return is_held, is_held and not was_held

    @property
    def _lags(self) -> bool:
        """Whether its script was held when it was admitted, or when that was decided."""
        return self._late_at < math.inf

    @property
    def due(self) -> tuple[int, bytes] | None:
        """Number and digest of the fed step to run now. None while a state must be loaded first."""
        return None if self._loading is not None or self._steps.seated else self._applying

    def fed(self, step: int, previous: bytes, digest: bytes, num_bytes: int, *, is_own: bool) -> list[Effect]:
        """`step` has arrived, with results of `num_bytes`. `is_own`: an operation that scripts call by themselves.

        Kept if there is room (FedSteps); a state has to make up for dropped steps.
        """
        self.knows_steps = True
        if step <= self._steps.done:
            return self._go_on()
        places = self._places(self._loading, self._waiting)
        let_go = self._fed.add(step, previous, digest, num_bytes, is_own=is_own, places=places, coming=self._asked.step)
        return [*(DropStep(*each) for each in let_go), *self._go_on()]

    def _places(self, *states: _State | None) -> list[ChainPosition]:
        """Places where the script is or may be soon: after the last step that it ran, and after these states."""
        here = [(state.step, state.digest) for state in states if state is not None]
        return [(self._steps.done, self._steps.digest), *here]

    def _go_on(self) -> list[Effect]:
        """Apply the next step, if it has arrived and no step or state is in progress."""
        done, digest = self._steps.done, self._steps.digest
        if self._steps.seated:
            return []
        after = self._fed.after(done, digest)
        is_busy = self._applying is not None or self._loading is not None
        if is_busy or after is None or not self._steps.takes(done + 1, after):
            return []
        self._applying = done + 1, after
        return [Apply(done + 1, after)]

    # States

    @property
    def held(self) -> int:
        """See `Core.held`."""
        return max(self._steps.done, NOTHING_DONE if self._loading is None else self._loading.step)

    @property
    def lineage(self) -> bytes:
        """Lineage of the members whose state that is; empty: no state."""
        return self._lineage if self._loading is None else self._loading.lineage

    def has_asked(self, member: Member) -> bool:
        """Whether `member` was asked for a state, and none has been loaded since."""
        return member in self._asked.members

    def segment_arrived(self, now: float, source: Member, step: int) -> bool:
        """A segment of the state after `step` has arrived. Whether it is useful: `source` was asked for it."""
        return self._asked.segment_arrived(now, source, step)

    def state_arrived(self, step: int, digest: bytes, lineage: bytes) -> list[Effect]:
        """The state after `step` has arrived completely. While another one is to be loaded, the latest one waits."""
        self.knows_steps |= step > NOTHING_DONE
        self._asked.state_arrived()
        before, state = self._waiting, _State(step, digest, lineage)
        self._waiting = state
        effects: list[Effect] = [before.dropped()] if before not in (None, state, self._loading) else []
        places, effects = self._places(self._loading), [*effects, *self._load()]
        if state in (self._loading, self._waiting):
            effects += (DropStep(*each) for each in self._fed.overtake(places, step))
        return effects

    def declined(self, now: float, step: int, digest: bytes) -> list[Effect]:
        """The state after `step` is not loaded now: the script waits for the result of step done + 1.

        That is an operation of its own, whose result no state contains. The state waits until it has been run.
        """
        state = self._loading
        if state is None or (state.step, state.digest) != (step, digest):
            return []
        self._needs = self._steps.done + 1, now
        self._loading, later = None, self._waiting
        self._waiting = state if later is None else later
        dropped = [] if later is None or later == state else [DropState(step, digest)]
        return [*dropped, *([Apply(*self._applying)] if self._applying is not None else self._go_on())]

    def put_off(self, now: float, step: int, digest: bytes) -> list[Effect] | None:
        """As `declined`, by a script within a batch, where it cannot load. None: it lacks its next step.

        With that step it continues to the end of its batch, or to its next step.
        """
        state, past = self._loading, (self._steps.done, self._steps.digest)
        is_wanted = state is not None and (state.step, state.digest) == (step, digest) and not self._steps.seated
        is_here = self._applying is not None or self._fed.after(*past) is not None
        return self.declined(now, step, digest) if is_here or not is_wanted else None

    def lacks(self, step: int, digest: bytes) -> list[Effect]:
        """The state after `step` omits frozen parameters that have changed here: ask again, for all (R30)."""
        state, self.frozen = self._loading, b""
        if state is None or (state.step, state.digest) != (step, digest):
            return []
        self._loading = None
        self._asked.drop()
        return [DropState(step, digest), *self._load(), *self._go_on()]

    def _misses(self, now: float) -> list[Effect]:
        """The result that the script needs has not arrived since it declined a state, which follows it in the stream.

        Another member may have fed that step, so this takes as long as asking again.
        """
        needed, since = self._needs
        is_open = needed == self._steps.done + 1 and self._applying is None and not self._steps.seated
        if not is_open or now - since < self._config.state_s:
            return []
        self._needs = NOTHING_DONE, -math.inf
        return [ResultUnavailable(needed)]

    def _load(self) -> list[Effect]:
        if self._waiting is None or self._loading is not None or self._needs[0] == self._steps.done + 1:
            return []
        state, self._waiting = self._waiting, None
        view = self._steps.view
        is_strange = view is not None and state.lineage != view.lineage
        if is_strange or not self._steps.takes(state.step, state.digest):
            return [state.dropped()]
        self._loading = state
        return [Load(state.step, state.digest)]

    def loaded(self, now: float, step: int, digest: bytes) -> list[Effect]:
        """The state after `step` was loaded, or that step was run with its fed results."""
        self.knows_steps |= step > NOTHING_DONE
        is_run = self._applying == (step, digest)
        self._has_run_own = is_run and self._fed.is_own(step, digest)
        self._num_run += is_run and not self._has_run_own
        self._is_proven |= self._num_run >= NUM_PROVING
        self._applying, self._needs = None, (NOTHING_DONE, -math.inf)
        if self._loading is not None and (self._loading.step, self._loading.digest) == (step, digest):
            self._lineage = self._loading.lineage
            self._loading, self._num_run = None, 0
            self._asked.loaded()
            self._least_lag = math.inf, -math.inf
        others = (each for each in self._fed.forget(step) if each != (step, digest))
        effects = [*(DropStep(*each) for each in others), *self._load(), *self._go_on()]
        if is_run:
            self._pace.ran(now, is_next_here=self.due is not None)
        else:
            self._pace.loaded(now)
        return effects

    def _ask(self, now: float, donor: Member, step: int) -> list[Effect]:
        """Send STATE?, unless a state has arrived or is in flight."""
        if self._loading is not None or self._waiting is not None:
            return []
        if self._asked.is_coming(now, self._swim.is_gone):
            return []
        self._asked.ask(now, donor)
        return [Send(donor, StateQuery(step, self.frozen))]

    @property
    def waits_for(self) -> str:
        """The steps or state that this peer waits for, and from which member; empty: none."""
        if self._loading is not None:
            return f"the state after step {self._loading.step} is here, and its script has yet to load it"
        if self._needs[0] == self._steps.done + 1:
            return f"its script waits for the result of operation {self._needs[0]}, which the members have committed"
        if self._asked.source is not None:
            return f"the state comes from {self._asked.source}"
        if self._asked.members:
            return f"{' and '.join(map(str, self._asked.members))} will give the state, once the next step begins there"
        if self._feeder is not None and self._head is not None and self._steps.digest:
            return f"it is at step {self._steps.done}, and fed by {self._feeder}, which was at step {self._head[0]}"
        return ""

    # Gaps

    def hear_head(self, now: float, source: Member, head: Head) -> list[Effect]:
        """`source`, the feeder, has committed up to `head.step`: ask for the state if there is a gap.

        Fed steps may still be in flight, so a gap must last from one HEAD to the next.
        """
        done = self._steps.done
        self.knows_steps |= head.step > NOTHING_DONE
        self._feeder, self._head = source, (head.step, head.digest)
        if missed := self._misses(now):
            return missed
        if head.step < done:  # it is late, or of another swarm, and says nothing of what this peer lacks
            return []
        known, since = self._gap
        if not self.follows or not self._has_gap():
            self._gap = NOTHING_DONE, -math.inf
            return self._ask(now, source, head.step) if self._falls_behind(now, head.step - done) else []
        is_new = since == -math.inf or known != done
        self._gap = done, now if is_new else since
        if done != NOTHING_DONE and is_new:
            return []
        if not is_new and now - since < self._config.state_s:
            return []
        self._gap = done, now
        return self._ask(now, source, head.step)

    def _falls_behind(self, now: float, lag: int) -> bool:
        """Whether a proven observer does not catch up by fed steps, so that a state is the shorter way.

        Steps that it lacked when its state arrived do not count: the members went on during the transfer. Another state
        takes as long again, so it has that long to begin to catch up. A held script runs nothing, and its peer receives
        the state in the barrier.
        """
        if not self.follows or not self._is_proven or self._pace.is_held:
            self._least_lag = math.inf, now
            return False
        least, at = self._least_lag
        if lag <= MOST_LAG or lag < least:
            self._least_lag = min(least, lag), now
            return False
        if now - at < max(self._config.state_s, self._asked.took_s):
            return False
        self._least_lag = math.inf, now
        return True

    def _has_gap(self) -> bool:
        """Whether the feeder is ahead, and no fed step follows the last one here."""
        done, digest = self._steps.done, self._steps.digest
        if self._applying is not None or self._head is None or self._head == (done, digest) or self._head[0] < done:
            return False
        return self._fed.after(done, digest) is None

    # The barrier of the first view

    def install(self, view: View) -> None:
        """If a state of another swarm is to be loaded, no step counts as done: it may be loaded at any time."""
        if self._loading is not None and self._loading.lineage != view.lineage and not self._steps.seated:
            self._steps.done, self._steps.digest = NOTHING_DONE, b""

    def reconsider(self, now: float) -> list[Effect]:
        """Ask for the state once the barrier requires one, unless fed steps may be in flight."""
        view = self._steps.view
        if self._steps.seated:
            return []
        if self._barrier[0] is None and view is not None and self._pace.is_held:
            self._late_at = self._pace.patience.begin(now)
        if view is not self._barrier[0]:
            self._barrier, self._is_barrier_known = (view, now), False
        if self._applying is not None and not self._steps.takes(*self._applying):
            self._applying = None  # the members want an earlier state: it was fed by another swarm
        effects, wanted = self._go_on(), self._steps.wanted_state()
        if view is None or wanted is None or self._is_barrier_known:
            return effects
        self._is_barrier_known = True
        step, _, donor = wanted
        self._look_back(now, step - self._steps.done)
        is_fed = self.follows and self._feeder in view.members and not self._lags
        return effects if is_fed else [*effects, *self._ask(now, donor, step)]

    def awaited_state(self) -> tuple[int, tuple[Member, ...]] | None:
        """The step after which the barrier requires the state, and the members asked for it; None: none is missing."""
        wanted, is_here = self._steps.wanted_state(), self._loading is not None or self._waiting is not None
        return None if wanted is None or is_here else (wanted[0], tuple(self._asked.members))

    def _look_back(self, now: float, num_lacking: int) -> None:
        """The script is no longer held, and lacks `num_lacking` steps; members may have admitted it as held."""
        late_s = self._config.admission.load_timeout_s
        was_held = now - self._held_at <= late_s and not self._lags
        if was_held and num_lacking > 1 and num_lacking * self._pace.step_s > late_s:
            self._late_at = self._pace.patience.begin(now)

    def beat(self, now: float) -> list[Effect]:
        """Repeat the request. A follower with a state waits two beats for fed steps, and runs those that arrived.

        A lagging peer waits for the state, and all members for it; not for long.
        """
        if now >= self._late_at and not self._steps.seated:
            late_s = self._pace.patience.was_late()
            return [Removed(f"it has not loaded the state within {late_s:.3g} s of its admission")]
        wanted, waited_s = self._steps.wanted_state(), now - self._barrier[1]
        is_coming = self._applying is not None or waited_s < 2 * self._config.beat_s
        may_be_fed = self.follows and self._steps.done != NOTHING_DONE and is_coming and not self._lags
        if missed := self._misses(now):
            return missed
        if wanted is None or may_be_fed:
            return []
        step, _, donor = wanted
        return self._ask(now, donor, step)
