"""An observer whose script takes long for a step: where it is held, it can load a state immediately."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

from gossip import messages as m
from p2p.catchup.replica import Replica
from p2p.net.parcels import PackedState, Parcel, StepRecord
from p2p.step.collective import AllReduce
from p2p.step.notices import Commit, StateOffer
from p2p.step.operation import Operation
from tests.p2p.net.parcels import A, digest, fed, state

from .test_observer import Newcomer, counts, fingerprints, sums, total

STEP_S = 2.0


def of_model(parcel: Parcel, shown: bytes = b"shown") -> Parcel:
    assert isinstance(parcel.record, StepRecord)
    return replace(parcel, record=replace(parcel.record, shown=shown))


def slow(later: Iterable[Parcel] = ()) -> Newcomer:
    """An observer that was compared, takes two seconds for a step, and lags by five, or has `later` steps queued."""
    new = Newcomer()
    new.at(5)
    later = later or [of_model(sums(step, new)) for step in range(9, 13)]
    new.deliver(*(of_model(sums(step, new)) for step in range(6, 9)), *later)
    new.submit(6, total())
    for step in (7, 8):
        new.now += STEP_S
        new.submit(step, total())
    return new


def test_a_slow_script_is_not_told_what_is_here_and_loads_a_state_where_it_waits() -> None:
    new = slow()
    assert (new.core.done, sum(isinstance(notice, Commit) for notice in new.told)) == (7, 2)
    new.falls_behind(30, asks=False)
    new.enters(30)
    assert new.asked[-1] == (A, 30)
    new.deliver(state(30))
    assert isinstance(new.told[-1], StateOffer)
    new.load(b"p" * 16)
    assert new.core.done == 30


def test_a_slow_script_asks_for_a_seat_where_it_is_held() -> None:
    new = slow()
    said = [getattr(effect, "body", None) for effect in new.core.tick(new.now + 0.5)]
    joins = [body for body in said if isinstance(body, m.Join)]
    assert [(join.done, join.digest, join.lags, join.step_us) for join in joins] == [(7, digest(7), True, 2_000_000)]


def test_a_slow_script_that_waits_for_an_operation_of_its_own_is_told_the_result() -> None:
    new = Newcomer()
    new.at(5)
    new.deliver(*(of_model(sums(step, new)) for step in range(6, 13)))
    new.submit(6, total())
    new.now += STEP_S
    new.submit(7, total())
    new.now += STEP_S
    new.call(8)
    assert new.core.done == 8


def test_a_slow_script_whose_loop_has_several_phases_is_not_held() -> None:
    wide = np.zeros(8, np.float32)
    other = Operation(AllReduce(), wide, wide.copy(), wide.shape)
    for odd, num_added in (((other,), 0), ((total(), total()), 0), ((total(), total()), 1)):
        results = [bytes(16) for _ in odd]
        steps = [
            fed(step, *results, fingerprints=fingerprints(step, *odd), num_added=num_added) for step in range(9, 13)
        ]
        is_held = num_added == 1  # operations added by the runtime are no other phase
        assert slow(map(of_model, steps)).core.done == (7 if is_held else 8)


@pytest.mark.parametrize("at", [6, 12])
def test_a_slow_script_is_not_held_where_members_run_the_same_operations_for_something_else(at: int) -> None:
    def shows(step: int) -> bytes:
        return b"elsewhere" if step == at else b"shown"

    replica = Replica(
        traits={},
        pack=lambda: PackedState(b"", []),
        load=lambda state: None,
        compare=str,
        is_at=lambda steps: b"elsewhere" not in steps,
    )
    new = Newcomer()
    new.at(5)
    new.observer.use(replica)
    new.deliver(*(of_model(sums(step, new), shows(step)) for step in range(6, 13)))
    new.submit(6, total())
    for step in (7, 8):
        new.now += STEP_S
        new.submit(step, total())
    assert new.core.done == 8


def test_the_counts_of_a_step_say_nothing_of_its_phase() -> None:
    new = Newcomer()
    new.at(5)
    theirs = counts()
    theirs.algorithm = "ring"
    step = fed(9, bytes(24), bytes(16), fingerprints=fingerprints(9, theirs, total()), num_added=1)
    for operation in (counts(), total()):
        new.carry_out(new.open_step.submit(6, 6, operation))
    assert isinstance(step.record, StepRecord) and new.open_step.is_like(step.record)


def test_a_slow_script_is_not_held_before_a_step_of_the_members_is_here() -> None:
    new = slow()
    new.observer._steps, new.observer._fitted = {}, (None, False)
    assert not new.observer._fits()
