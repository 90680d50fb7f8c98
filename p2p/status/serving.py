"""Serves many that look on, with one thread and no more: a selector, and a `Conversation` for each connection.

At most so many connections are open: where one more comes, the one that was idle for longest makes room, and where all
are at something, it is hung up on.
"""

import math
import selectors
import socket
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final

from .http import Answer, Conversation, Request

MOST_CONNECTIONS: Final = 64
LOOK_S: Final = 1.0
"""So often deadlines are looked at."""
READ_BYTES: Final = 1 << 16
SEND_BYTES: Final = 1 << 18
"""That the kernel keeps for a connection, so that an answer leaves at one go."""
OVER: Final = b"event: over\ndata:\n\n"


class Server:
    """Answers until it is told to stop.

    Attributes:
        port: where it listens.
    """

    def __init__(
        self,
        listening: socket.socket,
        answer: Callable[[Request], Answer],
        event: Callable[[], tuple[bytes, float]],
        *,
        headers: Mapping[str, str],
        clock: Callable[[], float],
    ) -> None:
        """Nothing is accepted.

        Args:
            listening: is closed in the end.
            answer: to a request.
            event: the one that all who follow get now, and in how many seconds the next one is due.
            headers: of every answer.
            clock: monotonic seconds.
        """
        listening.setblocking(False)
        self._listening, self._answer, self._event, self._headers, self._clock = (
            listening,
            answer,
            event,
            headers,
            clock,
        )
        self.port: int = listening.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._told, self._teller = socket.socketpair()
        self._talks: dict[socket.socket, Conversation] = {}
        self._event_at = self._accepts_at = 0.0
        self._is_accepting = True
        self._selector.register(listening, selectors.EVENT_READ)
        self._selector.register(self._told, selectors.EVENT_READ)

    def stop(self) -> None:
        """From any thread: `run` tells all who follow that it is over, and returns."""
        self._teller.send(b"\0")

    def run(self) -> None:
        """Serve until `stop`; then everything is closed."""
        try:
            while self._turn():
                pass
            for connection, talk in list(self._talks.items()):
                talk.end(OVER, self._clock())
                self._send(connection, talk)
        finally:
            for connection in list(self._talks):
                self._end(connection)
            for each in (self._listening, self._told, self._teller, self._selector):
                each.close()

    def _turn(self) -> bool:
        """Wait for what happens, and deal with it; False: it is over."""
        now = self._clock()
        deadline = now + LOOK_S if self._talks or not self._is_accepting else math.inf
        if self._num_following():
            deadline = min(deadline, self._event_at)
        for key, events in self._selector.select(None if deadline == math.inf else max(0.0, deadline - now)):
            if key.fileobj is self._told:
                return False
            if key.fileobj is self._listening:
                self._accept()
            elif isinstance(key.fileobj, socket.socket) and key.fileobj in self._talks:
                self._serve(key.fileobj, self._talks[key.fileobj], is_readable=bool(events & selectors.EVENT_READ))
        self._look(self._clock())
        return True

    def _look(self, now: float) -> None:
        """At what is due."""
        if self._num_following() and now >= self._event_at:
            event, every_s = self._event()
            self._event_at = now + every_s
            for connection, talk in list(self._talks.items()):
                talk.send_event(event, now)
                self._send(connection, talk)
        for connection, talk in list(self._talks.items()):
            if now >= talk.deadline:
                self._end(connection)
        if not self._is_accepting and now >= self._accepts_at:
            self._is_accepting = True
            self._selector.register(self._listening, selectors.EVENT_READ)

    def _num_following(self) -> int:
        return sum(talk.is_following for talk in self._talks.values())

    def _accept(self) -> None:
        try:
            connection, _ = self._listening.accept()
        except BlockingIOError:
            return  # it is gone already
        except OSError:  # no file can be opened, and this one would be readable again and again
            self._is_accepting, self._accepts_at = False, self._clock() + LOOK_S
            self._selector.unregister(self._listening)
            return
        if len(self._talks) >= MOST_CONNECTIONS:
            idle = [each for each, talk in self._talks.items() if talk.is_idle]
            if not idle:
                connection.close()
                return
            self._end(min(idle, key=lambda each: self._talks[each].deadline))
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
        self._talks[connection] = Conversation(self._clock(), self._headers)
        self._selector.register(connection, selectors.EVENT_READ)

    def _serve(self, connection: socket.socket, talk: Conversation, *, is_readable: bool) -> None:
        if is_readable:
            try:
                data = connection.recv(READ_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._end(connection)
                return
            talk.receive(data, self._clock())
        self._send(connection, talk)
        while connection in self._talks and (request := talk.next_request(self._clock())) is not None:
            talk.answer(self._answer_to(request), self._clock())
            if talk.is_following:
                talk.outgoing += self._first_event()
            self._send(connection, talk)
        self._send(connection, talk)  # what was refused

    def _answer_to(self, request: Request) -> Answer:
        try:
            return self._answer(request)
        except Exception as error:  # the top of this loop: the others are still served
            return Answer(HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain", f"{type(error).__name__}: {error}\n".encode())

    def _first_event(self) -> bytes:
        """For who begins to follow; where others do, the next one comes to all at the same time."""
        event, every_s = self._event()
        if self._num_following() == 1:
            self._event_at = self._clock() + every_s
        return event

    def _send(self, connection: socket.socket, talk: Conversation) -> None:
        """As much as the connection takes now."""
        if connection not in self._talks or not talk.outgoing:
            return
        try:
            talk.sent(connection.send(talk.outgoing), self._clock())
        except BlockingIOError:
            pass
        except OSError:
            self._end(connection)
            return
        if talk.is_ending and not talk.outgoing:
            self._end(connection)
            return
        # Who does not read what was answered is not heard either: what it asks meanwhile would heap up.
        wanted = selectors.EVENT_READ if talk.is_following or not talk.outgoing else 0
        wanted |= selectors.EVENT_WRITE if talk.outgoing else 0
        if self._selector.get_key(connection).events != wanted:
            self._selector.modify(connection, wanted)

    def _end(self, connection: socket.socket) -> None:
        del self._talks[connection]
        self._selector.unregister(connection)
        connection.close()
