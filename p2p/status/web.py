"""`shoal run --web`: a page, `/status.json` and `/metrics` of the peers of this host, from threads of the launcher.

What is shown is read from the pages of the peers, at most once a second, and only while somebody asks; the peers do
nothing for it. Leaves out: TLS (put a proxy in front, or an ssh tunnel), and whatever could change a run.
"""

import hmac
import ipaddress
import json
import math
import os
import socketserver
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from io import BufferedReader
from pathlib import Path
from socket import AF_INET, AF_INET6, SHUT_RD, SHUT_RDWR, socket
from typing import Any, ClassVar, Final
from urllib.parse import parse_qs, urlsplit

from ..errors import LaunchError
from ..net.addresses import Endpoint
from .follow import Follower
from .local import Looked
from .openmetrics import CONTENT_TYPE, openmetrics
from .report import events, for_programs, headline, in_order, latest_snapshot, names_of, row_of

EVERY_S: Final = 1.0
MOST_EACH_SECOND: Final = 32
"""Peers; of more, the page is renewed less often, so that it costs little."""
FRESH: Final = 0.9
"""So much of that time what was read is shown to whoever asks."""
MOST_CONNECTIONS: Final = 64
PATIENCE_S: Final = 10.0
"""With who has begun a request, or does not read an answer."""
IDLE_S: Final = 90.0
"""With who keeps a connection and asks nothing: Prometheus asks every 15 to 60 s."""
POLL_S: Final = 0.1
"""So long it takes at the most until it is closed."""
LEAST_TOKEN: Final = 16
"""Characters."""
PAGE: Final = Path(__file__).with_name("page.html")
HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

Found = Mapping[str, Sequence[Looked]]
StepTimes = Mapping[str, Sequence[int]]
COLUMNS: Final = ("name", "process", "seat", "step", "rate", "compute", "exchange", "wait", "at", "logged")


def check_address(text: str, token: str | None) -> Endpoint:
    """Where to listen. LaunchError: that is none, or strangers could look on."""
    try:
        endpoint = Endpoint.parse(text)
    except ValueError as error:
        raise LaunchError(f"--web: {error}; 127.0.0.1:8400, say") from None
    if token is not None and len(token) < LEAST_TOKEN:
        raise LaunchError(f"the token of --web has {len(token)} characters, and needs {LEAST_TOKEN} at the least")
    if token is None and not is_loopback(endpoint.host):
        raise LaunchError(
            f"--web {text} can be reached from other hosts: put a token of {LEAST_TOKEN} characters or more into the "
            "variable SHOAL_WEB_TOKEN, or listen at 127.0.0.1 and come by ssh -L"
        )
    return endpoint


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Shown:
    """What is shown now, for all who ask."""

    def __init__(self, follower: Follower, clock: Callable[[], float]) -> None:
        """Nothing is read. `clock`: monotonic seconds."""
        self._follower, self._clock = follower, clock
        self._lock = threading.Lock()
        self._until = -math.inf
        self._found: Found = {}
        self._texts: dict[str, bytes] = {}
        self.every_s = EVERY_S

    def for_page(self) -> bytes:
        """What the page draws."""
        return self._once("page", lambda: _for_page(self._found, self._follower.steps_us()))

    def for_scrapers(self) -> bytes:
        return self._once("scrapers", lambda: openmetrics(self._found).encode())

    def for_scripts(self) -> bytes:
        return self._once("scripts", lambda: _json(for_programs(self._follower.look(whole=True))))

    def _once(self, name: str, render: Callable[[], bytes]) -> bytes:
        """What `render` makes of what was found: once for all who ask until it is renewed."""
        with self._lock:
            if (now := self._clock()) >= self._until:
                self._found = self._follower.look()
                self.every_s = EVERY_S * max(1.0, sum(map(len, self._found.values())) / MOST_EACH_SECOND)
                self._until = now + FRESH * self.every_s
                self._texts.clear()
            if name not in self._texts:
                self._texts[name] = render()
            return self._texts[name]


def _for_page(found: Found, steps_us: StepTimes) -> bytes:
    return _json({"swarms": [_swarm(swarm, peers, steps_us) for swarm, peers in in_order(found)]})


def _swarm(swarm: str, peers: Sequence[Looked], steps_us: StepTimes) -> dict[str, Any]:
    latest, names = latest_snapshot(peers), names_of(peers)
    rows = []
    for looked in peers:
        row = dict(zip(COLUMNS, row_of(looked, latest, names), strict=True))
        took = steps_us.get(looked.seen.identity.peer_id, ())
        rows.append({**row, "condition": looked.condition.value, "took_us": took})
    return {"headline": headline(swarm, peers, latest), "peers": rows, "events": list(events(peers, latest, names))}


class Handler(BaseHTTPRequestHandler):
    """One connection, and what is asked on it, one request after the other (RFC 9112)."""

    protocol_version = "HTTP/1.1"
    timeout = PATIENCE_S
    disable_nagle_algorithm = True
    wbufsize = 1 << 18
    """So that an answer leaves at one go; it is flushed behind each event, and at the end."""
    server: "Server"
    rfile: BufferedReader
    routes: ClassVar[dict[str, Callable[["Handler"], None]]] = {}

    def handle(self) -> None:
        """As the base class calls it: who was answered may think for longer."""
        self.handle_one_request()
        while not self.close_connection:
            self.connection.settimeout(IDLE_S)
            if not self._has_more():
                return
            self.connection.settimeout(PATIENCE_S)
            self.handle_one_request()

    def _has_more(self) -> bool:
        with self.server.idle(self.connection), suppress(OSError):
            return bool(self.rfile.peek(1))
        return False

    def do_GET(self) -> None:
        """As the base class calls it."""
        path = urlsplit(self.path).path
        if not self._is_allowed():
            self._send(
                HTTPStatus.FORBIDDEN, "text/plain", b"a token is needed: Authorization: Bearer TOKEN, or ?token=TOKEN\n"
            )
        elif path in self.routes:
            with suppress(OSError):  # whoever asked has gone
                self.routes[path](self)
        else:
            self._send(HTTPStatus.NOT_FOUND, "text/plain", b"there are / and /status.json and /metrics\n")

    def _is_allowed(self) -> bool:
        """With the token; without one, if the name is no other one for this host: pages of strangers could ask else."""
        token = self.server.token
        if token is None:
            try:
                return is_loopback(Endpoint.parse(self.headers.get("Host", "") or "?").host)
            except ValueError:
                return is_loopback(self.headers.get("Host", ""))
        given = self.headers.get("Authorization", "").removeprefix("Bearer ")
        given = given or parse_qs(urlsplit(self.path).query).get("token", [""])[0]
        return hmac.compare_digest(given.encode(), token.encode())

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        with suppress(OSError):
            self._begin(status, kind, {"Content-Length": str(len(body))})
            self.wfile.write(body)

    def _begin(self, status: HTTPStatus, kind: str, more: Mapping[str, str]) -> None:
        self.send_response(status)
        ending = {"Connection": "close"} if self.close_connection else {}
        for name, value in {"Content-Type": kind, **HEADERS, **more, **ending}.items():
            self.send_header(name, value)
        self.end_headers()

    def send_page(self) -> None:
        self._send(HTTPStatus.OK, "text/html; charset=utf-8", PAGE.read_bytes())

    def send_status(self) -> None:
        self._send(HTTPStatus.OK, "application/json", self.server.shown.for_scripts())

    def send_metrics(self) -> None:
        self._send(HTTPStatus.OK, CONTENT_TYPE, self.server.shown.for_scrapers())

    def send_events(self) -> None:
        """Server-sent events, until somebody hangs up, or the run is over."""
        self.close_connection = True
        self._begin(HTTPStatus.OK, "text/event-stream", {})
        while True:
            self.wfile.write(b"data: " + self.server.shown.for_page() + b"\n\n")
            self.wfile.flush()
            if self.server.is_over.wait(self.server.shown.every_s):
                self.wfile.write(b"event: over\ndata:\n\n")
                return

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the output is that of the run."""


Handler.routes = {
    "/": Handler.send_page,
    "/status.json": Handler.send_status,
    "/metrics": Handler.send_metrics,
    "/events": Handler.send_events,
}


class Server(socketserver.ThreadingTCPServer):
    """Listens until it is closed.

    Attributes:
        is_over: set when it is.
    """

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 16

    def __init__(self, endpoint: Endpoint, shown: Shown, token: str | None) -> None:
        """OSError: it cannot listen there."""
        self.address_family = AF_INET6 if endpoint.is_ipv6 else AF_INET
        self.shown, self.token = shown, token
        self.is_over = threading.Event()
        self._places = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._open: set[socket] = set()
        self._idle: dict[socket, None] = {}
        host = "" if endpoint.host == "*" else endpoint.host
        super().__init__((host, endpoint.port), Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """As the base class calls it: beside too many others in place of who was idle for longest, if anybody."""
        has_place = self._places.acquire(blocking=False)
        if not has_place and (idle := next(iter(tuple(self._idle)), None)) is not None:
            _hang_up(idle, SHUT_RDWR)
            has_place = self._places.acquire(timeout=PATIENCE_S)
        if has_place:
            self._open.add(request)
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._open.discard(request)
            self._places.release()

    @contextmanager
    def idle(self, connection: socket) -> Iterator[None]:
        """It is answered, and asks nothing now."""
        self._idle[connection] = None
        try:
            yield
        finally:
            del self._idle[connection]

    def end(self) -> None:
        """Whoever follows is told that it is over, and nobody is asked for more."""
        self.is_over.set()
        self.shutdown()
        for connection in tuple(self._open):
            _hang_up(connection, SHUT_RD)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: somebody has hung up, or asked for nonsense."""


def _hang_up(connection: socket, how: int) -> None:
    with suppress(OSError):  # the other side has
        connection.shutdown(how)


@contextmanager
def serving(
    address: str, home: Path, swarm: str, clock_ns: Callable[[], int], environ: Mapping[str, str] = os.environ
) -> Iterator[str]:
    """Serve the peers of a swarm of this host, from threads of this process; gives the address of the page.

    Raises:
        LaunchError: it cannot listen there, or must not without a token.
    """
    token = environ.get("SHOAL_WEB_TOKEN") or None
    endpoint = check_address(address, token)
    shown = Shown(Follower(home, swarm, clock_ns), lambda: clock_ns() / 1e9)
    try:
        server = Server(endpoint, shown, token)
    except OSError as error:
        raise LaunchError(f"--web cannot listen at {address}: {error.strerror}; give another port") from error
    with server:
        threading.Thread(target=server.serve_forever, args=(POLL_S,), name="shoal-web", daemon=True).start()
        try:
            yield f"http://{Endpoint(endpoint.host, server.server_address[1])}/"
        finally:
            server.end()


def _json(values: Any) -> bytes:
    return json.dumps(values, separators=(",", ":"), allow_nan=False).encode()
