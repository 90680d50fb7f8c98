"""`shoal run --web`: a page, `/status.json` and `/metrics` of the peers of this host, from threads of the launcher.

The contents are read from the pages of the peers, at most once a second, and only on request; the peers have no part in
it. Leaves out: TLS (put a proxy in front, or an ssh tunnel), and anything that could change a run.
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
from .follow import StatusReader
from .local import PeerStatus
from .openmetrics import CONTENT_TYPE, openmetrics
from .report import events, for_programs, headline, in_order, latest_snapshot, names_of, row_of

EVERY_S: Final = 1.0
MOST_EACH_SECOND: Final = 32
"""With more peers than this, the page is renewed less often than once a second, to limit the cost."""
FRESH: Final = 0.9
"""Share of the renewal interval for which the last look is reused for all requests."""
MOST_CONNECTIONS: Final = 64
PATIENCE_S: Final = 10.0
"""Timeout of a connection within a request, or while its response is not read."""
IDLE_S: Final = 90.0
"""Timeout of a connection between requests: Prometheus sends one every 15 to 60 s."""
POLL_S: Final = 0.1
"""How long closing the server may take."""
LEAST_TOKEN: Final = 16
"""Least characters of a token."""
PAGE: Final = Path(__file__).with_name("page.html")
HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

Found = Mapping[str, Sequence[PeerStatus]]
StepTimes = Mapping[str, Sequence[int]]
COLUMNS: Final = ("name", "process", "seat", "step", "rate", "compute", "exchange", "wait", "at", "logged")


def check_address(text: str, token: str | None) -> Endpoint:
    """Parse the address to listen at.

    Raises:
        LaunchError: it is invalid, or other hosts can reach it and there is no token, or the token is short.
    """
    try:
        endpoint = Endpoint.parse(text)
    except ValueError as error:
        raise LaunchError(f"--web: {error}; for example 127.0.0.1:8400") from None
    if token is not None and len(token) < LEAST_TOKEN:
        raise LaunchError(f"the token of --web has {len(token)} characters, and needs at least {LEAST_TOKEN}")
    if token is None and not is_loopback(endpoint.host):
        raise LaunchError(
            f"--web {text} can be reached from other hosts: put a token of {LEAST_TOKEN} characters or more into the "
            "variable SHOAL_WEB_TOKEN, or listen at 127.0.0.1 and use ssh -L"
        )
    return endpoint


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Shown:
    """The current contents, rendered once for all requests until they are renewed."""

    def __init__(self, follower: StatusReader, clock: Callable[[], float]) -> None:
        """`clock`: monotonic seconds. Reads nothing yet."""
        self._follower, self._clock = follower, clock
        self._lock = threading.Lock()
        self._until = -math.inf
        self._found: Found = {}
        self._texts: dict[str, bytes] = {}
        self.every_s = EVERY_S

    def for_page(self) -> bytes:
        """The data that the page draws, as JSON."""
        return self._once("page", lambda: _for_page(self._found, self._follower.steps_us()))

    def for_scrapers(self) -> bytes:
        return self._once("scrapers", lambda: openmetrics(self._found).encode())

    def for_scripts(self) -> bytes:
        return self._once("scripts", lambda: _json(for_programs(self._follower.read(whole=True))))

    def _once(self, name: str, render: Callable[[], bytes]) -> bytes:
        """The result of `render`, cached under `name` until the contents are renewed."""
        with self._lock:
            if (now := self._clock()) >= self._until:
                self._found = self._follower.read()
                self.every_s = EVERY_S * max(1.0, sum(map(len, self._found.values())) / MOST_EACH_SECOND)
                self._until = now + FRESH * self.every_s
                self._texts.clear()
            if name not in self._texts:
                self._texts[name] = render()
            return self._texts[name]


def _for_page(found: Found, steps_us: StepTimes) -> bytes:
    return _json({"swarms": [_swarm(swarm, peers, steps_us) for swarm, peers in in_order(found)]})


def _swarm(swarm: str, peers: Sequence[PeerStatus], steps_us: StepTimes) -> dict[str, Any]:
    latest, names = latest_snapshot(peers), names_of(peers)
    rows = []
    for looked in peers:
        row = dict(zip(COLUMNS, row_of(looked, latest, names), strict=True))
        took = steps_us.get(looked.seen.identity.peer_id, ())
        rows.append({**row, "condition": looked.condition.value, "took_us": took})
    return {"headline": headline(swarm, peers, latest), "peers": rows, "events": list(events(peers, latest, names))}


class Handler(BaseHTTPRequestHandler):
    """One connection, with its requests one after the other (RFC 9112)."""

    protocol_version = "HTTP/1.1"
    timeout = PATIENCE_S
    disable_nagle_algorithm = True
    wbufsize = 1 << 18
    """Buffers a whole response; flushed after each event, and at the end."""
    server: "Server"
    rfile: BufferedReader
    routes: ClassVar[dict[str, Callable[["Handler"], None]]] = {}

    def handle(self) -> None:
        """Overrides the base class: between requests the timeout is `IDLE_S`."""
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
        """Answer a GET request; called by the base class."""
        path = urlsplit(self.path).path
        if not self._is_allowed():
            self._send(
                HTTPStatus.FORBIDDEN, "text/plain", b"a token is needed: Authorization: Bearer TOKEN, or ?token=TOKEN\n"
            )
        elif path in self.routes:
            with suppress(OSError):  # the connection is closed
                self.routes[path](self)
        else:
            self._send(HTTPStatus.NOT_FOUND, "text/plain", b"there are / and /status.json and /metrics\n")

    def _is_allowed(self) -> bool:
        """Whether the request has the token; without one, whether its Host is a loopback name (DNS rebinding)."""
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
        """Server-sent events, until the connection is closed or the run is over."""
        self.close_connection = True
        self._begin(HTTPStatus.OK, "text/event-stream", {})
        while True:
            self.wfile.write(b"data: " + self.server.shown.for_page() + b"\n\n")
            self.wfile.flush()
            if self.server.is_over.wait(self.server.shown.every_s):
                self.wfile.write(b"event: over\ndata:\n\n")
                return

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing: the output belongs to the run."""


Handler.routes = {
    "/": Handler.send_page,
    "/status.json": Handler.send_status,
    "/metrics": Handler.send_metrics,
    "/events": Handler.send_events,
}


class Server(socketserver.ThreadingTCPServer):
    """The HTTP server; listens until it is closed.

    Attributes:
        is_over: set when the server ends.
    """

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 16

    def __init__(self, endpoint: Endpoint, shown: Shown, token: str | None) -> None:
        """Raises OSError if it cannot listen at `endpoint`."""
        self.address_family = AF_INET6 if endpoint.is_ipv6 else AF_INET
        self.shown, self.token = shown, token
        self.is_over = threading.Event()
        self._places = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._open: set[socket] = set()
        self._idle: dict[socket, None] = {}
        host = "" if endpoint.host == "*" else endpoint.host
        super().__init__((host, endpoint.port), Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a connection; with too many, the one idle for longest is closed, or else the new one."""
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
        """Count the connection as idle, that is between requests."""
        self._idle[connection] = None
        try:
            yield
        finally:
            del self._idle[connection]

    def end(self) -> None:
        """Tell followers of events that the run is over, and stop reading requests."""
        self.is_over.set()
        self.shutdown()
        for connection in tuple(self._open):
            _hang_up(connection, SHUT_RD)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores errors of a connection: it was closed, or its request was invalid."""


def _hang_up(connection: socket, how: int) -> None:
    with suppress(OSError):  # the other side has closed it already
        connection.shutdown(how)


@contextmanager
def serving(
    address: str, home: Path, swarm: str, clock_ns: Callable[[], int], environ: Mapping[str, str] = os.environ
) -> Iterator[str]:
    """Serve the peers of a swarm of this host, from threads of this process; gives the address of the page.

    Raises:
        LaunchError: the server cannot listen at the address, or must not without a token.
    """
    token = environ.get("SHOAL_WEB_TOKEN") or None
    endpoint = check_address(address, token)
    shown = Shown(StatusReader(home, swarm, clock_ns), lambda: clock_ns() / 1e9)
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
