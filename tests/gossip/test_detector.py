import math
from random import Random
from typing import Any

from gossip import Member, State
from gossip.detector import MOST_RELAYS, Detector, Indirect, Probe, ProbeFailed, Relay, Relays
from gossip.health import LocalHealth
from gossip.roster import Roster
from gossip.swim_config import SwimConfig

from .members import A, B, C, D, claim


class Bench:
    """A's detector, with a clock that jumps from deadline to deadline."""

    def __init__(self, *known: Member, **config: Any) -> None:
        self.roster = Roster(claim(A), tuple(claim(m) for m in known), lambda name: False)
        self.health = LocalHealth(8)
        self.config = SwimConfig(**config)
        self.detector = Detector(self.roster, self.health, rng=Random(1), config=self.config, now=0.0)
        self.now = 0.0
        self.nonce = 0

    def step(self) -> list[Probe | Indirect | ProbeFailed]:
        self.now = self.detector.next_deadline()
        self.nonce += 1
        return self.detector.tick(self.now, self.nonce)

    def probe(self) -> Probe:
        probe = self.step()[-1]
        assert isinstance(probe, Probe)
        return probe


def test_each_neighbour_has_its_turn_once_a_round() -> None:
    bench = Bench(B, C, D)
    for _ in range(3):
        targets = []
        for _ in range(3):
            probe = bench.probe()
            targets.append(probe.target)
            bench.detector.receive_ack(probe.target, probe.nonce)
        assert sorted(targets) == [B, C, D]


def test_nothing_is_done_before_the_time_and_nobody_is_probed_where_nobody_is() -> None:
    bench = Bench()
    assert bench.detector.tick(0.4, 1) == []
    assert bench.step() == []
    assert bench.detector.next_deadline() == bench.now + 1.0


def test_who_does_not_answer_is_asked_through_others_and_then_missed() -> None:
    bench = Bench(B, C, D)
    probe = bench.probe()
    started = bench.now
    asked = bench.step()
    assert bench.now == started + 0.3
    helpers = [member for member in (B, C, D) if member != probe.target]
    assert sorted(e.helper for e in asked if isinstance(e, Indirect)) == helpers
    assert {e.nonce for e in asked if isinstance(e, Indirect)} == {probe.nonce}
    missed, following = bench.step()
    assert bench.now == started + 1.0
    assert missed == ProbeFailed(probe.target)
    assert isinstance(following, Probe)


def test_an_answer_of_the_target_or_by_a_helper_ends_the_probe() -> None:
    bench = Bench(B, C, D)
    bench.health.worsen()
    for through_helper in (False, True):
        probe = bench.probe()
        helpers = [e.helper for e in bench.step() if isinstance(e, Indirect)]
        bench.detector.receive_ack(helpers[0] if through_helper else probe.target, probe.nonce)
        assert bench.detector.next_deadline() > bench.now + 0.5
    assert bench.health.score == 0


def test_a_frame_of_any_kind_is_as_good_as_an_answer_if_it_is_from_the_target() -> None:
    bench = Bench(B, C)
    first = bench.probe()
    bench.detector.receive_sign(first.target)
    second = bench.step()
    assert not [result for result in second if isinstance(result, ProbeFailed)]
    bench.detector.receive_sign(first.target)  # the other one is asked now
    results = [*bench.step(), *bench.step()]
    assert [result for result in results if isinstance(result, ProbeFailed)] == [ProbeFailed(second[-1].target)]


def test_strangers_and_old_answers_end_nothing() -> None:
    bench = Bench(B)
    bench.detector.receive_ack(B, 1)
    bench.detector.receive_no_ack(B, 1)
    probe = bench.probe()
    bench.detector.receive_ack(C, probe.nonce)
    bench.detector.receive_ack(B, probe.nonce - 1)
    bench.detector.receive_no_ack(C, probe.nonce)
    assert bench.step() == []  # there is no other helper
    assert ProbeFailed(B) in bench.step()


def test_helpers_that_are_there_excuse_the_prober() -> None:
    bench = Bench(B, C, D)
    probe = bench.probe()
    for helper in [e.helper for e in bench.step() if isinstance(e, Indirect)]:
        bench.detector.receive_no_ack(helper, probe.nonce)
        bench.detector.receive_no_ack(helper, probe.nonce)
    assert ProbeFailed(probe.target) in bench.step()
    assert bench.health.score == 0


def test_who_hears_from_no_helper_doubts_itself_and_slows_down() -> None:
    bench = Bench(B, C, D)
    bench.probe()
    bench.step()
    bench.step()
    assert bench.health.score == 2
    assert bench.detector.next_deadline() == bench.now + 3 * 0.3


def test_who_has_no_helpers_doubts_itself_a_little() -> None:
    bench = Bench(B, num_indirect=0)
    bench.probe()
    bench.step()
    bench.step()
    assert bench.health.score == 1


def test_nobody_who_died_meanwhile_is_missed_or_probed() -> None:
    bench = Bench(B, C)
    probe = bench.probe()
    bench.roster.put(claim(probe.target, State.DEAD))
    bench.step()
    (other,) = {B, C} - {probe.target}
    assert bench.probe().target == other


def test_who_dies_before_its_turn_has_none() -> None:
    bench = Bench(B, C)
    probe = bench.probe()
    bench.detector.receive_ack(probe.target, probe.nonce)
    (other,) = {B, C} - {probe.target}
    bench.roster.put(claim(other, State.DEAD))
    assert bench.probe().target == probe.target


def test_who_was_stopped_itself_misses_nobody() -> None:
    bench = Bench(B)
    bench.probe()
    bench.detector.restart(50.0)
    assert 50.5 <= bench.detector.next_deadline() <= 51.0
    assert isinstance(bench.step()[0], Probe)


def test_a_relay_ends_with_the_answer_of_its_target_or_in_time() -> None:
    relays = Relays(SwimConfig())
    assert relays.next_deadline() == math.inf
    assert relays.expire(9.0) == []
    assert relays.begin(1.0, 7, A, 70, B)
    assert relays.begin(1.1, 8, C, 80, D)
    assert relays.finish(C, 7) is None
    assert relays.finish(B, 9) is None
    assert relays.finish(B, 7) == Relay(A, 70, B, 1.3)
    assert relays.next_deadline() == 1.1 + 0.3
    assert relays.expire(1.3) == []
    assert [relay.nonce for relay in relays.expire(1.5)] == [80]
    assert len(relays) == 0


def test_relays_are_bounded() -> None:
    relays = Relays(SwimConfig())
    assert all(relays.begin(0.0, nonce, A, nonce, B) for nonce in range(MOST_RELAYS))
    assert not relays.begin(0.0, MOST_RELAYS, A, 0, B)
