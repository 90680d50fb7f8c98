"""Joining: requests, foundation and states before the first seat. R6, R8, R9 of PROTOCOL.md."""

from collections.abc import Mapping
from dataclasses import replace
from random import Random

import pytest

from gossip import CoreConfig, Foundation, Member, Phase, Policy, Seat, State
from gossip.commit import StepMachine
from gossip.effects import Activated, Effect, Installed, Removed, Send
from gossip.founding import NO_HOSTS
from gossip.joining import MOST_STATES, Joining
from gossip.known_views import MOST_LINEAGES
from gossip.messages import Head, Join, LineageQuery
from gossip.numerics import inherited
from gossip.observing import MOST_ASKED_IN_STEPS, Observing
from gossip.progress import NOTHING_DONE, Beat, Progress, Ready, StateQuery
from gossip.swim import Swim
from gossip.swim_config import SwimConfig
from gossip.view import founding_view

from .cores import RUN, SAME, core, run
from .members import LINEAGE, A, B, C, D, claim, view_of

SEEDS = tuple(f"control {name}" for name in "abc")
NOT_YET = None
CLASS = b"numerics"

TRIO = view_of(2, A, B, C)
DIGEST_0 = b"digest of step 0"
SEATED = Ready(True, 0, DIGEST_0, None)
UNSEATED = Ready(False, -1, b"", None)
AT_0 = Ready(False, 0, DIGEST_0, None)


def joining(me: Member = A, *known: Member, steps: StepMachine | None = None) -> Joining:
    """`me`, which has discovered these."""
    swim = Swim(claim(me), rng=Random(1), config=SwimConfig(), now=0.0)
    for member in known:
        swim.apply_claim(0.0, claim(member))
    steps = StepMachine(me) if steps is None else steps
    return Joining(swim, steps, Observing(swim, steps, config=CoreConfig()), config=CoreConfig(), now=0.0)


def observer(done: int, digest: bytes = b"done") -> Joining:
    """D, which follows and has taken over the steps up to `done`."""
    steps = StepMachine(D)
    steps.loaded(done, digest)
    new = joining(D, A, B, steps=steps)
    new.begin(RUN, follows=True)
    return new


def seated() -> StepMachine:
    steps = StepMachine(A)
    steps.found(founding_view(Seat(A, 1), LINEAGE, 1))
    return steps


# Asking.


def test_who_has_nothing_to_train_asks_for_nothing() -> None:
    new = joining(A, B)
    assert new.ask() == []
    assert new.reason == "not in a view yet"


def test_everybody_who_is_alive_is_asked_for_a_seat() -> None:
    new = joining(A, B, C)
    new.begin(RUN, follows=False)
    assert new.ask() == [Send(B, Join(SAME)), Send(C, Join(SAME))]
    assert new.ask([C]) == [Send(C, Join(SAME))]
    assert new.ask([]) == []


def test_who_is_met_twice_is_asked_once() -> None:
    new = joining(A, B, B)
    new.begin(RUN, follows=False)
    assert new.ask() == [Send(B, Join(SAME))]


def test_r9_an_observer_says_how_far_it_is_once_it_has_proven_that_it_keeps_step_or_is_too_slow_for_that() -> None:
    new = observer(3)
    for _ in range(MOST_ASKED_IN_STEPS):
        assert new.ask([A]) == [Send(A, Join(SAME, True, digest=b"done"))]
    assert new.ask([A]) == [Send(A, Join(SAME, True, 3, b"done"))]


def test_r9_only_who_feeds_an_observer_says_a_step() -> None:
    new = observer(NOTHING_DONE, b"")
    asked = Send(A, StateQuery(5))
    assert asked not in new.hear_head(0.0, A, LINEAGE, Head(NOTHING_DONE, b"", 1, 1))
    assert new.hear_head(0.0, A, LINEAGE, Head(5, b"five", 1, 1)) == [asked]


# News of views


def tell(
    new: Joining, source: Member, number: int, since: int, now: float = 0.0, lineage: bytes = LINEAGE
) -> list[Effect]:
    """`source` has installed this view, and D had no seat `since`."""
    return new.hear_head(now, source, lineage, Head(NOTHING_DONE, b"", number, since))


def naming(number: int) -> Join:
    return Join(SAME, view_number=number)


def asking(*known: Member) -> Joining:
    """D, which has discovered these and asked them for a seat."""
    new = joining(D, *known)
    new.begin(RUN, follows=False)
    assert new.ask() == [Send(member, naming(0)) for member in known]
    return new


def test_a_joiner_asks_again_at_once_when_it_hears_of_a_later_view() -> None:
    new = asking(A)
    assert tell(new, A, 7, 7) == [Send(A, naming(7))]
    assert tell(new, A, 7, 7) == []
    assert tell(new, A, 8, 8) == [Send(A, naming(8))]
    assert tell(new, A, 20, 9) == [Send(A, naming(20))]
    assert new.ask() == [Send(A, naming(20))]


def test_a_joiner_names_no_view_to_a_member_that_has_not_answered_and_asks_it_at_once_when_it_does() -> None:
    new = asking(A, B)
    assert tell(new, A, 7, 7) == [Send(A, naming(7)), Send(B, naming(0))]
    assert tell(new, B, 6, 6) == [Send(B, naming(7))]
    assert tell(new, B, 6, 6) == []


def test_a_joiner_names_to_each_the_view_of_its_own_swarm() -> None:
    new = asking(A, B)
    tell(new, A, 7, 7)
    assert tell(new, B, 2, 2, lineage=b"another") == [Send(A, naming(7)), Send(B, naming(2))]
    assert tell(new, A, 8, 8) == [Send(A, naming(8)), Send(B, naming(2))]


def test_who_has_asked_for_nothing_or_was_never_met_is_not_listened_to() -> None:
    bystander = joining(D, A)
    assert tell(bystander, A, 7, 7) == []
    bystander.begin(RUN, follows=False)
    assert bystander.ask() == [Send(A, naming(0))]
    new = asking(A)
    assert tell(new, B, 7, 7) == []
    assert new.ask() == [Send(A, naming(0))]


def test_of_too_many_swarms_the_last_is_asked_no_more_than_before() -> None:
    new = asking(A)
    for number in range(1, MOST_LINEAGES + 1):
        assert tell(new, A, 7, 7, lineage=b"%d" % number) == [Send(A, naming(7))]
    assert tell(new, A, 7, 7, lineage=b"one more") == []


def test_r8_who_may_have_had_a_seat_waits_for_somebody_who_knows() -> None:
    new = asking(A, B)
    tell(new, A, 7, 7)
    tell(new, B, 7, 7)
    assert tell(new, A, 9, 9, now=1.0) == []
    assert tell(new, A, 9, 9, now=2.9) == []
    assert new.ask() == [Send(A, naming(7)), Send(B, naming(7))]
    assert tell(new, B, 9, 8, now=2.9) == [Send(A, naming(9)), Send(B, naming(9))]
    assert tell(new, A, 9, 9, now=9.0) == []


def test_r8_who_may_have_had_a_seat_asks_no_more_if_nobody_knows() -> None:
    new = asking(A)
    tell(new, A, 7, 7)
    assert tell(new, A, 9, 9, now=1.0) == []
    reason = "it may have had a seat after view 7, and has none in view 11"
    assert tell(new, A, 11, 9, now=3.0) == [Removed(reason)]
    assert new.reason == reason


# Founding.


def test_who_may_found_asks_everybody_whether_there_is_a_swarm() -> None:
    new = joining(A, B, D)
    new.found_from_seeds(0.0, Foundation(SEEDS, LINEAGE, 3, Policy.MAJORITY))
    assert new.ask() == []
    new.begin(RUN, follows=False)
    asked = Send(B, LineageQuery()), Send(D, LineageQuery())
    assert new.ask() == [Send(B, Join(SAME)), Send(D, Join(SAME)), *asked]


def test_who_is_not_to_found_asks_nobody_whether_there_is_one() -> None:
    new = joining(B, A)
    new.found_from_seeds(0.0, Foundation(SEEDS, LINEAGE, 3, Policy.MAJORITY))
    new.begin(RUN, follows=False)
    assert new.ask() == [Send(A, Join(SAME))]


def test_the_first_seed_founds_once_it_has_a_layout_and_nobody_knows_a_swarm() -> None:
    new = joining(A, B, C)
    assert new.foundation(9.0) is NOT_YET
    new.hear_lineage(0.0, B, b"")
    new.found_from_seeds(0.0, Foundation(SEEDS, LINEAGE, 3, Policy.LIVE))
    new.hear_lineage(0.0, B, b"")
    new.hear_lineage(0.0, C, b"")
    assert new.foundation(9.0) is NOT_YET
    new.begin(RUN, follows=False)
    assert founded(new, 9.0) == (LINEAGE, 3, Policy.LIVE)
    assert new.reason == "no peer knows a swarm"


def test_who_was_met_and_does_not_answer_is_waited_for() -> None:
    new = founds(A, B, C)
    new.hear_lineage(0.0, B, b"")
    assert new.foundation(1.0) is NOT_YET
    assert new.foundation(10.9) is NOT_YET
    assert new.reason == "waiting 0 s more for control c to say whether a swarm exists"
    assert founded(new, 11.0) == (LINEAGE, 3, Policy.MAJORITY)


def founded(new: Joining, now: float) -> tuple[bytes, int, Policy]:
    found = new.foundation(now)
    assert found is not None, new.reason
    return found.lineage, found.size, found.policy


def founds(*members: Member, elsewhere: Mapping[str, str] = NO_HOSTS) -> Joining:
    """The first of them, with A as the first seed; it has discovered the others, and asked for a seat."""
    new = joining(*members)
    new.found_from_seeds(0.0, Foundation(("control a",), LINEAGE, 3, Policy.MAJORITY, elsewhere))
    new.begin(RUN, follows=False)
    return new


def test_g15_nobody_founds_before_it_has_listened_for_a_while() -> None:
    new = founds(A)
    assert new.foundation(2.9) is NOT_YET
    new.listen_anew(2.9)
    assert new.foundation(5.8) is NOT_YET
    assert new.reason == "waiting 0.1 s more, in case members of an existing swarm call"
    assert founded(new, 6.0) == (LINEAGE, 3, Policy.MAJORITY)


def test_g15_nobody_founds_while_somebody_speaks_whom_it_does_not_understand() -> None:
    peer = core(A, beat_s=0.25)
    peer.ask_for_seat(0.0, RUN)
    peer.found_from_seeds(0.0, Foundation(("control a",), LINEAGE, 1, Policy.MAJORITY))
    for now in (2.0, 4.0, 6.0):
        peer.heard_another_version(now)
        run(peer, now, now + 2.0)
        assert peer.view is None
    run(peer, 8.0, 9.5)
    assert peer.view is not None


def test_g15_where_anybody_has_a_lineage_nobody_founds() -> None:
    new = joining(A, D)
    new.hear_lineage(0.0, D, b"\x07")
    new.found_from_seeds(0.0, Foundation(("control a",), LINEAGE, 3, Policy.MAJORITY))
    new.begin(RUN, follows=False)
    new.hear_lineage(0.0, D, b"")
    assert new.foundation(99.0) is NOT_YET
    assert new.reason == "the swarm exists: lineage 07"


@pytest.mark.parametrize("state", [State.LEFT, State.DEAD])
def test_g15_once_all_members_are_gone_the_first_seed_founds(state: State) -> None:
    new = founds(A, D)
    new.hear_lineage(1.0, D, b"\x07")
    assert new.foundation(2.0) is NOT_YET
    new._swim.declare_dead(2.0, D, state)
    assert new.foundation(3.9) is NOT_YET
    assert founded(new, 4.0) == (LINEAGE, 3, Policy.MAJORITY)


def test_g15_who_has_a_lineage_and_was_not_met_counts_for_a_while() -> None:
    new = founds(A)
    new.hear_lineage(1.0, D, b"\x07")
    assert new.foundation(11.0) is NOT_YET
    assert founded(new, 11.1) == (LINEAGE, 3, Policy.MAJORITY)


def test_g15_who_replaces_a_member_does_not_found_before_the_hosts_of_the_others_have_answered() -> None:
    new = founds(A, elsewhere={"host of b": "another port of b", "host of c": "control c"})
    assert new.foundation(99.0) is NOT_YET
    assert new.reason.startswith(
        "this peer takes the place of a member of a run with others at another port of b, control c,"
    )
    for member in (B, C):
        contact = replace(claim(member).contact, host=f"host of {member.peer_id}")
        new._swim.apply_claim(99.0, replace(claim(member), contact=contact))
        new.hear_lineage(99.0, member, b"")
    assert founded(new, 99.0) == (LINEAGE, 3, Policy.MAJORITY)


def test_r18_who_was_told_of_a_committed_step_founds_nothing_though_nobody_knows_a_swarm() -> None:
    new = joining(A, B, C)
    new.found_from_seeds(0.0, Foundation(SEEDS, LINEAGE, 3, Policy.MAJORITY))
    new.begin(RUN, follows=True)
    new.hear_head(0.0, B, LINEAGE, Head(0, b"zero", 2, 2))
    for member in (B, C):
        new.hear_lineage(0.0, member, b"")
    assert new.foundation(99.0) is NOT_YET
    assert "founds no other" in new._reason


def test_who_waits_for_a_seat_says_whom_it_has_asked() -> None:
    new = joining(A, B, C)
    new.begin(RUN, follows=False)
    assert new.reason == "not in a view yet"
    new.ask()
    assert new.reason == f"not in a view yet: asked {B}, {C} for a seat"
    new.ask([C])
    assert new.reason == f"not in a view yet: asked {B}, {C} for a seat"


def test_seeds_are_distinct() -> None:
    with pytest.raises(ValueError, match=r"seeds must be distinct .* are \['x', 'x'\]"):
        joining().found_from_seeds(0.0, Foundation(("x", "x"), LINEAGE, 1, Policy.MAJORITY))


# In the barrier of its first view.


def told(said: Ready | Beat) -> list[Effect]:
    return [Send(A, said), Send(B, said)]


def in_barrier() -> StepMachine:
    machine = StepMachine(C)
    assert machine.install(TRIO) == [Installed(TRIO), *told(UNSEATED)]
    assert machine.receive(A, SEATED) == machine.receive(B, SEATED) == []
    return machine


def test_r6_a_joiner_takes_the_state_and_is_seated_when_all_are_at_it() -> None:
    machine = in_barrier()
    assert machine.wanted_state() == (0, DIGEST_0, A)
    assert machine.loaded(0, DIGEST_0) == [
        *told(AT_0),
        Activated(TRIO, 0),
    ]
    assert machine.seated
    assert machine.wanted_state() is None


def test_r6_a_state_that_is_not_wanted_changes_nothing() -> None:
    machine = in_barrier()
    assert machine.loaded(1, DIGEST_0) == []
    assert machine.loaded(0, b"other") == []
    assert machine.wanted_state() == (0, DIGEST_0, A)
    assert machine.done == -1


def test_r6_a_state_that_is_loaded_again_is_not_said_again() -> None:
    machine = StepMachine(C)
    machine.install(view_of(2, A, C, D))
    machine.receive(A, SEATED)
    machine.receive(D, UNSEATED)
    assert machine.loaded(0, DIGEST_0) != []
    assert machine.loaded(0, DIGEST_0) == []


@pytest.mark.parametrize("past", [(100, b"of another lineage"), (0, b"other bits")])
def test_r6_a_joiner_from_another_past_takes_the_state_too(past: tuple[int, bytes]) -> None:
    machine = StepMachine(C)
    machine.loaded(*past)
    assert machine.install(TRIO)[1:] == told(Ready(False, *past, None))
    machine.receive(A, SEATED)
    assert machine.receive(B, SEATED) == []
    assert machine.wanted_state() == (0, DIGEST_0, A)
    assert machine.loaded(0, DIGEST_0)[-1] == Activated(TRIO, 0)


def test_r6_each_view_asks_another_seated_member_for_the_state() -> None:
    donors = []
    for number in (2, 3, 4):
        machine = StepMachine(C)
        machine.install(view_of(number, A, B, C))
        machine.receive(A, SEATED)
        machine.receive(B, SEATED)
        wanted = machine.wanted_state()
        assert wanted is not None
        donors.append(wanted[2])
    assert donors == [A, B, A]


def test_r9_an_observer_takes_later_and_later_steps_and_tells_nobody() -> None:
    machine = StepMachine(C)
    assert machine.wanted_state() is None
    assert machine.loaded(3, b"three") == []
    assert machine.loaded(2, b"two") == []
    assert (machine.done, machine.digest, machine.seated) == (3, b"three", False)
    assert machine.loaded(4, b"four") == []
    assert machine.done == 4


def test_r9_an_observer_has_the_state_before_the_first_step_before_it_has_a_seat() -> None:
    machine, genesis = StepMachine(C), b"digest of nothing"
    assert machine.loaded(NOTHING_DONE, genesis) == []
    assert (machine.done, machine.digest) == (NOTHING_DONE, genesis)
    assert machine.loaded(NOTHING_DONE, b"another") == []
    assert machine.digest == genesis


def test_r9_an_observer_that_is_current_brings_its_step_along_and_needs_no_state() -> None:
    machine = StepMachine(C)
    machine.loaded(0, DIGEST_0)
    assert machine.install(TRIO)[1:] == told(AT_0)
    machine.receive(A, SEATED)
    assert machine.receive(B, SEATED) == [Activated(TRIO, 0)]


def test_r9_fed_steps_still_bring_a_joiner_closer_to_the_state_of_its_barrier() -> None:
    machine, at_1 = StepMachine(C), b"digest of step 1"
    machine.install(TRIO)
    assert machine.loaded(0, DIGEST_0) == told(AT_0)
    machine.receive(A, Ready(True, 1, at_1, None))
    machine.receive(B, Ready(True, 1, at_1, None))
    assert machine.loaded(2, b"later") == []
    assert machine.loaded(1, at_1)[-1] == Activated(TRIO, 1)


def test_who_has_no_seat_yet_has_finished_nothing_whatever_it_took_over() -> None:
    machine = StepMachine(C)
    machine.loaded(7, b"seven")
    machine.install(TRIO)
    assert machine.beat() == told(Beat(Ready(False, 7, b"seven", None), Progress(NOTHING_DONE, b"", None)))


def test_r6_a_state_serves_the_next_view_if_it_is_still_the_last() -> None:
    machine, last = StepMachine(C), view_of(3, A, C)
    machine.install(view_of(2, A, C, D))
    machine.receive(A, SEATED)
    machine.receive(D, UNSEATED)
    machine.loaded(0, DIGEST_0)
    assert (machine.phase, machine.seated) == (Phase.INSTALLING, False)
    assert machine.install(last) == [Installed(last), Send(A, AT_0)]
    assert machine.receive(A, SEATED) == [Activated(last, 0)]


def test_a_member_that_is_seated_loads_nothing() -> None:
    steps = seated()
    assert steps.loaded(0, DIGEST_0) == []
    assert steps.done == -1


def test_of_many_states_that_came_the_last_ones_are_known() -> None:
    new = observer(3)
    for step in range(MOST_STATES + 1):
        new.state_arrived(step, b"digest", CLASS)
    before = new.numerics
    new.loaded(0, b"digest", is_run=False)
    assert new.numerics == before, "it came too long ago"
    new.loaded(1, b"digest", is_run=False)
    assert new.numerics == inherited(RUN.numerics, CLASS, D, 1) != before
