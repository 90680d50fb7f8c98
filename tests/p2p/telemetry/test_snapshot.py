"""A snapshot as JSON."""

import math

import pytest

from p2p.errors import RemoteProtocolError
from p2p.telemetry.snapshot import MOST_BYTES, Change, Counted, Link, Other, Pace, Snapshot, Waiting
from tests.p2p.telemetry.pages import A, B, identity, snapshot

FULL = snapshot(
    identity(),
    members=((A, 1), (B, 2)),
    others=(Other(peer_id=B, view=3, step=7, steps_per_s=1.5, loss=0.5, address="tcp://10.0.0.2:7700"),),
    events=((5, f"{B} is dead"), (6, "ä")),
    dropped={"no link": 3},
    waiting=Waiting(text=f"waits for {B}", peers=(B,)),
    pace=Pace(steps_per_s=2.5, compute_s=0.1, exchange_s=0.2, wait_s=0.1),
    change=Change(view=3, waited_s=0.014, redone=7),
    counted=Counted(steps=7, samples=28, since_ns=9),
    logged={"loss": 0.25, "bad": math.inf},
    links=(Link(peer_id=B, rtt_us=2100, bytes_per_s=25_000_000, sent_bytes=1 << 40),),
)


def test_it_is_read_as_it_was_written() -> None:
    assert Snapshot.parse(FULL.pack()) == FULL


def test_one_that_is_too_long_names_fewer_others_and_the_last_events() -> None:
    many = tuple(Other(peer_id=f"{n:016x}", view=1, step=n, steps_per_s=0.0) for n in range(2000))
    members = tuple((each.peer_id, 1) for each in many)
    events = tuple((n, "x" * 1000) for n in range(16))
    text = snapshot(identity(), others=many, members=members, events=events, reason="y" * 60_000).pack()
    assert len(text) <= MOST_BYTES
    found = Snapshot.parse(text)
    assert found.members == members[: len(found.members)] and 10 < len(found.members) < 2000
    assert found.events[-1] == events[-1]


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"identity":{}}', FULL.pack()[:-1], b"[" * 100_000])
def test_what_is_none_is_refused(text: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="no snapshot that this version"):
        Snapshot.parse(text)
