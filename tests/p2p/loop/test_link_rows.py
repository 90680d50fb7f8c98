"""Rows of measured links: encoding, and the links that follow from all members' rows."""

import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives.links import MEMORY_DELAY_NS
from collectives.price_table import CANDIDATES, SIZES_BYTES
from collectives.pricing import run_to_end
from gossip import Member
from p2p.loop.link_rows import (
    LEAST_LINE,
    LEAST_US,
    MOST_PEERS,
    ROW_BYTES,
    SETTLED_S,
    SURPRISING,
    TRIED_S,
    Pair,
    Row,
    alike,
    known_slices,
    lines_for,
    links_of,
    own_row,
    took_of,
)
from p2p.loop.measuring import FASTER
from p2p.net.pacing import HEADROOM
from p2p.step.agreed_rows import Rows
from tests.gossip.members import view_of

NAMES = tuple(f"{number:016x}" for number in (0xA, 0xB, 0xC))
MEMBERS = tuple(Member(name, 7) for name in NAMES)
DIRECT, RING = ("direct", 1 << 20), ("ring", 1 << 20)
OTHERS = frozenset(NAMES[1:])

numbers = st.integers(0, 2**32 - 1)
names = st.integers(0, 2**64 - 1).map(lambda number: f"{number:016x}")
pairs = st.dictionaries(names, st.builds(Pair, numbers, numbers), max_size=MOST_PEERS)
places = st.tuples(st.sampled_from(CANDIDATES), st.sampled_from(SIZES_BYTES))
sums = st.dictionaries(places, st.integers(1, 2**32 - 1))
rows = st.builds(Row, numbers, numbers, numbers, pairs, sums, st.booleans(), st.booleans())


def row(rank: int, rtt_us: int = 10_000, rate: int = 1000, up: int = 2000, down: int = 3000) -> Row:
    to = {name: Pair(rtt_us + rank, rate) for other, name in enumerate(NAMES) if other != rank}
    return Row(up, down, 100 + rank, to, up_is_line=True, down_is_line=True)


def gathered(*said: Row) -> Rows:
    return Rows(5, MEMBERS[: len(said)], np.concatenate([each.pack() for each in said]), tuple(range(len(said))))


@given(rows)
def test_a_row_comes_back_as_it_was(said: Row) -> None:
    packed = said.pack()
    assert packed.nbytes == ROW_BYTES and Row.unpack(packed) == said


@given(st.binary(min_size=ROW_BYTES, max_size=ROW_BYTES))
def test_other_bytes_are_some_row(raw: bytes) -> None:
    said = Row.unpack(np.frombuffer(raw, np.uint8))
    assert len(said.to) <= MOST_PEERS
    links_of(gathered(said, row(1), row(2)))


def test_what_there_is_no_room_for_is_cut_off() -> None:
    to = {f"{number:016x}": Pair(1, 1) for number in range(MOST_PEERS + 1)}
    back = Row.unpack(Row(2**40, 1, 1, to).pack())
    assert back.up == 2**32 - 1 and len(back.to) == MOST_PEERS


@pytest.mark.parametrize(
    "said", [Row(), row(0, up=0), row(0, down=0), replace(row(0), to={NAMES[1]: Pair(1, 1)}), row(0, rtt_us=0)]
)
def test_what_is_not_measured_is_not_covered_and_then_there_are_no_links(said: Row) -> None:
    assert row(0).covers(OTHERS) and not said.covers(OTHERS)
    assert links_of(gathered(row(0), row(1), row(2))) is not None
    assert links_of(gathered(said, row(1), row(2))) is None


def test_a_row_has_moved_by_a_fifth() -> None:
    assert not row(0).has_moved(row(0))
    assert not row(0, up=2390).has_moved(row(0)) and row(0, up=2410).has_moved(row(0))
    assert not row(0).has_moved(row(0, down=2510)) and row(0).has_moved(row(0, down=2490))
    assert not row(0, rtt_us=11_900).has_moved(row(0)) and row(0, rtt_us=12_100).has_moved(row(0))
    assert row(0).has_moved(Row())
    assert not row(0, rtt_us=LEAST_US).has_moved(row(0, rtt_us=2 * LEAST_US)), "so short ones never have"
    assert not replace(row(0), message_ns=10**9).has_moved(row(0))


def test_a_sum_that_takes_longer_than_was_said_is_a_surprise_and_one_of_which_nobody_has_spoken_is_news() -> None:
    before = replace(row(0), took={DIRECT: 1000})
    for took_us, is_so in ((1000, False), (int(1000 * SURPRISING), False), (int(1001 * SURPRISING), True), (700, True)):
        assert replace(row(0), took={DIRECT: took_us}).is_surprised(before) is is_so
    assert before.has_tried(row(0)) and not row(0).has_tried(before)
    assert not before.is_surprised(row(0)) and not row(0).is_surprised(before)


def test_what_moved_is_news_sooner_than_a_surprise() -> None:
    before = replace(row(0), took={DIRECT: 1000})
    for now, least_s in (
        (replace(before, took={DIRECT: 2000}), TRIED_S),
        (replace(before, took={DIRECT: 1000, RING: 5}), SETTLED_S),
        (replace(before, up=10 * before.up), SETTLED_S),
    ):
        assert not now.is_news(before, least_s - 0.1) and now.is_news(before, least_s)
    assert not replace(before, took={}).is_news(before, 1e9) and not before.is_news(before, 1e9)


def test_who_waits_least_says_how_long_a_sum_takes_if_all_know() -> None:
    said = [replace(row(rank), took={DIRECT: 900 + rank, RING: 5}) for rank in range(3)]
    assert took_of(said) == {DIRECT: 900, RING: 5}
    assert took_of([*said[:2], replace(row(2), took={RING: 7})]) == {RING: 5}


def test_all_find_the_same_links() -> None:
    links = links_of(gathered(row(0, rate=9000), row(1, rtt_us=20_000), row(2)))
    assert links is not None
    assert links.up == (9000, 2000, 2000), "what it has sent to one, or to all"
    assert links.down == (3000, 9000, 9000), "what has come from all, or from one"
    assert links.delay_ns[0][1] == links.delay_ns[1][0] == (10_000 + 20_001) * 250
    assert links.delay_ns[0][0] == 0 and links.message_ns == 101


def test_members_of_one_host_have_one_line_and_nothing_is_measured_between_them() -> None:
    """The first two share a host: only their measurements of the third matter."""
    said = [replace(row(0, up=5000), to={NAMES[2]: Pair(9_000, 1)}), replace(row(1), to={NAMES[2]: Pair(9_000, 1)})]
    rows = replace(gathered(*said, replace(row(2), down=9000)), hosts=(0, 0, 2))
    links = links_of(rows, 1000)
    assert links is not None and links.hosts == (0, 0, 2) and links.has_shared_lines and links.segment_bytes == 1000
    assert links.up == (5000, 5000, 2000) and links.down == (3000, 3000, 9000)
    assert links.delay_ns[0][1] == MEMORY_DELAY_NS and links.delay_ns[1][2] == (9_000 + 10_002) * 250
    assert links_of(replace(rows, hosts=(0, 1, 2))) is None, "on hosts of their own it would have to be measured"
    assert links_of(replace(rows, hosts=(0, 0, 0))) is None, "memory is all there is"


def test_lines_that_measuring_cannot_tell_apart_are_one() -> None:
    assert alike([200, 150, 100, 99, 98, 50]) == {200: 200, 150: 200, 100: 100, 99: 100, 98: 100, 50: 50}
    assert alike([]) == {} and alike([7, 7]) == {7: 7} and alike([142, 100]) == {142: 142, 100: 100}
    links = links_of(gathered(row(0, up=3000), row(1, up=2500), row(2, up=2200)))
    assert links is not None and links.up == links.down == (3000,) * 3


def test_what_has_come_says_how_fast_a_line_is_and_what_was_acknowledged_only_where_nothing_has() -> None:
    assert alike([28, 25, 13], [24, 23, 9]) == {28: 24, 25: 24, 13: 13}
    assert alike([28], [29, 19]) == {28: 28}, "faster than the line, or another one"
    acknowledged = [row(rank, up=up, down=down, rate=1) for rank, (up, down) in enumerate(((2800, 2400), (2500, 2410)))]
    slow = row(2, up=700, down=620, rate=1)
    links = links_of(gathered(*acknowledged, slow))
    assert links is not None and links.up == links.down == (2410, 2410, 620)


def test_a_peer_paces_by_the_line_that_all_take_its_host_to_have() -> None:
    said = [row(0, up=2800, down=2400, rate=1), row(1, up=2500, down=2410, rate=1), row(2, up=700, down=620, rate=1)]
    assert [lines_for(name, gathered(*said)).own for name in NAMES[:3]] == [2410, 2410, 620]
    rows = gathered(said[0], floor(said[1]), floor(said[2]))
    assert [lines_for(name, rows).own for name in NAMES[:3]] == [2410, 0, 0], (
        "nothing is known, so nothing holds it back"
    )
    rows = replace(rows, hosts=(0, 0, 2))
    assert [lines_for(name, rows).own for name in NAMES[:3]] == [2410, 2410, 0]


def test_who_has_measured_nothing_yet_has_no_line_and_takes_none_from_the_others() -> None:
    """Rows are gathered when one member asks for it, and another may have just joined."""
    rows = gathered(row(0, up=2800, down=2400, rate=1), Row(), row(2, up=2500, down=2410, rate=1))
    assert [lines_for(name, rows).own for name in NAMES[:3]] == [2410, 0, 2410]


def test_a_line_that_has_become_faster_is_news_though_a_peer_paces_by_what_was_agreed_of_it() -> None:
    """Its own rate was a sixth too high, since acknowledgements were bunched, and is now its sending rate."""
    was = [row(rank, up=2800, down=2400, rate=1) for rank in range(3)]
    paced = int(FASTER * HEADROOM * lines_for(NAMES[0], gathered(*was)).own)
    assert replace(was[0], up=paced).has_moved(was[0])


def floor(said: Row) -> Row:
    """The same row, with rates that are not known to be the line's."""
    return replace(said, up_is_line=False, down_is_line=False)


def test_a_rate_that_is_not_known_to_be_the_lines_is_no_line_of_its_own() -> None:
    """Lines of 25 MB/s in the rows of a busy machine, over connections that were just opened."""
    cold = [floor(row(rank, up=rate, down=rate)) for rank, rate in enumerate((6_900_000, 2_200_000, 5_000_000))]
    links = links_of(gathered(*cold))
    assert links is not None and links.up == links.down == (8 * 6_900_000,) * 3, "nobody knows, so all are alike"
    cold[1] = replace(cold[1], up=25_000_000, up_is_line=True)
    links = links_of(gathered(*cold))
    assert links is not None and links.up == links.down == (25_000_000,) * 3
    slow = links_of(gathered(cold[0], cold[1], replace(cold[2], up_is_line=True)))
    assert slow is not None and slow.up == (25_000_000, 25_000_000, 5_000_000)
    assert slow.down == slow.up, "one way of it is known, and the other one is taken for the same"
    odd = links_of(gathered(cold[0], cold[1], replace(cold[2], up_is_line=True, down=8_000_000)))
    assert odd is not None and odd.down[2] == 8_000_000, "so much has come"


def test_of_members_of_one_host_one_knows_the_line() -> None:
    said = [floor(row(rank, up=rate, rate=1)) for rank, rate in enumerate((5000, 4000, 20_000))]
    rows = replace(gathered(*said), hosts=(0, 0, 2))
    assert (links := links_of(rows)) is not None and links.up == (LEAST_LINE,) * 3
    knows = replace(rows, raw=gathered(said[0], replace(said[1], up_is_line=True), said[2]).raw)
    assert (links := links_of(knows)) is not None and links.up == (5000, 5000, 20_000)


def test_that_a_rate_is_the_lines_is_news_and_that_it_is_not_is_none() -> None:
    for before in (replace(row(0), up_is_line=False), replace(row(0), down_is_line=False)):
        assert row(0).has_moved(before) and not before.has_moved(row(0))


def test_rows_become_links_a_row_at_a_time() -> None:
    rows_of_three = gathered(row(0), row(1), row(2))
    assert sum(1 for _ in known_slices(rows_of_three, 1000)) == 6, "each is read, and then its delays"
    unknown = gathered(row(0), Row(), row(2))
    assert sum(1 for _ in known_slices(unknown, 1000)) == 4 and run_to_end(known_slices(unknown, 1000)) == (None, {})


def test_one_member_alone_has_no_links() -> None:
    assert links_of(gathered(row(0))) is None


def test_what_a_peer_has_said_counts_in_a_view_of_those_members() -> None:
    rows_of_three, view = gathered(row(0), row(1), row(2)), view_of(3, *MEMBERS)
    assert own_row(rows_of_three, view, NAMES[1]) == row(1)
    assert own_row(rows_of_three, view_of(4, *MEMBERS[:2]), NAMES[1]) is None
    assert own_row(rows_of_three, view, "f" * 16) is None


def test_a_row_has_the_layout_of_the_protocol() -> None:
    packed = Row(1, 2, 3, {"0" * 15 + "a": Pair(4, 5)}, {("direct", 4096): 6}, down_is_line=True).pack().tobytes()
    head = struct.pack("<IIIIQII", 1, 2, 3, 1, 10, 4, 5)
    assert len(packed) == ROW_BYTES == 1452
    assert packed[: len(head)] == head and not any(packed[len(head) : 1040])
    sums = struct.unpack("<102I", packed[1040:1448])
    assert sums[17 + 2] == 6 == sum(sums), "the third size of the second algorithm"
    assert packed[1448:] == struct.pack("<I", 2)
    assert Row(up_is_line=True).pack().tobytes()[1448:] == struct.pack("<I", 1)


def test_what_has_come_to_each_is_its_own_also_where_little_is_measured() -> None:
    """In prices, in contrast, an unknown line counts as the fastest."""
    found = lines_for(NAMES[0], gathered(row(0, rate=9000), Row(), row(2))).down
    assert list(found) == [*NAMES[:3]] and found[NAMES[0]] == 3000 and found[NAMES[1]] == 9000
    assert set(lines_for(NAMES[0], gathered(Row(), Row())).down.values()) == {0}
