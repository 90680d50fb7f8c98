"""HTTP/1.1 for those who look on (RFC 9112): GET, answers of known length, and server-sent events. Pure.

A `Conversation` is told what has come from a connection, and says what is to be sent. Connections are kept, one request
is answered after the other, and nobody is remembered for longer than they are patient with us.

Leaves out: bodies of requests, TLS, compression, ranges; who sends such a thing is told so, and hung up on.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

PATIENCE_S: Final = 10.0
"""With who has begun a request, or does not read an answer."""
IDLE_S: Final = 90.0
"""With who keeps a connection and asks nothing: Prometheus asks every 15 to 60 s."""
MOST_HEAD_BYTES: Final = 16 << 10

_END: Final = b"\r\n\r\n"
_HAS_BODY: Final = ("content-length", "transfer-encoding")


@dataclass(frozen=True, slots=True)
class Request:
    """A GET.

    Attributes:
        target: path and query, as they came.
        headers: by names in small letters; of several with one name, the last.
    """

    target: str
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Answer:
    """To a request.

    Attributes:
        kind: media type.
        body: all of it; None: events follow, for as long as both sides like.
    """

    status: HTTPStatus
    kind: str
    body: bytes | None


class Refused(Exception):
    """A request that is none of ours: the answer, after which the connection ends."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.answer = Answer(status, "text/plain", f"{why}\n".encode())


def parse(head: bytes) -> tuple[Request, bool]:
    """A request, without the empty line at its end, and whether the connection is kept; raises Refused."""
    first, *lines = head.decode("latin-1").split("\r\n")
    parts = first.split(" ")
    if len(parts) != 3 or parts[2] not in ("HTTP/1.0", "HTTP/1.1"):
        raise Refused(HTTPStatus.BAD_REQUEST, "this is a server of HTTP/1.1")
    method, target, version = parts
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise Refused(HTTPStatus.BAD_REQUEST, "a header has a name, a colon and a value")
        headers[name.lower()] = value.strip()
    if method != "GET":
        raise Refused(HTTPStatus.METHOD_NOT_ALLOWED, "all there is to do is GET")
    if any(headers.get(name, "0") != "0" for name in _HAS_BODY):
        raise Refused(HTTPStatus.BAD_REQUEST, "a GET has no body here")
    said = headers.get("connection", "").lower()
    return Request(target, headers), "close" not in said if version == "HTTP/1.1" else "keep-alive" in said


class Conversation:
    """One connection.

    Attributes:
        outgoing: what is to be sent; whoever sends takes it away from the front, and says `sent`.
        is_following: events are sent to it.
        is_ending: once all is sent, the connection ends.
        deadline: when patience with it ends, in monotonic seconds.
    """

    def __init__(self, now: float, headers: Mapping[str, str]) -> None:
        """`headers`: of every answer."""
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._incoming = bytearray()
        self._keeps = True
        self._has_asked = False
        self.outgoing = bytearray()
        self.is_following = self.is_ending = False
        self.deadline = now + PATIENCE_S

    @property
    def is_idle(self) -> bool:
        """It was answered, and asks nothing now: it can be ended to make room."""
        return self._has_asked and not (self._incoming or self.outgoing or self.is_following)

    def receive(self, data: bytes, now: float) -> None:
        """Take what has come."""
        if self.is_following or self.is_ending:
            return  # there is nothing left to ask
        if self.is_idle:
            self.deadline = now + PATIENCE_S
        self._incoming += data

    def next_request(self, now: float) -> Request | None:
        """The next one, if it is here, and the one before is answered; where it is refused, that is the answer."""
        if self.outgoing or self.is_following or self.is_ending:
            return None
        end = self._incoming.find(_END)
        try:
            if max(end, 0 if end >= 0 else len(self._incoming)) > MOST_HEAD_BYTES:
                raise Refused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"{MOST_HEAD_BYTES} bytes of headers do")
            if end < 0:
                return None
            head = bytes(self._incoming[:end])
            del self._incoming[: end + len(_END)]
            request, self._keeps = parse(head)
        except Refused as refused:
            self._keeps = False
            self.answer(refused.answer, now)
            return None
        self._has_asked = True
        return request

    def answer(self, given: Answer, now: float) -> None:
        """To the last request."""
        self.is_following = given.body is None
        self.is_ending = not self._keeps and not self.is_following
        status = given.status
        head = f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {given.kind}\r\n{self._headers}"
        if given.body is not None:
            head += f"Content-Length: {len(given.body)}\r\n"
        if self.is_following or self.is_ending:
            head += "Connection: close\r\n"
        self._begin(head.encode("latin-1") + b"\r\n" + (given.body or b""), now)

    def send_event(self, event: bytes, now: float) -> None:
        """Where it follows; who has not read all of the one before gets none."""
        if self.is_following and not self.outgoing:
            self._begin(event, now)

    def end(self, event: bytes, now: float) -> None:
        """No other event follows this one."""
        self.send_event(event, now)
        self.is_ending = True

    def sent(self, num_bytes: int, now: float) -> None:
        """So much of `outgoing` is on its way."""
        del self.outgoing[:num_bytes]
        self.deadline = now + PATIENCE_S if self.outgoing else math.inf if self.is_following else now + IDLE_S

    def _begin(self, text: bytes, now: float) -> None:
        self.outgoing += text
        self.deadline = now + PATIENCE_S
