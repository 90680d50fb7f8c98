"""The page of a run, and its answers to programs."""

import json
import re
import select
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

import pytest

from p2p.errors import LaunchError
from p2p.status.openmetrics import FAMILIES, openmetrics
from p2p.status.web import MOST_CONNECTIONS, check_address, serving
from p2p.telemetry.records import Kind
from p2p.telemetry.snapshot import Counted
from tests.p2p.status.test_report import POND
from tests.p2p.telemetry.pages import A, B, identity, of_this_process, page, snapshot

TOKEN = "a token of enough characters"
SAMPLE = re.compile(r'[a-z_]+(\{([a-z_]+="([^"\\\n]|\\["\\n])*",?)+\})? (-?[0-9.e+-]+|NaN|[+-]Inf)')


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home folder with a peer in step 2, which is this process."""
    (tmp_path / "pond").mkdir()
    made = page(tmp_path / "pond", identity(**of_this_process()))
    for step in (1, 2):
        made.loop.note(Kind.COMMITTED, step)
    made.show(
        snapshot(
            made.identity,
            time_ns=time.monotonic_ns(),
            step=2,
            view=1,
            members=((A, 1),),
            has_begun=True,
            counted=Counted(steps=2, samples=8),
            logged={"loss <b>": 0.5},
        )
    )
    return tmp_path


@pytest.fixture
def port(home: Path) -> Iterator[int]:
    with serving("127.0.0.1:0", home, "pond", time.monotonic_ns, {}) as url:
        yield int(url.rstrip("/").rpartition(":")[2])


def ask(port: int, path: str, headers: Mapping[str, str] = {}) -> HTTPResponse:
    connection = HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", path, headers={"Connection": "close", **headers})
    return connection.getresponse()


def asked(port: int, path: str, **headers: str) -> tuple[int, str]:
    with closing(ask(port, path, headers)) as answer:
        return answer.status, answer.read().decode()


def test_programs_are_told_all_as_json_and_as_openmetrics(port: int) -> None:
    status, text = asked(port, "/status.json")
    (peer,) = json.loads(text)["swarms"]["pond"]["peers"]
    assert (status, peer["peer_id"], peer["condition"]) == (200, A, "running")
    status, text = asked(port, "/metrics")
    assert status == 200
    assert f'shoal_samples_total{{swarm="pond",peer="0",peer_id="{A}"}} 8\n' in text
    assert 'shoal_members{swarm="pond"} 1\n' in text


def test_people_are_sent_a_page_which_is_sent_events(port: int) -> None:
    with closing(ask(port, "/")) as answer:
        text = answer.read().decode()
        assert "default-src 'none'" in (answer.getheader("Content-Security-Policy") or "")
    assert "EventSource" in text and "://" not in text.replace("http://www.w3.org/2000/svg", "")
    with closing(ask(port, "/events")) as answer:
        assert answer.getheader("Content-Type") == "text/event-stream"
        line = answer.readline().decode()
    (swarm,) = json.loads(line.removeprefix("data: "))["swarms"]
    (peer,) = swarm["peers"]
    assert swarm["headline"].startswith("swarm pond: 1 member in view 1, step 2")
    assert (peer["name"], peer["step"], peer["took_us"], peer["logged"]) == ("0", "2", [1000], "loss <b> 0.5")


def test_a_page_of_strangers_and_a_path_that_is_none_get_nothing(port: int) -> None:
    assert asked(port, "/metrics", Host="evil.example:80")[0] == 403
    assert asked(port, "/metrics", Host=f"localhost:{port}")[0] == 200
    assert asked(port, "/status.json/../..")[0] == 404


def test_with_a_token_nobody_is_told_anything_without_it(home: Path) -> None:
    with serving("127.0.0.1:0", home, "pond", time.monotonic_ns, {"SHOAL_WEB_TOKEN": TOKEN}) as url:
        port = int(url.rstrip("/").rpartition(":")[2])
        assert asked(port, "/status.json")[0] == 403
        assert asked(port, "/status.json?token=other")[0] == 403
        assert asked(port, "/status.json", Authorization=f"Bearer {TOKEN}é")[0] == 403
        assert asked(port, "/status.json", Authorization=f"Bearer {TOKEN}")[0] == 200
        assert asked(port, f"/?token={TOKEN.replace(' ', '+')}", Host="any.example")[0] == 200


def test_a_port_that_is_taken_is_one_line(home: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with (
            pytest.raises(LaunchError, match=f"--web cannot listen at {address}: Address already in use; give another"),
            serving(address, home, "pond", time.monotonic_ns, {}),
        ):
            pass


@pytest.mark.parametrize(
    ("address", "token", "says"),
    [
        ("8400", None, "--web: expected host:port"),
        ("10.0.0.1:8400", None, "can be reached from other hosts: put a token"),
        ("*:8400", None, "can be reached from other hosts"),
        ("10.0.0.1:8400", "short", "has 5 characters, and needs at least 16"),
    ],
)
def test_an_address_that_cannot_be_or_lets_strangers_in_is_refused(address: str, token: str | None, says: str) -> None:
    with pytest.raises(LaunchError, match=re.escape(says)):
        check_address(address, token)


@pytest.mark.long
def test_of_many_that_hold_on_the_last_are_not_served_and_a_place_is_free_again(port: int) -> None:
    waiting = [socket.create_connection(("127.0.0.1", port)) for _ in range(MOST_CONNECTIONS)]
    with pytest.raises(ConnectionError):
        asked(port, "/metrics")
    waiting.pop().close()
    status = 0
    while not status:  # until the server has noticed
        try:
            status, _ = asked(port, "/metrics")
        except ConnectionError:
            continue
    assert status == 200
    for each in waiting:
        each.close()


def test_a_connection_is_kept_for_one_request_after_the_other(port: int) -> None:
    with closing(HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
        ours = set()
        for path in ("/metrics", "/status.json", "/nothing", "/metrics"):
            connection.request("GET", path)
            connection.getresponse().read()
            ours.add(connection.sock.getsockname())
    assert len(ours) == 1


def test_who_keeps_a_connection_and_asks_nothing_makes_room_for_who_does(port: int) -> None:
    kept = [HTTPConnection("127.0.0.1", port, timeout=20) for _ in range(MOST_CONNECTIONS)]
    for each in kept:
        each.request("GET", "/nothing")
        each.getresponse().read()
    assert asked(port, "/metrics")[0] == 200
    (gone,), _, _ = select.select([each.sock for each in kept], [], [], 20)
    assert gone.recv(1) == b""  # it was idle for the longest time; each connection has a thread of its own
    other = next(each for each in kept if each.sock is not gone)
    other.request("GET", "/nothing")
    assert other.getresponse().status == 404
    for each in kept:
        each.close()


def test_all_who_have_the_page_open_are_told_that_the_run_is_over(home: Path) -> None:
    with serving("127.0.0.1:0", home, "pond", time.monotonic_ns, {}) as url:
        port = int(url.rstrip("/").rpartition(":")[2])
        first, second = ask(port, "/events"), ask(port, "/events")
        assert first.readline().startswith(b"data: ") and second.readline().startswith(b"data: ")
    assert first.read().endswith(b"event: over\ndata:\n\n")
    assert second.read().endswith(b"event: over\ndata:\n\n")


def test_a_request_that_is_none_is_answered_and_hung_up_on(port: int) -> None:
    with closing(socket.create_connection(("127.0.0.1", port), timeout=20)) as connection:
        connection.sendall(b"POST /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with connection.makefile("rb") as answer:
            assert answer.readline().startswith(b"HTTP/1.1 501 ")
            assert b"Connection: close" in answer.read()


def test_metrics_are_as_openmetrics_has_them_whoever_is_there() -> None:
    text = openmetrics({'po"nd\\': POND["pond"]})
    assert text.endswith("# EOF\n")
    seen: list[str] = []
    for line in text.splitlines()[:-1]:
        if line.startswith("# TYPE"):
            seen.append(line.split()[2])
        elif not line.startswith("#"):
            assert SAMPLE.fullmatch(line), line
            assert line.split("{")[0].removesuffix("_total") == seen[-1]
    assert seen == list(FAMILIES) == [line.split()[2] for line in openmetrics({}).splitlines() if "# TYPE" in line]
    assert 'shoal_logged{swarm="po\\"nd\\\\",peer="0",peer_id="' + A + '",name="bad"} NaN' in text
    assert 'condition="stopped"} 1' in text
    assert f'shoal_steps_per_second{{swarm="po\\"nd\\\\",peer="1",peer_id="{B}"}} 0.0' in text
    of_the_dead = {line.split("{")[0] for line in text.splitlines() if 'peer="2"' in line}
    assert of_the_dead >= {"shoal_step", "shoal_samples_total"}, "what it has done stays"
    assert not of_the_dead & {"shoal_resident_bytes", "shoal_open_files", "shoal_step_part_seconds", "shoal_logged"}
