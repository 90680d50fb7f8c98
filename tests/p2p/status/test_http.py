"""What is said on one connection of somebody who looks on."""

from http import HTTPStatus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2p.status.http import IDLE_S, MOST_HEAD_BYTES, PATIENCE_S, Answer, Conversation, Request

HEAD = b"GET /metrics?a=b HTTP/1.1\r\nHost: localhost\r\nX-Y:  z \r\n\r\n"
METRICS = Request("/metrics?a=b", {"host": "localhost", "x-y": "z"})
DONE = Answer(HTTPStatus.OK, "text/plain", b"body")
EVENTS = Answer(HTTPStatus.OK, "text/event-stream", None)


def begun(*parts: bytes, now: float = 0.0) -> Conversation:
    talk = Conversation(now, {"Cache-Control": "no-store"})
    for part in parts:
        talk.receive(part, now)
    return talk


def read(talk: Conversation, now: float = 0.0) -> bytes:
    """All that is to be sent."""
    text = bytes(talk.outgoing)
    talk.sent(len(text), now)
    return text


@given(st.lists(st.integers(0, 2 * len(HEAD)), max_size=5).map(sorted))
def test_requests_are_found_however_they_are_cut_and_answered_in_turn(cuts: list[int]) -> None:
    text, talk, found = HEAD * 2, begun(), 0
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        talk.receive(text[start:end], 0.0)
        while (request := talk.next_request(0.0)) is not None:
            assert request == METRICS
            talk.answer(DONE, 0.0)
            assert talk.next_request(0.0) is None  # until that is sent
            found += 1
            assert read(talk) == (
                b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nCache-Control: no-store\r\n"
                b"Content-Length: 4\r\n\r\nbody"
            )
    assert found == 2 and talk.is_idle and not talk.is_ending


@pytest.mark.parametrize(
    ("first", "header", "is_kept"),
    [
        (b"GET / HTTP/1.1", b"A: b", True),
        (b"GET / HTTP/1.1", b"Connection: close", False),
        (b"GET / HTTP/1.0", b"A: b", False),
        (b"GET / HTTP/1.0", b"Connection: Keep-Alive", True),
    ],
)
def test_a_connection_is_kept_as_the_request_says(first: bytes, header: bytes, is_kept: bool) -> None:
    talk = begun(first + b"\r\n" + header + b"\r\n\r\n")
    assert talk.next_request(0.0) is not None
    talk.answer(DONE, 0.0)
    assert talk.is_ending is not is_kept
    assert (b"Connection: close" in read(talk)) is not is_kept


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (b"POST / HTTP/1.1\r\n\r\n", 405),
        (b"GET / HTTP/1.1\r\nContent-Length: 5\r\n\r\nabcde", 400),
        (b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost : x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", 400),
        (b"GET /" + b"a" * MOST_HEAD_BYTES, 431),
    ],
)
def test_what_is_no_request_of_ours_is_answered_and_ends_the_connection(text: bytes, status: int) -> None:
    talk = begun(text)
    assert talk.next_request(0.0) is None
    assert talk.is_ending
    assert read(talk).startswith(b"HTTP/1.1 %d " % status)
    talk.receive(HEAD, 0.0)
    assert talk.next_request(0.0) is None


def test_patience_ends_with_who_is_slow_to_ask_to_read_or_keeps_a_connection_for_nothing() -> None:
    talk = begun(HEAD[:5], now=1.0)
    talk.receive(HEAD[5:9], 5.0)
    assert talk.deadline == 1.0 + PATIENCE_S  # a byte now and then does not prolong it
    talk.receive(HEAD[9:], 6.0)
    assert talk.next_request(6.0) == METRICS
    talk.answer(DONE, 7.0)
    assert talk.deadline == 7.0 + PATIENCE_S and not talk.is_idle
    talk.sent(1, 8.0)
    assert talk.deadline == 8.0 + PATIENCE_S
    read(talk, 9.0)
    assert talk.deadline == 9.0 + IDLE_S and talk.is_idle
    talk.receive(HEAD[:1], 50.0)
    assert talk.deadline == 50.0 + PATIENCE_S and not talk.is_idle


def test_who_follows_is_sent_events_without_end_and_none_on_top_of_one_that_is_not_read() -> None:
    talk = begun(HEAD)
    assert talk.next_request(0.0) is not None
    talk.answer(EVENTS, 0.0)
    assert b"Content-Length" not in read(talk, 1.0)
    assert talk.deadline == float("inf") and not talk.is_idle
    talk.send_event(b"one", 2.0)
    talk.send_event(b"two", 3.0)
    assert talk.deadline == 2.0 + PATIENCE_S
    assert read(talk) == b"one"
    talk.receive(HEAD, 3.0)
    assert talk.next_request(3.0) is None
    talk.end(b"over", 4.0)
    assert read(talk) == b"over" and talk.is_ending
