"""`shoal run --web`: a page, `/status.json` and `/metrics` of the peers of this host, from a thread of the launcher.

What is shown is read from the pages of the peers, at most once a second, and only while somebody asks; the peers do
nothing for it. Leaves out: TLS (put a proxy in front, or an ssh tunnel), and whatever could change a run.
"""

import hmac
import ipaddress
import json
import math
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from ..errors import LaunchError
from ..net.addresses import Endpoint
from .follow import Follower
from .http import Answer, Request
from .local import Looked
from .openmetrics import CONTENT_TYPE, openmetrics
from .report import events, for_programs, headline, in_order, latest_snapshot, names_of, row_of
from .serving import Server

EVERY_S: Final = 1.0
MOST_EACH_SECOND: Final = 32
"""Peers; of more, the page is renewed less often, so that it costs little."""
FRESH: Final = 0.9
"""So much of that time what was read is shown to whoever asks."""
BACKLOG: Final = 16
CLOSING_S: Final = 5.0
"""So long the end of a run waits for the thread at the most."""
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
    """What is shown now, to all who ask. One thread at a time."""

    def __init__(self, follower: Follower, clock: Callable[[], float]) -> None:
        """Nothing is read. `clock`: monotonic seconds."""
        self._follower, self._clock = follower, clock
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


class Site:
    """What is answered to whom."""

    def __init__(self, shown: Shown, token: str | None) -> None:
        self._shown, self._token = shown, token

    def answer(self, request: Request) -> Answer:
        """Nothing, to who may not look on."""
        if not self._is_allowed(request):
            why = b"a token is needed: Authorization: Bearer TOKEN, or ?token=TOKEN\n"
            return Answer(HTTPStatus.FORBIDDEN, "text/plain", why)
        match urlsplit(request.target).path:
            case "/":
                return Answer(HTTPStatus.OK, "text/html; charset=utf-8", PAGE.read_bytes())
            case "/status.json":
                return Answer(HTTPStatus.OK, "application/json", self._shown.for_scripts())
            case "/metrics":
                return Answer(HTTPStatus.OK, CONTENT_TYPE, self._shown.for_scrapers())
            case "/events":
                return Answer(HTTPStatus.OK, "text/event-stream", None)
        return Answer(HTTPStatus.NOT_FOUND, "text/plain", b"there are / and /status.json and /metrics\n")

    def event(self) -> tuple[bytes, float]:
        """For all who have the page open, and in how many seconds there is another one."""
        return b"data: " + self._shown.for_page() + b"\n\n", self._shown.every_s

    def _is_allowed(self, request: Request) -> bool:
        """With the token; without one, if the name is no other one for this host: pages of strangers could ask else."""
        if self._token is None:
            host = request.headers.get("host", "")
            try:
                return is_loopback(Endpoint.parse(host or "?").host)
            except ValueError:
                return is_loopback(host)
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        given = given or parse_qs(urlsplit(request.target).query).get("token", [""])[0]
        return hmac.compare_digest(given.encode(), self._token.encode())


@contextmanager
def serving(
    address: str, home: Path, swarm: str, clock_ns: Callable[[], int], environ: Mapping[str, str] = os.environ
) -> Iterator[str]:
    """Serve the peers of a swarm of this host, from a thread of this process; gives the address of the page.

    Raises:
        LaunchError: it cannot listen there, or must not without a token.
    """
    token = environ.get("SHOAL_WEB_TOKEN") or None
    endpoint = check_address(address, token)
    site = Site(Shown(Follower(home, swarm, clock_ns), lambda: clock_ns() / 1e9), token)
    try:
        family = socket.AF_INET6 if endpoint.is_ipv6 else socket.AF_INET
        host = "" if endpoint.host == "*" else endpoint.host
        listening = socket.create_server((host, endpoint.port), family=family, backlog=BACKLOG)
    except OSError as error:
        why = error.strerror or str(error)
        raise LaunchError(
            f"--web cannot listen at {address}: {why.partition(' (while')[0]}; give another port"
        ) from error
    server = Server(listening, site.answer, site.event, headers=HEADERS, clock=lambda: clock_ns() / 1e9)
    thread = threading.Thread(target=server.run, name="shoal-web", daemon=True)
    thread.start()
    try:
        yield f"http://{Endpoint(endpoint.host, server.port)}/"
    finally:
        server.stop()
        thread.join(CLOSING_S)


def _json(values: Any) -> bytes:
    return json.dumps(values, separators=(",", ":"), allow_nan=False).encode()
