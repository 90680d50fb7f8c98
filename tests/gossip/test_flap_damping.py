from dataclasses import replace

from gossip import Claim, State
from gossip.flap_damping import LEAST_PENALTY, MOST_ACCUSERS, FlapDamping
from gossip.swim_config import SwimConfig

from .members import B, claim


class Court:
    """Claims about B, among 100 peers, at given times."""

    def __init__(self, config: SwimConfig | None = None) -> None:
        self.flapping = FlapDamping(config or SwimConfig())

    def lose(self, now: float) -> None:
        self.flapping.note(now, claim(B, State.LOST), 100, is_refuted=False)

    def accuse(self, now: float, accuser: str = "x", num_peers: int = 100) -> None:
        self.flapping.note(now, self._accused_by(accuser), num_peers, is_refuted=False)

    def refute(self, now: float, num_peers: int = 100) -> None:
        self.flapping.note(now, claim(B), num_peers, is_refuted=True)

    def quarrel(self, now: float, times: int, accusers: str, num_peers: int = 100) -> None:
        for turn in range(times):
            self.accuse(now + turn, accusers[turn % len(accusers)], num_peers)
            self.refute(now + turn, num_peers)

    def release(self, now: float, *, steady_since: float) -> bool:
        return self.flapping.release(now, "b", steady_since)

    def until(self) -> float:
        return self.flapping.holds.next()

    @property
    def is_held(self) -> bool:
        return "b" in self.flapping.holds

    @staticmethod
    def _accused_by(accuser: str) -> Claim:
        return replace(claim(B, State.SUSPECT), accuser=accuser)


def test_one_loss_is_forgiven() -> None:
    court = Court()
    court.lose(1.0)
    court.refute(2.0)
    assert not court.is_held


def test_who_is_lost_again_soon_is_held_down_longer_each_time() -> None:
    court = Court()
    court.lose(0.0)
    court.lose(0.0)
    assert court.until() == 10.0
    court.lose(0.0)
    assert court.until() == 20.0
    for _ in range(2000):
        court.lose(0.0)
    assert court.until() == 600.0


def test_an_old_loss_counts_for_little() -> None:
    assert LEAST_PENALTY == 1.5
    court = Court()
    court.lose(0.0)
    court.lose(61.0)
    assert not court.is_held


def test_every_accusation_starts_the_hold_down_anew() -> None:
    court = Court()
    court.lose(0.0)
    court.lose(0.0)
    court.accuse(9.0)
    assert court.until() > 17.0
    assert court.flapping.holds.pop(20.0) == ["b"]
    court.accuse(21.0)
    assert not court.is_held


def test_who_is_held_down_is_released_when_its_frames_have_come_for_long_enough_without_a_gap() -> None:
    court = Court()
    court.lose(0.0)
    assert not court.release(3.0, steady_since=0.0)
    court.lose(0.0)
    assert not court.release(4.9, steady_since=2.0)
    assert court.is_held
    assert court.release(5.0, steady_since=2.0)
    assert not court.is_held
    court.accuse(6.0)
    assert not court.is_held


def test_who_is_accused_meanwhile_is_not_released() -> None:
    court = Court()
    court.lose(0.0)
    court.lose(0.0)
    court.accuse(4.0)
    assert not court.release(6.9, steady_since=1.0)
    assert court.release(7.0, steady_since=1.0)


def test_who_is_lost_again_and_again_has_to_be_quiet_for_longer_each_time() -> None:
    court = Court()
    for _ in range(3):
        court.lose(0.0)
    assert court.release(3.0, steady_since=0.0)
    court.lose(3.0)
    assert not court.release(7.0, steady_since=3.0)
    assert court.release(8.0, steady_since=3.0)


def test_who_denies_too_often_against_many_is_as_good_as_lost() -> None:
    court = Court()
    court.quarrel(0.0, 4, "wxyz")
    assert not court.is_held
    court.quarrel(4.0, 1, "w")
    assert court.until() == 4.0 + 10.0


def test_two_accusers_may_be_ill_themselves_unless_they_are_all_there_are() -> None:
    court = Court()
    court.quarrel(0.0, 20, "xy")
    assert not court.is_held
    court.quarrel(20.0, 5, "xy", num_peers=3)
    assert court.is_held


def test_of_two_peers_neither_holds_down_the_other() -> None:
    court = Court()
    court.quarrel(0.0, 20, "x", num_peers=2)
    assert not court.is_held


def test_refutations_and_accusers_of_long_ago_do_not_count() -> None:
    court = Court()
    for turn in range(20):
        court.quarrel(turn * 10.0, 1, "wxyz"[turn % 4])
    assert not court.is_held


def test_what_is_held_against_a_peer_is_bounded_and_forgotten_with_it() -> None:
    court = Court()
    for number in range(100):
        court.accuse(0.0, f"accuser {number}")
    assert len(court.flapping._records["b"].accused_at) == MOST_ACCUSERS
    court.lose(0.0)
    court.lose(0.0)
    court.flapping.forget("b")
    assert not court.is_held
    assert len(court.flapping) == 0


def test_plain_swim_holds_nobody_down() -> None:
    court = Court(SwimConfig(lifeguard=False))
    court.lose(0.0)
    court.lose(0.0)
    assert not court.is_held
    assert len(court.flapping) == 0
