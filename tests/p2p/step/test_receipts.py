import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.recorded import read_records
from p2p.errors import ShoalError
from p2p.step.receipts import Contribution, Ledger, Receipt, read_receipts, to_line
from p2p.telemetry.records import Kind
from p2p.telemetry.trace import BATCH, read_trace, trace_path
from tests.p2p.telemetry.pages import A, identity, page

numbers = st.integers(-1, 2**63 - 1)
contributions = st.builds(
    Contribution,
    st.text(max_size=16),
    numbers,
    st.lists(st.tuples(numbers, numbers), max_size=3).map(tuple),
    numbers,
    numbers,
)
receipts = st.builds(
    Receipt,
    lineage=st.text(max_size=32),
    view_number=numbers,
    step=numbers,
    contributions=st.lists(contributions, max_size=4).map(tuple),
    algorithms=st.lists(st.text(max_size=10), max_size=3).map(tuple),
    digest=st.text(max_size=32),
    state_digest=st.text(max_size=32),
    unused=st.lists(st.tuples(numbers, numbers), max_size=3).map(tuple),
    returned=st.lists(st.tuples(numbers, numbers), max_size=3).map(tuple),
)


def receipt(step: int) -> Receipt:
    return Receipt(
        lineage="ab",
        view_number=2,
        step=step,
        contributions=(Contribution("a" * 16, 5, ((10, 2), (20, 1)), 3, 3), Contribution("b" * 16, 6, (), 4, 9)),
        algorithms=("ring", "one-shot"),
        digest="cd",
        state_digest="",
    )


def test_a_receipt_counts_the_samples_and_the_weight_of_all_members() -> None:
    assert (receipt(3).num_samples, receipt(3).weight) == (7, 12)


@given(st.lists(receipts, max_size=5))
def test_what_is_recorded_is_read_again(tmp_path_factory: pytest.TempPathFactory, some: list[Receipt]) -> None:
    folder = tmp_path_factory.mktemp("ledger") / "made" / "here"
    ledger = Ledger(folder, "me", pytest.fail)
    for each in some:
        ledger.record(each)
    ledger.close()
    assert read_receipts(folder / "me.receipts.jsonl") == some


def test_a_record_is_on_disk_as_soon_as_it_is_made(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, "me", pytest.fail)
    ledger.record(receipt(0))
    assert read_receipts(tmp_path / "me.receipts.jsonl") == [receipt(0)]
    ledger.close()


def test_a_trace_is_written_a_batch_at_a_time_and_the_rest_at_the_end(tmp_path: Path) -> None:
    own, folder = page(tmp_path, identity()), tmp_path / "receipts"
    ledger = Ledger(folder, A, pytest.fail, own.path)

    def num_kept() -> int:
        return len(read_trace(trace_path(folder, A))[1])

    for step in range(BATCH - 1):
        own.training.note(Kind.BEGUN, step)
        own.loop.note(Kind.COMMITTED, step)
        ledger.follow()
    assert num_kept() == 0 and len(read_records(trace_path(folder, A), own.path)) == 2 * BATCH - 2
    own.loop.note(Kind.LEAVES)
    ledger.follow()
    assert num_kept() == 2 * BATCH - 1
    own.loop.note(Kind.LEFT)
    assert len(read_records(trace_path(folder, A), own.path)) == 2 * BATCH
    own.remove()
    assert num_kept() == len(read_records(trace_path(folder, A), own.path)) == 2 * BATCH - 1
    ledger.close()
    who, records = read_trace(trace_path(folder, A))
    assert who == identity() and len(records) == 2 * BATCH
    assert sorted(path.name for path in folder.rglob("*")) == [f"{A}.receipts.jsonl", f"{A}.trace", "traces"]


def test_a_ledger_without_room_says_so_once_and_writes_no_more(tmp_path: Path) -> None:
    (tmp_path / f"{A}.receipts.jsonl").symlink_to("/dev/full")
    told: list[str] = []
    own = page(tmp_path, identity())
    ledger = Ledger(tmp_path, A, told.append, own.path)
    for step in range(3):
        ledger.record(receipt(step))
        own.loop.note(Kind.COMMITTED, step)
    ledger.close()
    assert told == [f"receipts cannot be written to {tmp_path}: [Errno 28] No space left on device"]
    assert read_trace(trace_path(tmp_path, A))[1] == []


def test_a_ledger_without_room_for_a_trace_writes_no_more_receipts(tmp_path: Path) -> None:
    told: list[str] = []
    own, path = page(tmp_path, identity()), trace_path(tmp_path, A)
    ledger = Ledger(tmp_path, A, told.append, own.path)
    ledger.record(receipt(0))
    path.unlink()
    path.symlink_to("/dev/full")
    for step in range(BATCH):
        own.loop.note(Kind.COMMITTED, step)
    ledger.follow()
    ledger.record(receipt(1))
    ledger.close()
    assert told == [f"receipts cannot be written to {tmp_path}: [Errno 28] No space left on device"]
    assert read_receipts(tmp_path / f"{A}.receipts.jsonl") == [receipt(0)]


def test_receipts_and_their_folder_are_private_at_any_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        Ledger(tmp_path / "receipts", "a" * 16, pytest.fail).close()
    finally:
        os.umask(before)
    folder = tmp_path / "receipts"
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_second_ledger_of_a_peer_adds_to_the_first(tmp_path: Path) -> None:
    for step in (0, 1):
        ledger = Ledger(tmp_path, "me", pytest.fail)
        ledger.record(receipt(step))
        ledger.close()
    assert read_receipts(tmp_path / "me.receipts.jsonl") == [receipt(0), receipt(1)]


@given(st.integers(1, len(to_line(receipt(1)))))
def test_a_line_that_a_death_cut_short_is_left_out(tmp_path_factory: pytest.TempPathFactory, missing: int) -> None:
    path = tmp_path_factory.mktemp("ledger") / "torn"
    path.write_text((to_line(receipt(0)) + to_line(receipt(1)))[:-missing])
    assert read_receipts(path) == [receipt(0)]


@given(receipts)
def test_a_receipt_is_one_line_of_ascii_and_equal_ones_are_equal_bytes(one: Receipt) -> None:
    line = to_line(one)
    assert line.isascii() and line.splitlines(keepends=True) == [line]
    twin = Receipt(**{name: getattr(one, name) for name in reversed(one.__slots__)})
    assert to_line(twin) == line


def test_the_samples_of_a_receipt_are_those_of_all_members() -> None:
    assert receipt(0).num_samples == 7


def test_nothing_is_written_where_no_folder_is_named() -> None:
    assert Ledger.open(None, "me", pytest.fail) is None


def test_a_folder_that_cannot_be_written_is_named_with_the_reason(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path, "me", pytest.fail)
    assert ledger is not None
    ledger.close()
    (tmp_path / "file").touch()
    with pytest.raises(ShoalError, match=r"receipts cannot be written to .*file: .*File exists"):
        Ledger.open(tmp_path / "file", "me", pytest.fail)


class Full(type(Path())):  # type: ignore[misc]
    """A folder on a disk that is full."""

    def mkdir(self, *_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_disk_that_is_full_at_the_start_is_said_and_ends_nothing() -> None:
    said: list[str] = []
    assert Ledger.open(Full("/receipts"), "me", said.append) is None
    assert said == ["receipts cannot be written to /receipts: [Errno 28] No space left on device"]
