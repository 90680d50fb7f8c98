from dataclasses import replace
from hashlib import blake2b

from hypothesis import given
from hypothesis import strategies as st

from gossip import Claim, Member, State
from gossip.claim_digests import NUM_BUCKETS, Buckets, bucket_of

from .members import claim

names = st.text(max_size=3)
all_claims = st.builds(
    lambda name, incarnation, state, refutation: replace(
        claim(Member(name, incarnation), state), refutation=refutation
    ),
    names,
    st.integers(0, 1 << 64),
    st.sampled_from(State),
    st.integers(0, 3),
)


def test_the_bucket_of_a_name_is_the_same_everywhere() -> None:
    assert bucket_of("peer") == blake2b(b"peer", digest_size=1).digest()[0] % NUM_BUCKETS
    assert 0 <= bucket_of("\ud800") < NUM_BUCKETS


@given(st.lists(all_claims))
def test_equal_knowledge_has_equal_digests_however_it_came(heard: list[Claim]) -> None:
    known = {c.member.peer_id: c for c in heard}
    one, other, so_far = Buckets(), Buckets(), dict[str, Claim]()
    for c in heard:
        so_far[c.member.peer_id] = c
        one.add(c.member.peer_id)
        one.digests(so_far)
    for name in sorted(known, reverse=True):
        other.add(name)
    assert one.digests(known) == other.digests(known)
    assert [one.names(bucket) for bucket in range(NUM_BUCKETS)] == [other.names(b) for b in range(NUM_BUCKETS)]


@given(st.lists(all_claims, min_size=1, unique_by=lambda c: c.member.peer_id))
def test_a_change_of_one_peer_changes_its_bucket_only(claims: list[Claim]) -> None:
    known = {c.member.peer_id: replace(c, state=State.ALIVE) for c in claims}
    buckets = Buckets()
    for name in known:
        buckets.add(name)
    before = buckets.digests(known)
    name, changed = next(iter(known.items()))
    known[name] = replace(changed, refutation=changed.refutation + 1)
    buckets.add(name)
    after = buckets.digests(known)
    assert [b for b in range(NUM_BUCKETS) if before[b] != after[b]] == [bucket_of(name)]


@given(st.sampled_from([State.LOST, State.LEFT, State.DEAD]))
def test_it_makes_no_difference_who_remembers_the_lost_and_the_gone(state: State) -> None:
    member = Member("x", 1)
    buckets, empty = Buckets(), Buckets()
    buckets.add("x")
    assert buckets.digests({"x": claim(member, state)}) == empty.digests({})
    assert buckets.names(bucket_of("x")) == ("x",)
    buckets.drop("x")
    assert buckets.names(bucket_of("x")) == ()
