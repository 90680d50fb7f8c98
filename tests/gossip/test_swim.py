from dataclasses import replace
from random import Random
from typing import Any

from gossip import Claim, Member, State
from gossip.anti_entropy import CLAIMS_PER_SYNC
from gossip.claim import Status
from gossip.claim_digests import NUM_BUCKETS, bucket_of
from gossip.detector import MOST_RELAYS
from gossip.effects import Discovered, Effect, Explain, Forget, Send
from gossip.messages import Ack, Gossip, NoAck, Ping, PingRequest, Sync, SyncReply
from gossip.swim import Swim
from gossip.swim_config import SwimConfig
from gossip.view import NOWHERE

from .members import A2, A, B, C, D, claim

NOTHING = (b"",) * NUM_BUCKETS


def swim(me: Member = A, *known: Member, **config: Any) -> Swim:
    """A `Swim` that knows `known`, which know it; it has no news."""
    return Swim(claim(me), rng=Random(1), config=SwimConfig(**config), now=0.0, known=map(claim, known))


def about(member: Member, state: State = State.ALIVE, refutation: int = 0) -> Claim:
    return replace(claim(member, state), refutation=refutation, accuser="d" if state in (1, 2) else "")


def sent(effects: list[Effect], kind: type) -> dict[Member, Any]:
    return {e.target: e.body for e in effects if isinstance(e, Send) and isinstance(e.body, kind)}


def run(peer: Swim, until: float, *, silent: bool = True) -> list[Effect]:
    """Run to a deadline and past it; unless `silent`, all probed members answer."""
    effects = list[Effect]()
    while (now := peer.next_deadline()) <= until:
        new = peer.tick(now)
        effects += new
        for target, ping in sent(new, Ping).items():
            if not silent:
                peer.receive(now, target, Ack(ping.nonce, ()))
    return effects


def test_who_is_met_is_linked_to_and_greeted_with_our_own_claim() -> None:
    new = swim()
    discovered, greeting = new.apply_claim(0.0, claim(B))
    assert discovered == Discovered(claim(B))
    assert greeting == Send(B, Ping(1, (claim(A), claim(A), claim(B))))
    assert new.alive() == new.neighbours() == (B,)
    assert new.is_alive(B)
    assert new.claim_of(B) == claim(B)
    assert new.known_claims() == (claim(B),)
    assert new.apply_claim(0.0, claim(B)) == []


def test_where_there_are_many_gossip_introduces_newcomers() -> None:
    new = swim(A, B, broadcast_max=1)
    assert new.apply_claim(0.0, claim(C)) == [Discovered(claim(C))]
    assert any(claim(C) in body.claims for body in sent(new.tick(0.0), Gossip).values())


def test_a_ping_is_answered_with_news_and_its_own_is_taken_in() -> None:
    new = swim(A, C)
    assert new.receive(0.0, B, Ping(7, (claim(B),))) == [Discovered(claim(B)), Send(B, Ack(7, (claim(B),)))]


def test_who_has_answered_needs_no_introduction() -> None:
    new = swim(sync_interval_s=1000.0)
    new.apply_claim(0.0, claim(B))
    assert sent(run(new, 1.0), Ping)[B].claims.count(claim(A)) >= 1
    new.receive(1.0, B, Ack(2, ()))
    run(new, 30.0, silent=False)
    assert sent(run(new, 31.1, silent=False), Ping)[B].claims == ()


def test_a_sign_of_the_probed_takes_back_the_deadline_of_its_answer() -> None:
    for sign in (Swim.frame_received, Swim.link_answered):
        new = swim(A, B)
        asked_at = new.next_deadline()
        assert sent(new.tick(asked_at), Ping).keys() == {B}
        assert new.next_deadline() == asked_at + 0.3
        sign(new, asked_at + 0.1, B)
        assert new.next_deadline() == asked_at + 1.0


def test_who_is_held_down_no_more_is_told_the_news_at_once() -> None:
    new = swim(A, B, probe_interval_s=100.0, sync_interval_s=1000.0, hold_down_s=3.5)
    for refutation in range(2):
        new.apply_claim(0.0, replace(about(B, State.LOST, refutation), accuser="a"))
        new.apply_claim(0.0, about(B, refutation=refutation + 1))
    for tick in range(12):
        new.frame_received(tick / 4, B)
    assert new.next_deadline() == 3.5
    new.frame_received(3.0, B)
    assert new.is_alive(B)
    assert new.next_deadline() == 0.0


def test_the_probed_that_answer_are_left_alone_and_their_silence_is_short() -> None:
    new = swim(A, B, C)
    effects = run(new, 60.0, silent=False)
    assert not [e for e in effects if isinstance(e, Explain)]
    assert new.health_multiplier() == 1
    assert new.silence_s(60.0, B) < 4.0
    new.frame_received(60.0, B)
    assert new.silence_s(60.0, B) == 0.0


def test_who_answers_nobody_is_asked_through_others_then_suspect_then_lost() -> None:
    new = swim(A, B, C, num_confirmations=0)
    effects = run(new, 40.0)
    assert sent(effects, PingRequest)
    reasons = [e.reason for e in effects if isinstance(e, Explain)]
    assert "b is suspect: a had no answer" in reasons
    assert "b is lost: it did not deny the suspicion, says a" in reasons
    assert new.health_multiplier() > 1
    assert new.is_lost(B)
    assert not new.is_gone(B)
    assert not new.is_alive(B)
    assert new.alive() == ()


def test_the_accused_hears_of_it_at_once_and_whenever_it_is_talked_to() -> None:
    new = swim(A, B)
    effects = new.suspect(0.0, B)
    assert effects == [Explain("b is suspect: a had no answer")]
    accusation = replace(claim(B, State.SUSPECT), accuser="a")
    assert sent(run(new, 1.0), Ping)[B].claims[0] == accusation
    assert sent(new.receive(1.0, B, Ping(1, ())), Ack)[B].claims[0] == accusation
    plain = swim(A, B, lifeguard=False, spread_mult=1)
    plain.suspect(0.0, B)
    plain.receive(0.0, C, Ping(0, ()))
    assert sent(plain.receive(0.0, B, Ping(1, ())), Ack)[B].claims == ()


def test_plain_swim_probes_and_does_not_doubt_itself() -> None:
    plain = swim(A, B, C, lifeguard=False, suspicion_mult=0.0)
    run(plain, 5.0)
    assert plain.is_lost(B)
    assert plain.health_multiplier() == 1


def test_who_has_this_peer_wrong_is_corrected_in_the_answer() -> None:
    new = swim(A, B)
    new.receive(0.0, B, Ping(1, (about(A, State.SUSPECT),)))
    for _ in range(9):
        new.receive(0.0, B, Ping(2, ()))
    assert sent(new.receive(0.0, B, Ping(3, ())), Ack)[B].claims == ()
    assert new.me == about(A, refutation=1)
    assert sent(new.receive(0.0, B, Ping(4, (about(A, State.SUSPECT),))), Ack)[B].claims == (new.me,)


def test_a_probe_for_another_is_passed_on_and_so_is_its_answer() -> None:
    new = swim(A, B, C)
    ((_, ping),) = sent(new.receive(0.0, B, PingRequest(70, C)), Ping).items()
    assert new.receive(0.1, C, Ack(ping.nonce, ())) == [Send(B, Ack(70, ()))]
    new.receive(0.2, B, PingRequest(71, C))
    new.receive(0.2, C, NoAck(5))
    assert new.next_deadline() == 0.5
    assert Send(B, NoAck(71)) in new.tick(0.5)


def test_a_probe_for_itself_is_answered_and_for_strangers_ignored() -> None:
    new = swim(A, B, C)
    assert new.receive(0.0, B, PingRequest(70, A)) == [Send(B, Ack(70, ()))]
    assert new.receive(0.0, B, PingRequest(71, D)) == []
    new.apply_claim(0.0, about(D, State.LOST))
    assert new.receive(0.0, B, PingRequest(72, D)) == []
    new.declare_dead(0.0, C, State.DEAD)
    assert new.receive(0.0, B, PingRequest(73, C)) == []


def test_probes_for_others_are_bounded() -> None:
    new = swim(A, B, C)
    answers = [new.receive(0.0, B, PingRequest(nonce, C)) for nonce in range(MOST_RELAYS + 1)]
    assert answers[-1] == []
    assert all(answers[:-1])


def test_news_goes_in_rounds_while_there_is_any() -> None:
    new = swim(A, B, C, D, gossip_fanout=2, spread_mult=1, claims_per_message=1)
    assert new.next_deadline() > 0.2
    new.set_status(0.1, Status(step=5))
    assert new.next_deadline() <= 0.1
    assert [e.body for e in new.tick(0.1) if isinstance(e, Send)] == [Gossip((new.me,))]
    assert new.tick(0.2) == []


def test_a_status_is_news_only_when_it_changes() -> None:
    new = swim(A, B)
    new.set_status(0.0, Status(step=5, version=99))
    assert new.me.status == Status(version=1, step=5)
    new.set_status(0.0, Status(step=5))
    assert new.me.status.version == 1


def test_a_death_is_told_to_everybody_at_once() -> None:
    new = swim(A, B, C, D)
    assert new.declare_dead(0.0, B, State.DEAD) == [Send(other, Gossip((claim(B, State.DEAD),))) for other in (C, D)]
    assert new.is_gone(B)
    assert not new.is_alive(B)
    assert new.declare_dead(0.0, B, State.LEFT) == []
    assert new.declare_dead(0.0, A, State.DEAD) == []
    assert new.known_claims() == (claim(C), claim(D))


def test_where_there_are_many_a_death_goes_round_by_gossip() -> None:
    new = swim(A, B, C, D, broadcast_max=1)
    assert new.declare_dead(0.0, B, State.DEAD) == []
    assert sent(new.tick(0.0), Gossip)


def test_a_stranger_is_neither_alive_nor_gone_and_may_be_buried() -> None:
    new = swim(A, B)
    assert not new.is_gone(C)
    assert not new.is_alive(C)
    assert not new.is_lost(C)
    assert new.claim_of(C) is None
    assert new.tell(C) == []
    assert new.declare_dead(0.0, C, State.DEAD) == [Send(B, Gossip((Claim(C, State.DEAD, NOWHERE),)))]
    assert new.is_gone(C)
    assert new.apply_claim(0.0, claim(C)) == []
    assert new.tell(C) == [Send(C, Ping(1, (Claim(C, State.DEAD, NOWHERE),)))]


def test_a_later_incarnation_means_that_the_older_one_is_gone() -> None:
    new = swim(B, A)
    assert new.apply_claim(0.0, claim(A2))[:2] == [Forget(A), Discovered(claim(A2))]
    assert new.is_gone(A)
    assert not new.is_gone(A2)
    assert new.declare_dead(0.0, A, State.DEAD) == []
    assert sent(new.receive(0.0, A, Ping(1, ())), Ack)[A].claims[0] == claim(A2)


def test_the_dead_are_gone_even_when_forgotten() -> None:
    new = swim(A, B, C)
    new.declare_dead(0.0, B, State.DEAD)
    assert Forget(B) in run(new, 121.0, silent=False)
    assert new.is_gone(B)
    assert new.claim_of(B) is None
    assert sent(new.receive(121.0, B, Ping(1, (claim(B),))), Ack)[B].claims == (Claim(B, State.DEAD, NOWHERE),)


def test_who_never_answered_and_is_forgotten_leaves_nothing_behind() -> None:
    new = swim(A, C)
    new.apply_claim(0.0, claim(B))
    new.declare_dead(0.0, B, State.LEFT)
    run(new, 121.0, silent=False)
    assert new._strangers == set()


def test_the_lost_are_greeted_until_they_deny() -> None:
    new = swim(A, B, C)
    lost = replace(claim(B, State.LOST), accuser="a")
    new.apply_claim(0.0, lost)
    new.apply_claim(0.0, about(D, State.LOST))  # never discovered: it has no link
    pings = [e for e in run(new, 10.0, silent=False) if isinstance(e, Send) and e.target == B]
    assert 2 <= len(pings) <= 10
    assert all(isinstance(e.body, Ping) and e.body.claims[0] == lost for e in pings)
    new.receive(10.0, B, Ping(1, (about(B, refutation=1),)))
    assert new.is_alive(B)


def test_what_is_said_of_this_process_ending_is_known() -> None:
    new = swim(A, B)
    assert not new.is_declared_gone
    new.receive(0.0, B, Gossip((claim(A, State.DEAD),)))
    assert new.is_declared_gone


def test_who_starts_compares_often_and_then_ever_more_rarely() -> None:
    new = swim()
    assert new.next_deadline() > 0.4
    new.apply_claim(0.0, claim(B))
    compared = list[float]()
    while (now := new.next_deadline()) < 100.0:
        effects = new.tick(now)
        for target, ping in sent(effects, Ping).items():
            new.receive(now, target, Ack(ping.nonce, ()))
        for target in sent(effects, Sync):
            compared.append(now)
            if len(compared) > 1:  # the first is lost
                new.receive(now, target, SyncReply((), ()))
    assert compared == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 62.0, 92.0]


def test_who_has_learned_of_somebody_asks_again_soon() -> None:
    new = swim(A, B)
    new._comparison._partner = B
    reply = SyncReply((bucket_of("c"),), (claim(C),))
    assert new.receive(0.0, B, reply)[0] == Discovered(claim(C))
    assert new._comparison.next_deadline() <= 1.0


def test_equal_peers_exchange_digests_only() -> None:
    one, other = swim(A, B, C), swim(B, A, C)
    sync = sent(run(one, 40.0, silent=False), Sync)
    body = next(iter(sync.values()))
    assert sum(map(len, body.digests)) < 1024
    assert other.receive(0.0, A, body) == [Send(A, SyncReply((), ()))]


def test_peers_that_differ_exchange_the_buckets_that_differ() -> None:
    one, other = swim(A, B, C), swim(B, A, D)
    one.declare_dead(0.0, Member("e", 1), State.DEAD)
    effects = run(one, 40.0, silent=False)
    assert sent(effects, Sync)
    one._comparison._partner = B
    ((_, reply),) = sent(other.receive(0.0, A, Sync(one._roster.digests())), SyncReply).items()
    assert reply.claims == (claim(D),) or set(reply.claims) == {claim(D)}
    assert set(reply.buckets) == {bucket_of("c"), bucket_of("d")}
    answer = one.receive(40.0, B, reply)
    assert Discovered(claim(D)) in answer
    assert answer[-1] == Send(B, Gossip((claim(C),)))
    assert one.receive(40.0, B, reply) == []  # not asked for


def test_a_reply_also_overrides_what_is_older() -> None:
    new = swim(A, B, C)
    new.declare_dead(0.0, C, State.DEAD)
    new._comparison._partner = B
    answer = new.receive(0.0, B, SyncReply((bucket_of("c"), -1, 64), (claim(C),)))
    assert answer == [Send(B, Gossip((claim(C, State.DEAD),)))]


def test_a_reply_is_bounded_and_what_is_missing_follows() -> None:
    members = [Member(f"m{number}", 1) for number in range(2 * CLAIMS_PER_SYNC)]
    full = swim(A, *members)
    reply = sent(full.receive(0.0, B, Sync(NOTHING)), SyncReply)[B]
    assert CLAIMS_PER_SYNC <= len(reply.claims) < 1.5 * CLAIMS_PER_SYNC
    assert 1 < len(reply.buckets) < NUM_BUCKETS


def test_digests_of_another_number_are_ignored() -> None:
    assert swim(A, B).receive(0.0, B, Sync((b"",))) == []


def test_a_frame_in_this_peers_own_name_is_ignored() -> None:
    assert swim(A, B).receive(0.0, A2, Ping(1, (claim(A2),))) == []


def test_who_comes_late_doubts_itself_instead_of_others() -> None:
    for late_on_tick in (True, False):
        new = swim(A, B)
        run(new, 0.99)
        if late_on_tick:
            new.tick(9.0)
        else:
            new.receive(9.0, B, Gossip(()))
        assert new.health_multiplier() == 2
        assert new.is_alive(B)
        assert not [e for e in new.tick(9.0) if isinstance(e, Explain)]


def test_a_short_pause_is_no_ground_to_forget_and_a_long_one_is() -> None:
    new = swim(A, B)
    new.suspect(0.0, B)
    new.resume(50.0)
    assert new.is_alive(B)
    assert new.silence_s(50.0, B) == 0.0
    assert sent(new.tick(50.0), Sync)
    new.resume(120.0)
    assert new.alive() == ()
    assert sent(new.tick(120.0), Sync).keys() == {B}
    assert new.receive(120.1, B, SyncReply((bucket_of("b"),), (claim(B),)))[:1] != [Discovered(claim(B))]
    assert new.is_alive(B)


def test_a_long_pause_is_noticed_without_being_told() -> None:
    new = swim(A, B)
    run(new, 1.0, silent=False)
    new.tick(100.0)
    assert new.alive() == ()
    assert new.next_deadline() <= 101.0


def test_what_is_known_at_the_start_is_alive() -> None:
    new = Swim(
        claim(A), rng=Random(1), config=SwimConfig(), now=0.0, known=(claim(B, State.SUSPECT), claim(C), claim(A))
    )
    assert new.alive() == (C,)
