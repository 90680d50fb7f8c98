from random import Random
from typing import Any

import pytest

from gossip import Claim, Member, State
from gossip.claim import NOWHERE
from gossip.messages import Ack, Discovered, Effect, Explain, Forget, Ping, Send
from gossip.swim import Swim, SwimConfig

from .members import A2, A, B, C, D, claim


def swim(me: Member = A, *known: Member, **config: Any) -> Swim:
    new = Swim(claim(me), rng=Random(1), config=SwimConfig(**config), now=0.0)
    for member in known:
        new.hear(claim(member))
    return new


def pings(effects: list[Effect]) -> dict[Member, tuple[Claim, ...]]:
    return {e.target: e.body.claims for e in effects if isinstance(e, Send) and isinstance(e.body, Ping)}


def test_who_is_met_is_linked_to_and_greeted_with_our_own_claim() -> None:
    new = swim()
    assert new.hear(claim(B)) == [Discovered(claim(B)), Send(B, Ping(1, (claim(A), claim(B))))]
    assert new.alive() == (B,)
    assert new.is_alive(B)


def test_what_is_known_already_changes_nothing() -> None:
    new = swim(A, B)
    assert new.hear(claim(B)) == []


def test_what_is_said_of_oneself_changes_nothing() -> None:
    new = swim()
    assert new.hear(claim(A, State.DEAD)) == []
    assert new.hear(claim(A2)) == []


def test_a_ping_is_answered_and_its_news_is_taken_in() -> None:
    new = swim()
    assert new.receive(B, Ping(7, (claim(B),))) == [
        Discovered(claim(B)),
        Send(B, Ping(1, (claim(A), claim(B)))),
        Send(B, Ack(7, (claim(B),))),
    ]


def test_who_has_answered_needs_no_introduction() -> None:
    new = swim(A, B)
    assert pings(new.tick(1.0)) == {B: (claim(A), claim(B))}
    assert new.receive(B, Ack(2, ())) == []
    assert pings(new.tick(2.0)) == {B: (claim(B),)}


def test_one_peer_is_probed_per_interval_and_each_once_a_round() -> None:
    new = swim(A, B, C, D)
    assert new.next_deadline() == 1.0
    assert new.tick(0.9) == []
    for start in (1, 4):
        targets = [target for second in range(start, start + 3) for target in pings(new.tick(float(second)))]
        assert sorted(targets) == [B, C, D]
    assert new.next_deadline() == 7.0


def test_nobody_known_nobody_probed() -> None:
    assert swim().tick(1.0) == []


def test_a_silent_peer_is_named_once_and_declared_nothing() -> None:
    new = swim(A, B, silent_after=2)
    said = [[e for e in new.tick(float(second)) if isinstance(e, Explain)] for second in range(1, 7)]
    assert said == [[], [], [Explain("b is silent: 2 probes without an answer")], [], [], []]
    assert new.is_alive(B)


def test_an_answer_ends_the_silence() -> None:
    new = swim(A, B, silent_after=2)
    for second in range(1, 20):
        assert not [e for e in new.tick(float(second)) if isinstance(e, Explain)]
        new.receive(B, Ack(0, ()))


def test_news_rides_on_a_few_messages_and_is_not_repeated_for_ever() -> None:
    new = swim(A, B, C)
    new.receive(B, Ack(0, ()))
    new.receive(C, Ack(0, ()))
    said = [c for second in range(1, 30) for claims in pings(new.tick(float(second))).values() for c in claims]
    assert said.count(claim(B)) == 2  # 4 in all; on the greetings of B and of C before
    assert said.count(claim(C)) == 3


def test_the_least_spread_news_goes_first() -> None:
    new = swim(A, B, C, claims_per_message=1)
    new.receive(C, Ack(0, ()))
    assert pings(new.hear(claim(D)))[D] == (claim(A), claim(D))
    assert new.receive(C, Ping(1, ())) == [Send(C, Ack(1, (claim(B),)))]
    assert new.receive(C, Ping(2, ())) == [Send(C, Ack(2, (claim(C),)))]


def test_a_death_is_told_to_everybody_at_once() -> None:
    new = swim(A, B, C, D)
    effects = new.bury(B, State.DEAD)
    assert list(pings(effects)) == [C, D]
    assert all(claim(B, State.DEAD) in claims for claims in pings(effects).values())
    assert new.is_gone(B)
    assert not new.is_alive(B)
    assert new.alive() == (C, D)


def test_the_dead_are_buried_once() -> None:
    new = swim(A, B)
    new.bury(B, State.DEAD)
    assert new.bury(B, State.DEAD) == []
    assert new.bury(B, State.LEFT) == []


def test_a_stranger_is_neither_alive_nor_gone_and_may_be_buried() -> None:
    new = swim(A, B)
    assert not new.is_gone(C)
    assert not new.is_alive(C)
    assert Claim(C, State.DEAD, NOWHERE) in pings(new.bury(C, State.DEAD))[B]
    assert new.is_gone(C)
    assert new.hear(claim(C)) == []


def test_the_dead_are_told_what_is_said_of_them() -> None:
    new = swim(A, B)
    new.bury(B, State.DEAD)
    assert new.tell(B) == [Send(B, Ping(2, (claim(B, State.DEAD),)))]


def test_nobody_is_probed_after_death() -> None:
    new = swim(A, B, C)
    (first,) = pings(new.tick(1.0))
    (second,) = {B, C} - {first}
    new.bury(second, State.DEAD)
    assert list(pings(new.tick(2.0))) == [first]


def test_a_later_incarnation_replaces_the_older_one() -> None:
    new = swim(B, A)
    effects = new.hear(claim(A2))
    assert effects[:2] == [Forget(A), Discovered(claim(A2))]
    assert new.is_gone(A)
    assert not new.is_gone(A2)
    assert new.bury(A, State.DEAD) == []
    assert new.hear(claim(A)) == []


def test_the_older_incarnation_of_a_dead_peer_is_not_forgotten_twice() -> None:
    new = swim(B, A)
    new.bury(A, State.LEFT)
    assert new.hear(claim(A2)) == [Discovered(claim(A2)), Send(A2, new_ping(new))]


def new_ping(swim: Swim) -> Ping:
    return Ping(swim._nonce, (claim(B), claim(A2)))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"probe_interval_s": 0.0}, "probe_interval_s must be positive and finite, is 0.0"),
        ({"probe_interval_s": float("inf")}, "probe_interval_s must be positive and finite, is inf"),
        ({"silent_after": 0}, "silent_after and claims_per_message must be at least 1, are 0 and 8"),
        ({"claims_per_message": 0}, "silent_after and claims_per_message must be at least 1, are 3 and 0"),
    ],
)
def test_a_config_that_cannot_work_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SwimConfig(**config)
