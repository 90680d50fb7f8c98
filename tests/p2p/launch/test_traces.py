"""Traces that a launch keeps beside receipts."""

import json
import math
import os
from pathlib import Path

from p2p.host.processes import read_host
from p2p.launch.peer_slots import ExitOutcome, PeerSlot
from p2p.launch.traces import ENDS, Traces
from p2p.telemetry.records import Kind
from p2p.telemetry.trace import read_trace
from tests.p2p.telemetry.pages import A, identity, page, snapshot


def place() -> PeerSlot:
    found = PeerSlot(0, "0")
    found.snapshot = snapshot(identity(), step=3, has_begun=True)
    return found


def test_all_records_are_kept_also_those_of_a_peer_that_has_removed_its_page(tmp_path: Path) -> None:
    pages, receipts = tmp_path / "pages", tmp_path / "receipts"
    pages.mkdir()
    made, its_place, said = page(pages, identity()), place(), list[str]()
    traces = Traces(pages, receipts, said.append)
    assert traces.deadline == math.inf
    made.loop.note(Kind.COMMITTED, 1)
    traces.follow(its_place)
    traces.poll(0.0)
    made.loop.note(Kind.COMMITTED, 2)
    traces.poll(0.01)  # before the next look is due
    who, records = read_trace(receipts / "traces" / f"{A}.trace")
    assert (who, [record.step for record in records]) == (identity(), [1])
    made.remove()
    its_place.exit_outcome = ExitOutcome.of(1, has_begun=True)
    traces.end(its_place, 7, "ValueError: no", was_asked=False)
    assert [record.step for record in read_trace(receipts / "traces" / f"{A}.trace")[1]] == [1, 2]
    (line,) = (receipts / ENDS.format(host=read_host())).read_text().splitlines()
    assert json.loads(line) == {
        **{"peer_id": A, "name": "0", "host": "f" * 16, "time_ns": 7, "code": 1, "how": "ended with exit code 1"},
        **{"has_failed": True, "last_words": "ValueError: no", "missed": 0},
    }
    traces.end(its_place, 8, "", was_asked=True)
    assert said == []
    assert not json.loads((receipts / ENDS.format(host=read_host())).read_text().splitlines()[1])["has_failed"]


def test_where_nothing_can_be_written_that_is_said_once_and_the_run_goes_on(tmp_path: Path) -> None:
    made, its_place, said = page(tmp_path, identity()), place(), list[str]()
    (tmp_path / "file").touch()
    traces = Traces(tmp_path, tmp_path / "file", said.append)
    made.loop.note(Kind.COMMITTED, 1)
    traces.follow(its_place)
    traces.poll(0.0)
    its_place.exit_outcome = ExitOutcome.of(-9, has_begun=True)
    traces.end(its_place, 7, "", was_asked=False)
    assert said == [
        f"no more traces are written to {tmp_path / 'file'}: {os.strerror(20)}; receipts are the peers' own"
    ]


def test_without_receipts_nothing_is_read(tmp_path: Path) -> None:
    traces = Traces(tmp_path, None, print)
    traces.follow(place())
    assert traces.deadline == math.inf
