"""Shares of donors: their chunks and steps."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossip import Contact, Member, Policy, Seat, View
from p2p.catchup.shares import MOST_DONORS, MOST_WISHES, ShareRequests, chunks_of, donors_of, pack_parts, unpack_parts
from p2p.net.parcels import Chunk, ShareRequest
from tests.p2p.net.parcels import LINEAGE, A, B, C

D = Member(16 * "d", 1)


def at(member: Member, host: str, numerics: bytes = bytes(8)) -> Seat:
    return Seat(member, 1, Contact("", "", 1, 1, host), numerics)


def view(*seats: Seat) -> View:
    return View(LINEAGE, 1, 1, seats, b"", Policy.LIVE)


def everybody(member: Member) -> bool:
    return True


def wish(step: int, first: Member = A, observer: Member = D) -> ShareRequest:
    return ShareRequest(first, observer, step, 1, 2, 1 << 20)


@given(st.lists(st.integers(1, 1000), max_size=5), st.integers(1, 300))
def test_chunks_cover_each_part_and_go_round(sizes: list[int], chunk_bytes: int) -> None:
    parts = [*enumerate(sizes, 2)]
    chunks = chunks_of(parts, chunk_bytes)
    assert unpack_parts(pack_parts(parts)) == parts
    covered = {part: sum(chunk_bytes for chunk in chunks if chunk.part == part) for part, _ in parts}
    assert all(size <= covered[part] < size + chunk_bytes for part, size in parts)
    assert len(set(chunks)) == len(chunks)


def test_half_a_part_is_no_list() -> None:
    with pytest.raises(ValueError, match="13 bytes are no list of parts"):
        unpack_parts(bytes(13))


def test_donors_are_on_hosts_of_their_own_the_first_in_front() -> None:
    members = view(at(A, "one"), at(B, "two"), at(C, "three"), at(D, "two"))
    assert donors_of(members, A, "four", everybody) == (A, B, C)
    assert donors_of(members, C, "four", everybody) == (C, D, A), "in rank order from there on; B is on the host of D"
    assert donors_of(members, A, "one", everybody) == (A,), "its memory is next to the joiner"
    assert donors_of(members, A, "two", everybody) == (A, B, C)
    assert donors_of(members, A, "four", lambda member: member != B) == (A, C, D)


def test_members_whose_bits_differ_are_no_donors() -> None:
    other = b"o" * 8
    members = view(at(A, "one"), at(B, "two", other), at(C, "three"))
    assert donors_of(members, A, "four", everybody) == (A, C)
    assert donors_of(members, B, "four", everybody) == (B,)


def test_there_are_so_many_donors_at_most() -> None:
    names = [Member(f"{number:016x}", 1) for number in range(MOST_DONORS + 5)]
    donors = donors_of(view(*(at(name, str(name)) for name in names)), names[3], "elsewhere", everybody)
    assert donors == tuple(names[3 : 3 + MOST_DONORS])


def test_a_share_is_given_after_the_very_step_and_once() -> None:
    wishes = ShareRequests()
    wishes.ask(wish(7))
    assert wishes.due(6, is_complete=True, is_withheld=False) == []
    assert wishes.due(7, is_complete=False, is_withheld=False) == [], "its forward pass has not begun"
    assert wishes.due(7, is_complete=True, is_withheld=False) == [(wish(7), True)]
    assert wishes.waiting == []


@pytest.mark.parametrize(("done", "is_withheld"), [(8, False), (7, True), (5, False)])
def test_who_cannot_give_it_says_so(done: int, is_withheld: bool) -> None:
    wishes = ShareRequests()
    wishes.ask(wish(7))
    assert wishes.due(done, is_complete=not is_withheld, is_withheld=is_withheld) == [(wish(7), False)]


def test_the_last_wish_for_a_joiner_counts_and_there_are_not_too_many() -> None:
    wishes = ShareRequests()
    wishes.ask(wish(7))
    wishes.ask(wish(8, first=B))
    assert wishes.waiting == [wish(8, first=B)]
    for number in range(MOST_WISHES + 5):
        wishes.ask(wish(8, observer=Member(f"{number:016x}", 1)))
    assert len(wishes.waiting) == MOST_WISHES


def test_what_concerns_who_is_gone_is_forgotten() -> None:
    for first, observer in permutations((A, B, C), 2):
        wishes = ShareRequests()
        wishes.ask(wish(7, first, observer))
        wishes.forget(D)
        assert wishes.waiting
        wishes.forget(first)
        assert not wishes.waiting
        wishes.ask(wish(7, first, observer))
        wishes.forget(observer)
        assert not wishes.waiting


def test_a_chunk_has_a_name() -> None:
    assert chunks_of([(2, 5), (4, 2)], 2) == [Chunk(2, 0), Chunk(2, 1), Chunk(2, 2), Chunk(4, 0)]
