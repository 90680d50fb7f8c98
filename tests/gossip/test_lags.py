"""An observer that lags: how it asks, when it gets a seat, and how long all wait for it. R9 of PROTOCOL.md."""

from dataclasses import replace

from gossip import Core, Member
from gossip.admission import Admission, AdmissionConfig
from gossip.effects import DropStep, Load, Removed
from gossip.messages import Decide, Head, Join, Leave
from gossip.observing import MOST_ASKED, MOST_STEP_US, NUM_PROVING
from gossip.pace import MOST_HELD_S
from gossip.progress import NOTHING_DONE, Finish, Progress, Ready
from gossip.view import NO_VIEW

from .cores import (
    SAME,
    bodies,
    commit_steps,
    decide,
    founder,
    joiner,
    meet,
    member_of,
    run,
    say,
    view_with,
)
from .cores import view_of as installed
from .members import A, B, C, D, view_of
from .test_observing import Observer, digest, query
from .test_pace import yes

CONFIG = AdmissionConfig()
STEP_S = 0.5


def admission(*joins: Join, now: float = 0.0, committed: int = 0) -> Admission:
    """Admission of A, with D as a joiner; the steps were committed in the last tenth of a second."""
    new = Admission(replace(CONFIG, lease_s=1e9))
    new.install(view_of(1, A))
    for step in range(committed):
        new.committed(now, step)
    for join in joins:
        new.receive_join(now, D, join)
    return new


def following(done: int, **more: object) -> Join:
    return replace(Join(SAME, True, done, b"digest", view_number=1), **more)  # type: ignore[arg-type]


def candidates(new: Admission, now: float, done: int) -> list[Member]:
    return new.candidates(now, done)


# At members


def test_r9_who_is_near_by_the_steps_of_the_members_is_not_by_its_own() -> None:
    for step_us, lacks in ((0, 99), (1000, 99), (10_000, 20), (100_000, 2), (150_000, 1), (10**9, 1)):
        for more, expected in ((0, [D]), (1, [])):
            new = admission(following(99 - lacks - more, step_us=step_us), committed=100)
            if lacks < 99:
                assert candidates(new, 0.0, 99) == expected, (step_us, lacks, more)
    assert candidates(admission(following(0, step_us=0), committed=100), 0.0, 99) == [D]


def test_r9_a_time_of_less_than_nothing_says_nothing() -> None:
    assert candidates(admission(following(0, step_us=-5), committed=100), 0.0, 99) == [D]


def test_r9_who_lags_is_admitted_as_it_is_while_the_state_can_be_given() -> None:
    new = admission(following(0, lags=True, step_us=10**6), committed=100)
    assert candidates(new, 0.0, 99) == []
    new.state_available(99)
    assert candidates(new, 0.0, 99) == [D]
    assert candidates(new, 0.0, 100) == [], "an operation follows the update"
    assert new.candidates(0.0, 99, has_finished=True) == [], "all others may have finished the step, too"


def test_r9_who_did_not_lag_meanwhile_does_not_lag_for_long() -> None:
    new = admission(following(0, lags=True), following(0, step_us=10**6), committed=100)
    assert new.needed_s(1.0, D) < 0
    new.receive_join(CONFIG.lag_s, D, following(0, lags=True))
    new.receive_join(CONFIG.lag_s + 0.5, D, following(0, lags=True))
    assert new.needed_s(CONFIG.lag_s + 1.0, D) == 1.0


def test_r9_who_lags_and_has_no_state_is_not_admitted() -> None:
    new = admission(following(NOTHING_DONE, lags=True), committed=100)
    new.state_available(99)
    assert candidates(new, 0.0, 99) == []


def test_r9_who_lags_is_proposed_while_the_state_can_be_given() -> None:
    peer = founder(founding_size=1)
    meet(peer, [B])
    for step in (1, 2, 3):
        peer.finished(0.0, step, b"bits", b"state")
    say(peer, B, following(1, lags=True), NO_VIEW, 0.05)
    assert peer.has_joiner_in_need(0.05) and not peer.has_joiner_in_need(2 * CONFIG.lease_s)
    assert bodies(Decide, peer.tick(0.1)) == [], "nobody has the state"
    peer.state_available(0.1, 3)
    assert bodies(Decide, peer.tick(0.1)) == [(B, Decide(view_with(A, B, founding_size=1)))]
    assert not peer.has_joiner_in_need(0.1), "it is a member"


def trained(me: Member) -> Core:
    """`me`, in a view in which it is D's turn to propose. B is known, and step 4 is open."""
    peer = member_of(view_with(A, C, D), me)
    meet(peer, [B])
    commit_steps(peer, 3, *[member for member in installed(peer).members if member != me])
    return peer


def lagged() -> Core:
    """D, whose turn it is to propose. B has lagged since time 0, and the state that it needs can be given."""
    peer = trained(D)
    say(peer, B, following(1, lags=True), NO_VIEW)
    assert not peer.holds_step(0.0)
    peer.state_available(0.0, 3)
    return peer


def test_r9_the_step_of_who_proposes_who_lags_is_not_finished_before_the_view_is_there() -> None:
    peer = lagged()
    assert peer.holds_step(0.0)
    effects = decide(peer, C, 0.0)
    assert installed(peer).since(B) is not None and not peer.holds_step(0.1), effects


def test_r9_a_step_is_held_until_it_is_over_that_somebody_lags() -> None:
    peer = lagged()
    peer.tick(0.0)
    assert peer.holds_step(0.1)
    say(peer, B, Leave(), NO_VIEW, 0.1)
    assert not peer.holds_step(0.1)


def test_r9_a_step_is_not_held_for_long_nor_soon_again() -> None:
    peer = lagged()
    run(peer, 0.0, CONFIG.lag_s - 0.05)
    assert peer.holds_step(CONFIG.lag_s - 0.05) and peer.next_deadline() <= CONFIG.lag_s
    peer.tick(CONFIG.lag_s)
    assert not peer.holds_step(CONFIG.lag_s) and peer.next_deadline() > CONFIG.lag_s
    finish = Finish(4, b"bits", b"", installed(peer).number)
    for now, is_held in ((CONFIG.lag_s, False), (CONFIG.load_timeout_s, True)):
        before = peer.digest
        peer.finished(now, finish.step, b"bits", b"")
        for other in (A, C):
            say(peer, other, Progress(finish.step - 1, before, finish), now=now)
        say(peer, B, following(1, lags=True), NO_VIEW, now)
        peer.state_available(now, finish.step)
        assert (peer.done, peer.holds_step(now)) == (finish.step, is_held)
        finish = replace(finish, step=finish.step + 1)


def test_r9_whose_turn_it_is_not_proposes_who_lags_for_long() -> None:
    for lagged_s, expected in ((0.9 * CONFIG.lag_s, False), (CONFIG.lag_s, True)):
        peer = trained(A)
        for now in (0.0, lagged_s):
            say(peer, B, following(1, lags=True), NO_VIEW, now)
        peer.state_available(lagged_s, 3)
        assert peer.holds_step(lagged_s) is expected


def test_nobody_is_lagged_by_whom_it_does_not_know() -> None:
    peer = founder(founding_size=1)
    assert not peer.has_joiner_in_need(0.0) and peer.state_available(0.0, 0) == []


# At the observer


def slow(former: Observer | None = None) -> Observer:
    """A compared observer that takes long for a step, lacks ten, and waits in one at time 1."""
    new = Observer(NOTHING_DONE, b"")
    if former is not None:
        new.observing.return_from(former.observing)
    new.hears(3, -0.2)
    new.gets(3, now=-0.1)
    new.loads(3, -0.1)
    new.fed(*range(4, 14))
    for place in range(NUM_PROVING):
        new.loads(4 + place, place * STEP_S)
        new.observing.waits((place + 1) * STEP_S, yes)
    return new


def test_r9_who_is_slow_is_held_where_it_waits_once_it_was_compared() -> None:
    new = Observer(NOTHING_DONE, b"")
    new.hears(3)
    new.gets(3)
    new.loads(3)
    new.fed(*range(4, 14))
    new.loads(4, 1.0)
    assert new.observing.waits(2.0, yes) == (False, False)
    assert slow().observing.waits(1.0, yes) == (True, False)
    assert slow().observing.pace_said() == (STEP_S * 1e6, True)


def test_what_is_said_of_a_step_is_bounded() -> None:
    new = slow()
    for place, now in enumerate((1e9, 2e9, 3e9)):
        new.loads(6 + place, now)
    new.observing.waits(1e12, yes)
    new.loads(9, 1e12)
    new.observing.waits(2e12, yes)
    assert new.observing.pace_said()[0] == MOST_STEP_US


def test_r9_what_its_feeder_says_counts_as_much_as_what_is_fed() -> None:
    new = slow()
    new.loads(13, 1.0)
    assert new.observing.waits(2.0, yes) == (False, False)
    new.hears(13 + 10, 2.0)
    assert new.observing.waits(2.0, yes) == (True, True)
    assert new.observing.waits(2.1, yes) == (True, False)


def test_r9_it_says_nothing_of_what_it_has_done_while_its_first_step_is_measured() -> None:
    new = Observer(3)
    new.fed(4, 5, 6)
    new.loads(4, 0.0)
    new.loads(5, 0.0)
    assert new.observing.asks_from() == (NOTHING_DONE, digest(5)), "of a state, but not of its step"
    new.observing.waits(1.0, yes)
    assert new.observing.asks_from() == (5, digest(5))


def test_r9_who_lacks_nothing_but_the_step_it_waits_in_is_not_held_however_long_that_takes() -> None:
    new = Observer(NOTHING_DONE, b"")
    new.hears(3, -20.0)
    new.gets(3, now=-20.0)
    new.loads(3, -20.0)
    for step, now in ((4, 0.0), (5, 60.0), (6, 120.0)):
        new.observing.waits(now - 1.0, yes)
        new.hears(step, now)
        new.fed(step)
        assert new.observing.waits(now, yes) == (False, False)
        new.loads(step, now)
    new.hears(8, 170.0)
    assert new.observing.waits(179.0, yes) == (True, True), "the next but one is committed, too"


def test_r9_who_is_held_asks_for_no_state_before_it_is_admitted() -> None:
    new = slow()
    for now in range(1, int(MOST_HELD_S)):
        assert new.observing.waits(now, yes)[0]
        assert new.hears(100 * now, now) == []
    assert new.observing.waits(1.0 + MOST_HELD_S, yes) == (False, False)


def test_r9_who_was_held_when_it_was_admitted_and_runs_on_is_given_the_state_all_the_same() -> None:
    new = slow()
    new.fed(*range(14, 40))
    now = 1.0 + MOST_HELD_S
    assert new.observing.waits(now, yes) == (False, False)
    new.loads(6, now)
    enters(new, now + 1.0, 39)
    assert new.observing.reconsider(now + 1.0) == query(39)
    assert new.observing.waits(now + 1.1, yes) == (True, False)
    assert Removed("it has not loaded the state within 4 s of its admission") in new.observing.beat(now + 5.0)


def test_r9_who_was_held_and_is_near_again_runs_what_it_is_fed_in_the_barrier() -> None:
    new = slow()
    new.observing._asked.members[A] = None
    new.gets(38, now=1.5)
    new.loads(38, 1.5)
    new.fed(39)
    enters(new, 2.0, 39)
    assert new.observing.reconsider(2.0) == [] and new.observing.waits(2.0, yes) == (False, False)
    assert new.observing.beat(7.0) == []


def test_r9_an_operation_of_the_script_proves_nothing_since_nobody_is_compared_in_it() -> None:
    new = Observer(3)
    for step in range(4, 8):
        new.observing.fed(step, digest(step - 1), digest(step), 1, is_own=step != 4)
        new.loads(step)
        new.observing.waits(1.0, yes)
        assert new.observing.asks_from() == (NOTHING_DONE, digest(step))
    new.fed(8)
    new.loads(8)
    new.observing.waits(2.0, yes)
    assert new.observing.asks_from() == (8, digest(8))


def test_r9_who_runs_operations_of_its_own_waits_less_long_for_a_step_of_the_model_to_prove_itself_in() -> None:
    """Members in a validation call hundreds of operations; steps of the model may take half a minute each."""
    new = Observer(3)
    for _ in range(MOST_ASKED + 1):
        assert new.observing.asks_from() == (NOTHING_DONE, digest(3))
    new.observing.fed(4, digest(3), digest(4), 1, is_own=True)
    new.loads(4)
    assert new.observing.asks_from() == (4, digest(4))
    new.fed(5)
    new.loads(5)
    assert new.observing.asks_from() == (NOTHING_DONE, digest(5))


def enters(new: Observer, now: float = 2.0, wanted: int = 20) -> None:
    """The observer is admitted, and the barrier requires the state after step `wanted`."""
    view = view_of(2, A, B, D)
    new.observing.install(view)
    new.steps.install(view)
    new.observing.reconsider(now)
    for member in (A, B):
        new.steps.receive(member, Ready(True, wanted, digest(wanted), None))


def test_r9_who_lags_asks_for_the_state_in_the_barrier_and_runs_nothing() -> None:
    new = slow()
    enters(new)
    assert new.observing.reconsider(2.0) == query(20)
    assert new.observing.waits(2.0, yes) == (True, False)
    assert new.observing.beat(2.1) == query(20)
    assert Load(20, digest(20)) in new.gets(20, now=2.2, source=A)
    assert {type(effect) for effect in new.loads(20, 2.3)} == {DropStep}
    assert new.observing.waits(2.3, yes) == (True, False)


def test_r9_who_was_near_when_it_was_admitted_is_not_held_in_the_barrier() -> None:
    new = Observer(3)
    new.fed(4, 5, 6, 7)
    new.hears(7)
    new.loads(4, 0.0)
    new.loads(5, 0.1)
    enters(new)
    assert new.observing.waits(60.0, yes) == (False, False)
    assert new.observing.reconsider(2.0) == []
    assert new.observing.beat(60.0) == [], "what it runs is here"


def test_r9_who_lags_is_removed_if_it_does_not_load_the_state_in_time() -> None:
    new = slow()
    enters(new)
    assert not any(isinstance(effect, Removed) for effect in new.observing.beat(2.0 + 0.9 * CONFIG.load_timeout_s))
    assert new.observing.beat(2.0 + CONFIG.load_timeout_s) == [
        Removed("it has not loaded the state within 4 s of its admission")
    ]
    new.loads(20, 2.0)
    new.steps.receive(D, Ready(False, 20, digest(20), None))
    assert new.steps.seated and new.observing.beat(2.0 + CONFIG.load_timeout_s) == []


def test_r9_who_was_removed_since_its_state_did_not_come_is_not_held_again_at_once() -> None:
    first = slow()
    enters(first)
    assert first.observing.beat(2.0 + CONFIG.load_timeout_s)
    assert slow(first).observing.waits(1.0, yes) == (False, False)
    first.loads(20, 2.0)
    first.steps.receive(D, Ready(False, 20, digest(20), None))
    assert slow(first).observing.waits(1.0, yes) == (True, False), "it had its seat"


def test_r9_a_state_that_takes_longer_than_the_last_does_so_while_it_comes() -> None:
    new = slow()
    new.observing._asked.ask(0.0, A)
    assert new.observing.segment_arrived(0.6 * CONFIG.load_timeout_s, A, 20)
    assert new.observing.waits(0.6 * CONFIG.load_timeout_s, yes) == (False, False)


def test_r9_it_asks_at_once_when_it_is_held() -> None:
    peer = joiner(follows=True)
    say(peer, A, Head(3, b"digest 3"))
    assert peer.state_segment_arrived(0.05, A, 3)
    peer.state_arrived(3, digest(3), b"lineage")
    peer.loaded(0.1, 3, digest(3))
    assert peer.waits(0.1, yes) is None
    for step in range(4, 14):
        peer.fed(step, digest(step - 1), digest(step), 0, is_own=False)
    for step, now in ((4, 0.2), (5, 1.2)):
        peer.loaded(now, step, digest(step))
        asked = peer.waits(now + 1.0, yes)
        assert (asked is None) == (step == 4)
    assert asked is not None and [join.lags for _, join in bodies(Join, asked)] == [True]
    assert peer.waits(2.3, yes) == []
    (target, join), *_ = bodies(Join, peer.tick(2.5))
    assert target == A and join == Join(SAME, True, 5, digest(5), step_us=1_000_000, lags=True)
