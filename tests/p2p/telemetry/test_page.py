"""The page of a peer as seen by others: during writes, after its death, and invalid pages."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from p2p.errors import RegistryError, RemoteProtocolError
from p2p.telemetry.page import PAGE_BYTES, Page, page_path, read_page
from p2p.telemetry.records import Kind
from tests.p2p.telemetry.pages import A, identity, page, snapshot

WRITER = """
import sys
from pathlib import Path
from p2p.telemetry.records import Kind
from tests.p2p.telemetry.pages import identity, page, snapshot

made = page(Path(sys.argv[1]), identity())
number = 0
print("here", flush=True)
while True:
    number += 1
    half = (made.loop, made.training)[number % 2]
    half.note(Kind.COMMITTED, number, view=number, peer=number, size=number, value=number)
    if number % 1000 == 0:
        made.show(snapshot(made.identity, step=number, reason="x" * (number // 1000 % 7000)))
"""


def test_what_stands_in_a_page_is_read_from_outside(tmp_path: Path) -> None:
    who = identity(name="3")
    made = page(tmp_path, who)
    assert (read_page(made.path).identity, read_page(made.path).snapshot) == (who, None)
    made.training.note(Kind.SUBMITTED, 1)
    made.loop.note(Kind.COMMITTED, 1)
    for step in range(5):
        made.show(snapshot(who, step=step))
        seen = read_page(made.path)
        assert seen.snapshot == snapshot(who, step=step)
    assert [(record.kind, record.step) for record in seen.records] == [(Kind.SUBMITTED, 1), (Kind.COMMITTED, 1)]
    assert list(seen.records) == made.latest()
    assert made.path.stat().st_mode & 0o777 == 0o600
    assert made.path.stat().st_size == PAGE_BYTES


def test_a_snapshot_that_was_cut_short_leaves_the_one_before(tmp_path: Path) -> None:
    made = page(tmp_path, identity())
    for step in (1, 2):
        made.show(snapshot(made.identity, step=step))
    content = bytearray(made.path.read_bytes())
    at = content.index(b'"step":2')
    made.path.write_bytes(content[:at] + b'"step":7' + content[at + 8 :])
    found = read_page(made.path).snapshot
    assert found is not None and found.step == 1


def test_a_writer_that_is_read_all_the_time_and_then_killed_leaves_whole_records(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", WRITER, tmp_path], stdout=subprocess.PIPE, cwd=os.getcwd()) as writer:
        assert writer.stdout is not None and writer.stdout.readline()
        path = page_path(tmp_path, A)
        steps = [check(path) for _ in range(50)]
        writer.send_signal(signal.SIGSTOP)
        check(path)
        writer.kill()
    assert check(path) >= max(steps) > 0


def check(path: Path) -> int:
    """Read and check a page; returns the last number in it."""
    seen = read_page(path)
    for number, _, kind, how, size, step, view, peer_id, value in seen.records:
        assert (kind, how) == (Kind.COMMITTED, 0) and number == (step + 1) // 2
        assert size == step == view == int(peer_id, 16) == value
    assert seen.snapshot is None or len(seen.snapshot.reason) == seen.snapshot.step // 1000 % 7000
    return max((record.step for record in seen.records), default=0)


@pytest.mark.parametrize("spoil", ["version", "identity", "size"])
def test_what_is_no_page_of_this_version_is_refused(spoil: str, tmp_path: Path) -> None:
    path = page(tmp_path, identity()).path
    content = bytearray(path.read_bytes())
    if spoil == "version":
        content[4] = 99
    elif spoil == "identity":
        content[30] ^= 1
    else:
        content = content[:-1]
    path.write_bytes(content)
    with pytest.raises(RemoteProtocolError, match=rf"{A}\.page"):
        read_page(path)


def test_a_page_that_others_could_have_written_is_not_read(tmp_path: Path) -> None:
    path = page(tmp_path, identity()).path
    path.chmod(0o622)
    with pytest.raises(PermissionError, match="no private file of ours"):
        read_page(path)


def test_a_page_is_made_once_and_removed_by_its_process_only(tmp_path: Path) -> None:
    made = page(tmp_path, identity())
    with pytest.raises(RegistryError, match="cannot make the page"):
        page(tmp_path, identity())
    pid = os.fork()
    if not pid:
        made.remove()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert made.path.exists()
    made.remove()
    made.remove()
    assert not made.path.exists()
    made.loop.note(Kind.LEFT)  # mapped memory stays
    assert isinstance(made, Page)


def test_of_a_page_for_which_there_is_no_room_nothing_stays(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (PAGE_BYTES - 1, before[1]))
        with pytest.raises(RegistryError, match=r"cannot make the page .*; make space there"):
            page(tmp_path, identity())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert not any(tmp_path.iterdir())
