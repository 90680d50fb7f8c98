"""What a peer without a seat lacks, and how it gets that: R6, R9 and R18 of PROTOCOL.md.

An observer is in no view, barrier or count, so it delays nobody. It is fed with committed steps, and applies one only
upon the digest of the chain before it; where one is missing, it asks for the state instead. In the barrier of its
first view every joiner asks for the state that it lacks there.

Knows steps and digests. Their bytes are kept by the host until it is told to apply, load, discard or drop them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from .asked_states import AskedStates
from .commit import StepMachine
from .config import CoreConfig
from .effects import Apply, Discard, Drop, Effect, Load, Missed, Removed, Send
from .fed_steps import FedSteps, Place
from .messages import Head
from .pace import Pace
from .progress import NOTHING_DONE, StateQuery
from .swim import Swim
from .view import Member, View

NUM_PROVING = 2
"""An observer runs so many fed steps of the model on a state before it asks for a seat: at the second it is compared
with its feeder after an update of its own. In an operation that scripts call by themselves nobody is compared."""

MOST_ASKED = 20
"""Who has asked so often with a state, and runs operations that scripts call by themselves, may not come to a step of
the model for long: it is compared once it has its seat."""

MOST_ASKED_IN_STEPS = 240
"""So is who has asked so often in front of steps of the model, which may take long: it is too slow for that."""

MOST_STEP_US = 1 << 40
"""Of what is said of a script's step."""

MOST_LAG = 8
"""Who has proven that it keeps step, lacks more steps than that, and does not catch up, asks for the state."""


@dataclass(frozen=True, slots=True)
class _State:
    step: int
    digest: bytes
    lineage: bytes


class Observing:
    """What one peer has taken over, waits for, has asked for, is to load, and applies next.

    Attributes:
        follows: it wants to be fed before it has a seat.
        knows_steps: it has been told of a committed step, so that it founds nothing (R18).
        frozen: digest of the frozen parameters that its host has; empty: none, so that all of a state is needed.
    """

    def __init__(self, swim: Swim, steps: StepMachine, *, config: CoreConfig) -> None:
        self.follows = self.knows_steps = False
        self.frozen = b""
        self._swim = swim
        self._steps = steps
        self._config = config
        self._feeder: Member | None = None
        self._head: tuple[int, bytes] | None = None
        self._fed = FedSteps(config.most_fed, config.most_fed_bytes)
        self._applying: tuple[int, bytes] | None = None
        self._gap = NOTHING_DONE, -math.inf
        self._asked = AskedStates()
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
        """This peer was `former`, which was removed: if that had no seat, for how long it has lacked one counts on."""
        if not former._steps.seated:
            self._pace.patience = former._pace.patience

    # Steps.

    def asks_from(self) -> tuple[int, bytes]:
        """Step and chain digest that a JOIN names: no step, as long as it is not proven that this peer keeps step."""
        done, digest = self._steps.done, self._steps.digest
        if not self.follows or done == NOTHING_DONE:
            return done, digest
        self._num_asked += 1
        most = MOST_ASKED if self._has_run_own else MOST_ASKED_IN_STEPS
        is_proven = self._is_proven and self._pace.is_known
        return done if is_proven or self._num_asked > most else NOTHING_DONE, digest

    def pace_said(self) -> tuple[int, bool]:
        """Microseconds of its script's step, and whether it lags, for a JOIN."""
        return min(int(self._pace.step_s * 1e6), MOST_STEP_US), self._pace.is_held

    def waits(self, now: float, fits: Callable[[], bool]) -> tuple[bool, bool]:
        """The script waits in a step of its model, and any state `fits` it there. Whether it is held, and since now.

        Not before it was compared with its feeder, nor where it is in the middle of a batch. Who was near when it was
        admitted has its seat by what it is fed, who was held by the state.
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
        """It was held when it was admitted, or was when that was decided."""
        return self._late_at < math.inf

    @property
    def due(self) -> tuple[int, bytes] | None:
        """Number and digest of the fed step that is to be run now. None while a state is to be loaded before."""
        return None if self._loading is not None or self._steps.seated else self._applying

    def fed(self, step: int, previous: bytes, digest: bytes, num_bytes: int, *, is_own: bool) -> list[Effect]:
        """`step` has come, with results of `num_bytes`. `is_own`: it is an operation that scripts call by themselves.

        Kept if there is room (FedSteps); what is let go has to be made up for by a state.
        """
        self.knows_steps = True
        if step <= self._steps.done:
            return self._go_on()
        places = self._places(self._loading, self._waiting)
        let_go = self._fed.add(step, previous, digest, num_bytes, is_own=is_own, places=places, coming=self._asked.step)
        return [*(Discard(*each) for each in let_go), *self._go_on()]

    def _places(self, *states: _State | None) -> list[Place]:
        """Where the script may be, next or soon: behind what was run last, or behind one of these."""
        here = [(state.step, state.digest) for state in states if state is not None]
        return [(self._steps.done, self._steps.digest), *here]

    def _go_on(self) -> list[Effect]:
        """Apply the next step, if it is here and nothing is under way."""
        done, digest = self._steps.done, self._steps.digest
        if self._steps.seated:
            return []
        after = self._fed.after(done, digest)
        is_busy = self._applying is not None or self._loading is not None
        if is_busy or after is None or not self._steps.takes(done + 1, after):
            return []
        self._applying = done + 1, after
        return [Apply(done + 1, after)]

    # States.

    @property
    def held(self) -> int:
        """As of `Core.held`."""
        return max(self._steps.done, NOTHING_DONE if self._loading is None else self._loading.step)

    @property
    def lineage(self) -> bytes:
        """Of the members whose state that is; empty: there is none."""
        return self._lineage if self._loading is None else self._loading.lineage

    def has_asked(self, member: Member) -> bool:
        """Whether `member` was asked for a state, and none has been loaded since."""
        return member in self._asked.members

    def comes(self, now: float, source: Member, step: int) -> bool:
        """A segment of the state after `step` has come. Whether it is of use: `source` was asked for it."""
        return self._asked.comes(now, source, step)

    def came(self, step: int, digest: bytes, lineage: bytes) -> list[Effect]:
        """All of the state after `step` has come. While another one is to be loaded, the last that came waits."""
        self.knows_steps |= step > NOTHING_DONE
        self._asked.came()
        before, state = self._waiting, _State(step, digest, lineage)
        self._waiting = state
        effects: list[Effect] = [] if before in (None, state, self._loading) else [Drop(before.step, before.digest)]
        places = self._places(self._loading)
        effects += self._load()
        if state in (self._loading, self._waiting):
            effects += (Discard(*each) for each in self._fed.overtake(places, step))
        return effects

    def declined(self, now: float, step: int, digest: bytes) -> list[Effect]:
        """The state after `step` is not loaded now: the script waits for the result of step done + 1.

        That is an operation of its own, which no state makes up for. The state waits until it has been run.
        """
        state = self._loading
        if state is None or (state.step, state.digest) != (step, digest):
            return []
        self._needs = self._steps.done + 1, now
        self._loading, later = None, self._waiting
        self._waiting = state if later is None else later
        dropped = [] if later is None or later == state else [Drop(step, digest)]
        return [*dropped, *([Apply(*self._applying)] if self._applying is not None else self._go_on())]

    def put_off(self, now: float, step: int, digest: bytes) -> list[Effect] | None:
        """As `declined`, by a script in the middle of a batch, where it can load none. None: the next step is not here.

        Else it comes to the end of its batch with that, or to the next of its steps.
        """
        state, past = self._loading, (self._steps.done, self._steps.digest)
        is_wanted = state is not None and (state.step, state.digest) == (step, digest) and not self._steps.seated
        is_here = self._applying is not None or self._fed.after(*past) is not None
        return self.declined(now, step, digest) if is_here or not is_wanted else None

    def lacks(self, step: int, digest: bytes) -> list[Effect]:
        """The state after `step` leaves out what this peer has no more: it asks again, for all (R30)."""
        state, self.frozen = self._loading, b""
        if state is None or (state.step, state.digest) != (step, digest):
            return []
        self._loading = None
        self._asked.drop()
        return [Drop(step, digest), *self._load(), *self._go_on()]

    def _misses(self, now: float) -> list[Effect]:
        """What the script waits for has not come since it declined a state, which is behind it in the feeder's stream.

        Another member may have fed it, so this takes as long as asking again.
        """
        needed, since = self._needs
        if needed != self._steps.done + 1 or self._applying is not None or now - since < self._config.state_s:
            return []
        self._needs = NOTHING_DONE, -math.inf
        return [Missed(needed)]

    def _load(self) -> list[Effect]:
        if self._waiting is None or self._loading is not None or self._needs[0] == self._steps.done + 1:
            return []
        state, self._waiting = self._waiting, None
        view = self._steps.view
        is_strange = view is not None and state.lineage != view.lineage
        if is_strange or not self._steps.takes(state.step, state.digest):
            return [Drop(state.step, state.digest)]
        self._loading = state
        return [Load(state.step, state.digest)]

    def loaded(self, now: float, step: int, digest: bytes) -> list[Effect]:
        """The state after `step` was loaded, or that step was run with what was fed."""
        self.knows_steps |= step > NOTHING_DONE
        is_run = self._applying == (step, digest)
        self._has_run_own = is_run and self._fed.is_own(step, digest)
        self._num_run += is_run and not self._has_run_own
        self._is_proven |= self._num_run >= NUM_PROVING
        self._applying = None
        if self._loading is not None and (self._loading.step, self._loading.digest) == (step, digest):
            self._lineage = self._loading.lineage
            self._loading, self._num_run = None, 0
            self._asked.loaded()
            self._least_lag = math.inf, -math.inf
        others = (each for each in self._fed.forget(step) if each != (step, digest))
        effects = [*(Discard(*each) for each in others), *self._load(), *self._go_on()]
        if is_run:
            self._pace.ran(now, is_next_here=self.due is not None)
        else:
            self._pace.loaded(now)
        return effects

    def _ask(self, now: float, donor: Member, step: int) -> list[Effect]:
        """STATE?, if there is none to load, and none on its way."""
        if self._loading is not None or self._waiting is not None:
            return []
        if self._asked.is_coming(now, self._swim.is_gone):
            return []
        self._asked.ask(now, donor)
        return [Send(donor, StateQuery(step, self.frozen))]

    @property
    def waits_for(self) -> str:
        """What of the swarm's past this peer waits for now, and from whom; empty: nothing."""
        if self._loading is not None:
            return f"the state after step {self._loading.step} is here, and its script is to load it"
        if self._needs[0] == self._steps.done + 1:
            return f"its script waits for the result of operation {self._needs[0]}, which the members have committed"
        if self._asked.source is not None:
            return f"the state comes from {self._asked.source}"
        if self._asked.members:
            return f"{' and '.join(map(str, self._asked.members))} will give the state, once the next step begins there"
        if self._feeder is not None and self._head is not None and self._steps.digest:
            return f"it is at step {self._steps.done}, and fed by {self._feeder}, which was at step {self._head[0]}"
        return ""

    # A gap.

    def hear_head(self, now: float, source: Member, head: Head) -> list[Effect]:
        """`source`, which feeds this observer, has committed up to `head.step`: ask for the state if there is a gap.

        What it fed may still be on its way, so a gap must last from one head to the next.
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
        """Whether it does not catch up with what is fed: once it has proven itself, the state is the shorter way.

        What it lacked before it had a state says nothing of that: the members went on while the state came. Another
        one takes as long again, so that is how long it may take to begin to catch up. Who is held runs nothing, and is
        given the state in the barrier.
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
        """Whether the feeder is further, and no fed step follows the last one here."""
        done, digest = self._steps.done, self._steps.digest
        if self._applying is not None or self._head is None or self._head == (done, digest) or self._head[0] < done:
            return False
        return self._fed.after(done, digest) is None

    # The barrier of the first view.

    def install(self, view: View) -> None:
        """A state of another swarm may be loaded by now, or will be at any time: what is here is as good as nothing."""
        if self._loading is not None and self._loading.lineage != view.lineage and not self._steps.seated:
            self._steps.done, self._steps.digest = NOTHING_DONE, b""

    def reconsider(self, now: float) -> list[Effect]:
        """Once the barrier says which state is needed: ask for it, unless what is fed may be on its way."""
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
        """After which step the state is that the barrier wants here, and who was asked; None: none, or it has come."""
        wanted, is_here = self._steps.wanted_state(), self._loading is not None or self._waiting is not None
        return None if wanted is None or is_here else (wanted[0], tuple(self._asked.members))

    def _look_back(self, now: float, num_lacking: int) -> None:
        """It is held no more, and lacks so many steps; members that have admitted it may not have heard that."""
        late_s = self._config.admission.late_s
        was_held = now - self._held_at <= late_s and not self._lags
        if was_held and num_lacking > 1 and num_lacking * self._pace.step_s > late_s:
            self._late_at = self._pace.patience.begin(now)

    def beat(self, now: float) -> list[Effect]:
        """Ask again. Who follows and has a state waits for what is fed, for two beats, and runs what is here.

        Who lags waits for the state, and all for it; not for long.
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
