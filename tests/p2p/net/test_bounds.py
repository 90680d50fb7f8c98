"""Bounds of fields: larger values are refused when decoded, and are not sent."""

from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossip import Claim, Contact, Envelope, Member, Seat, State, View
from gossip.messages import (
    Ballot,
    Body,
    Head,
    LineageAnswer,
    Ping,
    PingRequest,
    Promise,
    ViewQuery,
)
from gossip.progress import Abort
from gossip.view import MOST_MEMBERS, NO_VIEW, Stamp
from p2p.errors import RemoteProtocolError
from p2p.net.wire import Codec
from p2p.version import VERSION
from tests.p2p.net.forged import Forger

A, B = Member("a" * 16, 1), Member("b" * 16, 2)
ENVELOPES = Codec([Envelope])
VIEW = View(b"l" * 16, 3, 2, (Seat(A, 1), Seat(B, 3)), b"p" * 16, founder=A.peer_id)


@pytest.mark.parametrize("peer_id", ["", "\0", "a" * 15, "A" * 16, "a" * 17, "a" * 1000, "../../etc/passwd", b"a" * 16])
def test_a_member_whose_name_could_be_a_path_is_refused(peer_id: Any) -> None:
    frame = msgpack.packb([VERSION, 0, [peer_id, 1], [b"l", 1, b"h"], [0, 7, []]])
    with pytest.raises(RemoteProtocolError, match=r"Member\.peer_id is not 16 hex digits"):
        ENVELOPES.decode(frame)


def test_the_number_of_a_view_has_room_on_the_board_of_a_host() -> None:
    for number in (0, 2**24 - 1):
        ENVELOPES.decode(ENVELOPES.encode(Envelope(A, Stamp(b"l", number, b"h"), ViewQuery())))
    frame = msgpack.packb([VERSION, 0, [A.peer_id, 1], [b"l", 2**24, b"h"], [0, 7, []]])
    with pytest.raises(RemoteProtocolError, match=r"Stamp\.number is not below 16777216"):
        ENVELOPES.decode(frame)


@pytest.mark.parametrize(
    ("body", "old", "wrong", "said"),
    [
        (Head(77, b"d"), 77, 2**62 + 1, r"Head\.step is not an int from -1 to 4611686018427387904"),
        (Head(77, b"d"), 77, -2, r"Head\.step is not an int from -1"),
        (Head(7, b"d", 99), 99, 2**24, r"Head\.view_number is not an int from 0 to 16777215"),
        (Head(7, b"digest"), b"digest", bytes(65), r"Head\.digest is not 0 to 64 bytes"),
        (LineageAnswer(b"lineage"), b"lineage", bytes(17), r"LineageAnswer\.lineage is not 0 to 16 bytes"),
        (Promise(Ballot(99, 0), None), 99, 2**40 + 1, r"Ballot\.round is not an int from 0"),
        (Promise(Ballot(9, 77), None), 77, 100, r"Ballot\.rank is not an int from -1 to 99"),
        (Abort(7, 99, "f"), 99, 2**32, r"Abort\.operation is not an int from 0"),
        (PingRequest(7, Member("c" * 16, 2**20)), 2**20, -1, r"Member\.incarnation is not an int from 0"),
    ],
)
def test_a_number_for_which_there_is_no_room_is_refused(body: Body, old: Any, wrong: Any, said: str) -> None:
    frame = ENVELOPES.encode(Envelope(A, NO_VIEW, body))
    forged = frame.replace(msgpack.packb(old), msgpack.packb(wrong))
    with pytest.raises(RemoteProtocolError, match=said):
        ENVELOPES.decode(forged)


def test_a_view_has_no_more_seats_than_its_record_has_room_for() -> None:
    def crowd(number: int) -> View:
        return replace(VIEW, seats=tuple(Seat(Member(f"{i:016x}", 1), 1) for i in range(number)))

    anything = Codec([View], is_bounded=False)
    assert Codec([View]).decode(anything.encode(crowd(MOST_MEMBERS))) == crowd(MOST_MEMBERS)
    with pytest.raises(RemoteProtocolError, match=r"View\.seats is not a tuple of at most 100"):
        Codec([View]).decode(anything.encode(crowd(MOST_MEMBERS + 1)))


@settings(deadline=None)
@given(st.randoms(use_true_random=False))
def test_what_a_liar_says_is_refused_or_can_be_passed_on(random: Random) -> None:
    frame = Forger(random, VIEW, 7).frame(A, VIEW.stamp)
    with suppress(RemoteProtocolError):
        envelope = ENVELOPES.decode(frame)
        assert ENVELOPES.decode(ENVELOPES.encode(envelope)) == envelope


@pytest.mark.parametrize(
    ("name", "most"), [("control", 113), ("data", 113), ("host", 64), ("remote_control", 265), ("remote_data", 265)]
)
@pytest.mark.parametrize("letter", ["x", "\u00e4"], ids=["ascii", "two bytes"])
def test_where_a_peer_is_reached_is_said_in_few_words(name: str, most: int, letter: str) -> None:
    def frame(text: str) -> bytes:
        marked: dict[str, Any] = {name: "x" * 64}
        contact = replace(Contact("ipc:///c", "ipc:///d", 1, 1), **marked)
        news = ENVELOPES.encode(Envelope(A, NO_VIEW, Ping(7, (Claim(B, State.ALIVE, contact),))))
        return news.replace(msgpack.packb("x" * 64), msgpack.packb(text))

    longest = letter * (most // len(letter.encode()))
    ENVELOPES.decode(frame(longest))
    with pytest.raises(RemoteProtocolError, match=rf"Contact\.{name} is not a str of at most {most} bytes"):
        ENVELOPES.decode(frame(longest + letter))
