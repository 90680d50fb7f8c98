"""Chunks of one state, from three donors."""

from hypothesis import given
from hypothesis import strategies as st

from p2p.catchup.chunk_tracker import LOOK_S, MOST_EARLY, STALL_S, ChunkTracker
from p2p.net.parcels import Chunk
from tests.p2p.net.parcels import A, B, C

CHUNKS = tuple(Chunk(2, number) for number in range(6))
DIGESTS = {chunk: bytes([chunk.segment]) * 16 for chunk in CHUNKS}
OWNERS = dict(zip(CHUNKS, (A, B, C) * 2, strict=True))
OTHER = b"o" * 16


def begun(now: float = 0.0) -> ChunkTracker:
    """A gathering for which A, the first donor, has sent the digests of the chunks."""
    gathering = ChunkTracker(now, A, 7)
    assert gathering.begin(now, (A, B, C), DIGESTS) == []
    return gathering


def send(gathering: ChunkTracker, *chunks: Chunk, now: float = 0.0) -> list[Chunk]:
    """Receive each chunk from its owner; returns those that are kept."""
    return [chunk for chunk in chunks if gathering.came(now, OWNERS[chunk], chunk, DIGESTS[chunk])]


def test_it_is_complete_when_each_donor_has_sent_its_share() -> None:
    gathering = begun()
    assert send(gathering, *CHUNKS[:5]) == [*CHUNKS[:5]] and not gathering.is_complete
    assert send(gathering, CHUNKS[5]) == [CHUNKS[5]] and gathering.is_complete
    assert gathering.missing(0.0) == [] and gathering.odd == {}


@given(st.permutations(CHUNKS), st.integers(0, 6))
def test_the_first_may_say_what_they_are_at_any_time(order: list[Chunk], when: int) -> None:
    gathering = ChunkTracker(0.0, A, 7)
    assert send(gathering, *order[:when]) == order[:when] and not gathering.is_complete
    assert gathering.missing(STALL_S) == [], "it is not known what is missing"
    assert gathering.begin(0.0, (A, B, C), DIGESTS) == []
    assert send(gathering, *order[when:]) == order[when:]
    assert gathering.is_complete


def test_a_chunk_that_differs_is_named_and_had_from_the_first() -> None:
    gathering = begun()
    assert not gathering.came(0.0, B, CHUNKS[1], OTHER)
    assert gathering.odd == {CHUNKS[1]: B} and gathering.missing(0.0) == [CHUNKS[1]]
    assert gathering.came(0.1, A, CHUNKS[1], DIGESTS[CHUNKS[1]]) and not gathering.is_void


def test_one_that_came_early_and_differs_is_returned() -> None:
    gathering = ChunkTracker(0.0, A, 7)
    assert gathering.came(0.0, B, CHUNKS[1], OTHER) and send(gathering, CHUNKS[2]) == [CHUNKS[2]]
    assert gathering.begin(0.0, (A, B, C), DIGESTS) == [CHUNKS[1]]
    assert gathering.odd == {CHUNKS[1]: B}
    assert send(gathering, CHUNKS[2]) == [], "it is here"


def test_of_a_donor_that_is_gone_only_what_is_missing_is_asked_for_and_once() -> None:
    gathering = begun()
    send(gathering, CHUNKS[1])
    gathering.over(B)
    assert gathering.missing(0.0) == [CHUNKS[4]]
    assert gathering.missing(LOOK_S) == []
    assert gathering.came(0.5, A, CHUNKS[0], DIGESTS[CHUNKS[0]])
    assert gathering.missing(STALL_S) == [CHUNKS[2], CHUNKS[5]], "C has sent nothing for a while, and A still does"
    assert gathering.missing(0.5 + STALL_S) == [CHUNKS[3], CHUNKS[4]], "A sends nothing either: it is asked again"


def test_who_goes_on_sending_is_waited_for() -> None:
    gathering = begun()
    for now, chunk in enumerate(CHUNKS):
        if chunk != CHUNKS[5]:
            send(gathering, chunk, now=float(now))
    gathering.came(3.9, C, CHUNKS[2], DIGESTS[CHUNKS[2]])
    assert gathering.missing(4.5) == []
    assert gathering.missing(3.9 + STALL_S) == [CHUNKS[5]]


def test_a_first_donor_that_contradicts_itself_is_of_no_use() -> None:
    gathering = begun()
    assert not gathering.came(0.0, A, CHUNKS[0], OTHER)
    assert gathering.is_void


def test_what_is_none_of_its_chunks_is_not_kept_and_what_comes_early_is_bounded() -> None:
    gathering = begun()
    assert not gathering.came(0.0, B, Chunk(9, 9), OTHER)
    early = ChunkTracker(0.0, A, 7)
    kept = [early.came(0.0, B, Chunk(2, number), OTHER) for number in range(MOST_EARLY + 1)]
    assert all(kept[:MOST_EARLY]) and not kept[MOST_EARLY]
