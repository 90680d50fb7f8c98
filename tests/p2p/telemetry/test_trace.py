from pathlib import Path

import pytest

from p2p.errors import RemoteProtocolError
from p2p.telemetry.records import NUM_RECORDS, Kind, unpack_record
from p2p.telemetry.snapshot import MOST_ARGUMENTS
from p2p.telemetry.trace import Tail, read_trace, write_trace
from tests.p2p.telemetry.pages import A, identity, page, snapshot


def steps(raw: list[bytes]) -> list[int]:
    return [unpack_record(each).step for each in raw]


def test_each_record_is_read_once_and_those_of_a_half_in_order(tmp_path: Path) -> None:
    own = page(tmp_path, identity())
    tail = Tail(own.path)
    assert tail.read() == []
    own.loop.note(Kind.COMMITTED, 1)
    own.training.note(Kind.BEGUN, 2)
    assert steps(tail.read()) == [1, 2]
    assert tail.read() == []
    for step in range(3, NUM_RECORDS + 3):  # once around
        own.loop.note(Kind.COMMITTED, step)
    assert steps(tail.read()) == list(range(3, NUM_RECORDS + 3))
    assert tail.num_missed == 0


def test_what_was_overwritten_is_counted(tmp_path: Path) -> None:
    own = page(tmp_path, identity())
    tail = Tail(own.path)
    for step in range(1, NUM_RECORDS + 11):
        own.loop.note(Kind.COMMITTED, step)
    assert steps(tail.read()) == list(range(11, NUM_RECORDS + 11))
    assert tail.num_missed == 10


def test_a_page_that_its_peer_has_removed_is_still_read(tmp_path: Path) -> None:
    own = page(tmp_path, identity())
    tail = Tail(own.path)
    own.remove()
    own.loop.note(Kind.LEFT)
    own.show(snapshot(identity()))
    assert [unpack_record(each).kind for each in tail.read()] == [Kind.LEFT]
    shown = tail.snapshot()
    assert shown is not None and shown.identity == identity() == tail.identity


def test_a_trace_has_all_that_was_appended_in_the_order_of_time(tmp_path: Path) -> None:
    own = page(tmp_path, identity())
    tail = Tail(own.path)
    path = tmp_path / f"{A}.trace"
    own.loop.note(Kind.FINISHED, 1)
    own.training.note(Kind.RECEIVED, 1)
    own.loop.note(Kind.COMMITTED, 2)
    write_trace(path, tail.identity, tail.read())
    own.training.note(Kind.BEGUN, 2)
    write_trace(path, tail.identity, tail.read())
    who, records = read_trace(path)
    assert who == identity()
    assert [record.kind for record in records] == [Kind.FINISHED, Kind.RECEIVED, Kind.COMMITTED, Kind.BEGUN]
    path.write_bytes(path.read_bytes()[:-1])
    assert len(read_trace(path)[1]) == 3


def test_a_trace_that_is_cut_short_is_read_as_far_as_it_is_whole(tmp_path: Path) -> None:
    """A full disk leaves an empty file."""
    path = tmp_path / f"{A}.trace"
    own = page(tmp_path, identity())
    write_trace(path, identity(), [])
    num_bytes = path.stat().st_size
    own.loop.note(Kind.COMMITTED, 1)
    write_trace(path, identity(), Tail(own.path).read())
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert read_trace(path) == (identity() if length >= num_bytes else None, [])


def test_what_is_no_page_and_no_trace_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"x")
    path.chmod(0o600)
    with pytest.raises(RemoteProtocolError, match="is not a page of this version"):
        Tail(path)
    with pytest.raises(RemoteProtocolError, match="we read traces of version 1"):
        read_trace(path)


def test_a_trace_begins_with_the_arguments_of_the_script_and_its_commit(tmp_path: Path) -> None:
    """Arguments of the maximal length, with any characters."""
    mine = identity(arguments="\N{FISH}" * MOST_ARGUMENTS, commit="0123456789" * 4, script="\N{FISH}" * 60 + ".py")
    own = page(tmp_path, mine)
    write_trace(tmp_path / "a.trace", Tail(own.path).identity, [])
    assert read_trace(tmp_path / "a.trace")[0] == mine
