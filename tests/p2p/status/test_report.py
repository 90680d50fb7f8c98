"""Reports of swarms, for programs and for people."""

import json
import math
from dataclasses import replace
from io import StringIO
from typing import Any

from rich.console import Console

from p2p.status.local import Condition, PeerStatus
from p2p.status.report import for_people, for_programs
from p2p.telemetry.logged import record as write_down
from p2p.telemetry.page import PageContent
from p2p.telemetry.records import RING_BYTES, How, Kind, Record, RecordRing, Why
from p2p.telemetry.snapshot import Link, Other, Pace, Waiting
from tests.p2p.telemetry.pages import A, B, identity, snapshot

C, D = "c" * 16, "d" * 16
S = 10**9


def record(time_s: float, kind: Kind, step: int) -> Record:
    return Record(1, int(time_s * S), kind, 0, 0, step, 0, "", 0.0)


def looked(
    peer_id: str, name: str, condition: Condition, records: tuple[Record, ...] = (), **changes: Any
) -> PeerStatus:
    who = identity(peer_id, name=name, pid=70 + int(name))
    shown = snapshot(who, view=3, members=((A, 1), (B, 1), (D, 1)), has_begun=True, **changes)
    return PeerStatus(PageContent(who, shown, records), condition, 0.5, 10 * S)


WAITS = looked(
    A,
    "0",
    Condition.RUNNING,
    (record(8.0, Kind.COMMITTED, 6), record(9.0, Kind.SUBMITTED, 7), record(9.5, Kind.FINISHED, 7)),
    step=6,
    time_ns=int(9.7 * S),
    reason=f"3 of 3 members of view 3 are here, {B} and {D} too",
    events=((7 * S, f"{C} is dead: its process has ended"),),
    waiting=Waiting(text="waits", peers=(B,)),
    pace=Pace(steps_per_s=2.5, compute_s=0.25, exchange_s=0.1, wait_s=0.05),
    slowest=f"peer {B} is the slowest: its compute is 3.1 times the median of the others",
    others=(
        Other(peer_id=D, view=3, step=4, steps_per_s=2.0, loss=0.5),
        Other(peer_id=B, view=3, step=4, steps_per_s=2.0),
    ),
    logged={"loss": 0.25, "bad": math.nan},
)
STOPPED = looked(B, "1", Condition.STOPPED, (record(8.0, Kind.RECEIVED, 6),), step=5)
DEAD = looked(C, "2", Condition.DEAD, (record(4.0, Kind.COMMITTED, 5), record(5.0, Kind.SUBMITTED, 6)), step=3)
POND = {"pond": [WAITS, STOPPED, DEAD]}


def screen(found: dict[str, list[PeerStatus]]) -> list[str]:
    console = Console(file=StringIO(), width=160, color_system=None)
    console.print(for_people(found))
    assert isinstance(console.file, StringIO)
    return [" ".join(line.split()) for line in console.file.getvalue().splitlines()]


def test_a_member_that_the_others_have_gone_on_without_is_out_and_who_has_a_state_alone_observes() -> None:
    """Who is stopped cannot know it."""
    ahead = replace(WAITS.seen.snapshot, view=4, members=((A, 1), (D, 1)), step=9, others=())  # type: ignore[type-var]
    goes_on = replace(WAITS, seen=replace(WAITS.seen, snapshot=ahead))
    observer = looked(C, "2", Condition.RUNNING, step=8)
    rows = screen({"pond": [goes_on, STOPPED, observer]})[2:]
    assert [" ".join(row.split()[:5]) for row in rows if row.startswith(("1 ", "2 "))] == [
        "1 stopped (71) out 5",
        "2 running (72) observes 8",
    ]


def test_people_see_who_is_there_what_each_is_at_and_for_whom_it_waits() -> None:
    assert screen(POND) == [
        "swarm pond: 3 members in view 3, step 6, 2.5 steps/s",
        "peer process seat step steps/s compute exchange wait is at logged",
        "0 running (70) rank 0 6 2.5 250 ms 100 ms 50 ms "
        "waiting for the others to finish step 7, 500 ms; loss 0.25, bad nan",
        "waits for peer 1",
        "1 stopped (71) rank 1 5 0 computing step 7, 2.0 s",
        "2 dead (72) 5 0 was exchanging step 6 with the others, 5.0 s ago",
        "dddddddd elsewhere member 4 2 loss 0.5",
        "now: 3 of 3 members of view 3 are here, 1 and dddddddd too",
        "slow: peer 1 is the slowest: its compute is 3.1 times the median of the others",
        "3.0 s ago: 2 is dead: its process has ended",
    ]


def test_each_number_for_programs_is_finite_or_a_word() -> None:
    odd = looked(
        A,
        "0",
        Condition.RUNNING,
        (record(8.0, Kind.RESIDUAL_LOST, 6)._replace(value=math.nan),),
        pace=Pace(steps_per_s=math.inf),
        others=(Other(peer_id=B, view=3, step=4, steps_per_s=2.0, loss=-math.inf),),
    )
    found = json.loads(json.dumps(for_programs({"pond": [odd]}), allow_nan=False))["swarms"]["pond"]
    (peer,) = found["peers"]
    assert (found["steps_per_s"], peer["records"][0]["value"]) == ("inf", "nan")
    assert (peer["snapshot"]["pace"]["steps_per_s"], peer["snapshot"]["others"][0]["loss"]) == ("inf", "-inf")


def test_links_to_other_hosts_are_shown_the_longest_first() -> None:
    some = tuple(
        Link(peer_id=f"{number:x}" * 16, rtt_us=100 * number, bytes_per_s=25_000_000, sent_bytes=1_500_000_000)
        for number in range(1, 7)
    )
    lines = screen({"pond": [looked(A, "0", Condition.RUNNING, links=some)]})
    (line,) = [line for line in lines if line.startswith("links of 0: ")]
    assert line.startswith("links of 0: 66666666 0.6 ms, 25 MB/s, 1.5e+03 MB sent; 55555555 0.5 ms")
    whole = for_programs({"pond": [looked(A, "0", Condition.RUNNING, links=some)]})["swarms"]["pond"]["peers"][0]
    assert whole["snapshot"]["links"][0] == {
        **{"peer_id": "1" * 16, "rtt_us": 100, "bytes_per_s": 25_000_000, "sent_bytes": 1_500_000_000}
    }


def test_for_whom_a_peer_waited_a_moment_ago_is_not_shown() -> None:
    assert WAITS.seen.snapshot is not None
    before = replace(WAITS.seen.snapshot, time_ns=9 * S)
    lines = screen({"pond": [replace(WAITS, seen=replace(WAITS.seen, snapshot=before))]})
    assert any("waiting for the others to finish step 7, 500 ms" in line for line in lines)


def test_a_swarm_of_which_all_are_dead_comes_last_and_says_how_far_it_was() -> None:
    starting = PeerStatus(PageContent(identity(B), None, ()), Condition.RUNNING, 0.5, 10 * S)
    lines = screen({"bog": [DEAD], "pond": [starting]})
    assert lines[0] == "swarm pond: starting"
    assert "swarm bog: no peer lives here; the last known step is 5, in view 3" in lines
    assert not any("elsewhere" in line for line in lines)


def test_programs_get_the_same_as_strict_json() -> None:
    text = json.dumps(for_programs(POND), allow_nan=False)
    pond = json.loads(text)["swarms"]["pond"]
    assert (pond["view"], pond["members"], pond["step"], pond["steps_per_s"]) == (3, [A, B, D], 6, 2.5)
    first, second, third = pond["peers"]
    assert (first["name"], first["condition"], first["doing_since_s"]) == ("0", "running", 0.5)
    assert first["snapshot"]["logged"] == {"loss": 0.25, "bad": "nan"}
    assert first["snapshot"]["waiting"]["peers"] == [B]
    assert (second["condition"], second["doing"]) == ("stopped", "computing step 7")
    assert [(each["kind"], each["step"]) for each in third["records"]] == [("committed", 5), ("submitted", 6)]


def test_what_was_logged_is_shown_by_its_name() -> None:
    half = RecordRing(memoryview(bytearray(RING_BYTES)), lambda: S)
    write_down(half, 6, {"loss": 0.5, "bad": math.inf})
    (first, second) = for_programs({"pond": [looked(A, "0", Condition.RUNNING, tuple(half.latest()))]})["swarms"][
        "pond"
    ]["peers"][0]["records"]
    assert (first["kind"], first["name"], first["value"], first["view"], first["peer_id"]) == (
        "logged",
        "loss",
        0.5,
        0,
        "",
    )
    assert (second["name"], second["value"]) == ("bad", "inf")


def test_why_there_is_another_view_is_shown_in_words() -> None:
    records = tuple(
        Record(1, 1, kind, int(how), 2, 5, 3, "", 0.0)
        for kind, how in (
            (Kind.INSTALLED, Why.CAME | Why.DIED),
            (Kind.REDO, Why.AGAIN),
            (Kind.INSTALLED, 0),
            (Kind.OUT, How.SILENCE),
        )
    )
    found = for_programs({"pond": [looked(A, "0", Condition.RUNNING, records)]})
    shown = [each["how"] for each in found["swarms"]["pond"]["peers"][0]["records"]]
    assert shown == ["came, died", "again", "unknown", "silence"]


def test_a_record_of_a_later_version_is_shown_by_its_number() -> None:
    odd = Record(1, 1, 999, 9, 0, 5, 0, "", 0.0)
    found = for_programs({"pond": [looked(A, "0", Condition.RUNNING, (odd,))]})
    assert [(each["kind"], each["how"]) for each in found["swarms"]["pond"]["peers"][0]["records"]] == [(999, 9)]


def test_a_peer_that_was_asked_from_elsewhere_has_no_records() -> None:
    told = looked(A, "0", Condition.ELSEWHERE, phase="ACTIVE", step=5)
    assert "0 elsewhere rank 0 5 0 active" in screen({"pond": [told]})
