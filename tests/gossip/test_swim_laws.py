"""Laws: no message raises, in any order; memory is bounded; dead members stay dead."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from gossip import Claim, Member, State
from gossip.claim import Status
from gossip.claim_digests import NUM_BUCKETS
from gossip.detector import MOST_RELAYS
from gossip.effects import Effect, Forget, Send
from gossip.messages import Ack, Gossip, NoAck, Ping, PingRequest, Sync, SyncReply
from gossip.swim import Swim
from gossip.swim_config import SwimConfig
from gossip.view import Contact

from .members import A, claim

NAMES = "abcdefg"
integers = st.one_of(st.integers(0, 3), st.integers(-(1 << 65), 1 << 65))
members = st.builds(Member, st.sampled_from(NAMES), st.one_of(st.integers(0, 2), integers))
claims = st.builds(
    Claim,
    member=members,
    state=st.sampled_from(State),
    contact=st.just(Contact("control", "data", 1, 1)),
    refutation=integers,
    status=st.builds(Status, version=integers),
    accuser=st.sampled_from(["", *NAMES]),
)
many = st.lists(claims, max_size=4).map(tuple)
bodies = st.one_of(
    st.builds(Ping, integers, many),
    st.builds(Ack, integers, many),
    st.builds(PingRequest, integers, members),
    st.builds(NoAck, integers),
    st.builds(Gossip, many),
    st.builds(Sync, st.lists(st.binary(max_size=9), max_size=3).map(tuple)),
    st.builds(Sync, st.just((b"",) * NUM_BUCKETS)),
    st.builds(SyncReply, st.lists(integers, max_size=4).map(tuple), many),
)
steps = st.one_of(
    st.tuples(st.just("receive"), members, bodies),
    st.tuples(st.just("tick"), st.sampled_from([0.0, 0.1, 0.5, 2.0, 10.0, 70.0, 130.0])),
    st.tuples(st.just("declare_dead"), members, st.sampled_from([State.DEAD, State.LEFT])),
    st.tuples(st.just("suspect"), members),
    st.tuples(st.just("hear"), claims),
    st.tuples(st.just("heard"), members),
    st.tuples(st.just("answers"), members),
    st.tuples(st.just("set_status"), st.integers(0, 3)),
    st.tuples(st.just("keep"), members),
    st.tuples(st.just("resume")),
)


class Machine:
    """A `Swim` with arbitrary events, and its invariants."""

    def __init__(self, config: SwimConfig) -> None:
        self.now = 0.0
        self.swim = Swim(claim(A), rng=Random(0), config=config, now=0.0)
        self.gone: dict[Member, None] = {}

    def do(self, step: tuple[object, ...]) -> None:
        effects: list[Effect] = []
        match step:
            case "receive", Member() as source, body:
                effects = self.swim.receive(self.now, source, body)  # type: ignore[arg-type]
            case "tick", float(by_s):
                self.now += by_s
                effects = self.swim.tick(self.now)
            case "declare_dead", Member() as member, State() as state:
                effects = self.swim.declare_dead(self.now, member, state)
            case "suspect", Member() as member:
                effects = self.swim.suspect(self.now, member)
            case "hear", Claim() as heard:
                effects = self.swim.apply_claim(self.now, heard)
            case "heard", Member() as member:
                self.swim.frame_received(self.now, member)
            case "answers", Member() as member:
                self.swim.link_answered(self.now, member)
            case "set_status", int(number):
                self.swim.set_status(self.now, Status(step=number))
            case "keep", Member() as member:
                self.swim.pin([member])
            case _:
                self.swim.resume(self.now)
        assert all(e.target != A for e in effects if isinstance(e, Send))
        assert all(e.member.peer_id != "a" for e in effects if isinstance(e, Forget))
        self.check()

    def check(self) -> None:
        swim = self.swim
        assert swim.me.member == A
        assert len(swim._roster) <= len(NAMES)
        assert len(swim._relays) <= MOST_RELAYS
        assert len(swim._beliefs.rumours) <= len(NAMES)
        assert len(swim._beliefs._flapping) <= len(NAMES)
        assert set(swim.alive()) <= set(swim.neighbours())
        assert swim.next_deadline() == swim._find_due()
        for member in swim.alive():
            assert swim.is_alive(member)
            assert not swim.is_gone(member)
            assert not swim.is_lost(member)
            assert swim.silence_s(self.now, member) >= 0.0
        for member in self.gone:
            assert swim.is_gone(member)
        self.gone |= {claim.member: None for claim in swim._roster.others() if claim.state >= State.LEFT}


@settings(max_examples=200, deadline=None)
@given(st.lists(steps, max_size=40), st.booleans())
def test_whatever_happens_nothing_raises_and_the_dead_stay_dead(
    happenings: list[tuple[object, ...]], plain: bool
) -> None:
    machine = Machine(SwimConfig(lifeguard=not plain, suspicion_mult=0.0 if plain else 3.0))
    for step in happenings:
        machine.do(step)


@settings(max_examples=50, deadline=None)
@given(st.lists(steps, max_size=20))
def test_the_same_happenings_have_the_same_effects(happenings: list[tuple[object, ...]]) -> None:
    def trace() -> list[object]:
        machine = Machine(SwimConfig())
        seen = list[object]()
        for step in happenings:
            machine.do(step)
            seen += [machine.swim.alive(), machine.swim.next_deadline()]
        return seen

    assert trace() == trace()


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        claims.filter(lambda c: c.member.peer_id != "a" and c.state not in (State.SUSPECT, State.LOST)), max_size=20
    ),
    st.randoms(),
)
def test_peers_that_heard_the_same_in_any_order_agree(heard: list[Claim], rng: Random) -> None:
    def digests(order: list[Claim]) -> tuple[bytes, ...]:
        swim = Swim(claim(A), rng=Random(0), config=SwimConfig(), now=0.0)
        for each in order:
            swim.apply_claim(0.0, each)
        return swim._roster.digests()

    shuffled = list(heard)
    rng.shuffle(shuffled)
    assert digests(heard) == digests(shuffled)
