"""Law: reading returns the newest completely written record, or none; never a mixture, never an error."""

import os
import random
import resource
import signal
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from gossip import Contact, Member, Seat, View
from gossip.messages import AcceptorRecord, Ballot, Vote
from gossip.view import MOST_MEMBERS
from p2p.errors import RegistryError, RemoteProtocolError
from p2p.host.acceptor_page import (
    HEADER_BYTES,
    NOTHING,
    PAGE_BYTES,
    SLOT_BYTES,
    RecordPage,
    RecordReader,
    pack_slot,
    read_boot_id,
    record_path,
    unpack_page,
)
from p2p.host.entry import Role
from p2p.host.registry import Registry
from p2p.net.wire import Codec
from p2p.version import VERSION

A, B = Member("a" * 16, 0x17F0_0000_0000_0001), Member("b" * 16, 2)
CODEC = Codec([AcceptorRecord], is_bounded=False)
"""A codec for records of any size."""
BOOT = b"b" * 16
REPOSITORY = Path(__file__).parents[3]
PAGE_OFFSETS = st.integers(0, PAGE_BYTES - 1)


def record(number: int, *, size: int = 16) -> AcceptorRecord:
    """Records of different numbers differ in every part; the lineage has `size` bytes."""
    view = View(bytes([number % 256]) * size, number + 1, 1, (Seat(A, 1),), b"")
    successor = View(view.lineage, number + 2, 1, (Seat(A, 1), Seat(B, number + 2)), view.hash)
    return AcceptorRecord(view, Ballot(number, 0), Vote(Ballot(number, 1), successor))


def slot(number: int, *, boot: bytes = BOOT, size: int = 16) -> bytes:
    return pack_slot(number, boot, CODEC.encode(record(number, size=size)))


def page_of(*slots: bytes) -> bytes:
    """A page with these bytes at the starts of slot 0 and slot 1."""
    return b"".join(content.ljust(SLOT_BYTES, b"\0") for content in slots)


def found(page: bytes) -> AcceptorRecord | None:
    try:
        record = CODEC.decode(unpack_page(page, BOOT))
    except RemoteProtocolError:
        return None
    assert isinstance(record, AcceptorRecord)
    return record


@contextmanager
def largest_file(num_bytes: int) -> Iterator[None]:
    """Limits files to `num_bytes`; the kernel refuses more, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def page(tmp_path: Path) -> Iterator[RecordPage]:
    page = RecordPage(tmp_path, A, CODEC.encode)
    yield page
    page.close()


@pytest.fixture
def reader(page: RecordPage) -> Iterator[RecordReader]:
    reader = RecordReader.open(page.path.parent, A, CODEC.decode)
    assert reader is not None
    yield reader
    reader.close()


def test_the_last_record_is_read_after_every_write(page: RecordPage, reader: RecordReader) -> None:
    for number in range(1, 6):
        page.write(record(number))
        assert (reader.read(), reader.why) == (record(number), "")


def test_a_record_without_a_vote_is_read_as_it_was(page: RecordPage, reader: RecordReader) -> None:
    bare = AcceptorRecord(record(1).view, Ballot(0, 0), None)
    page.write(bare)
    assert reader.read() == bare


def test_two_views_of_the_most_members_at_the_longest_addresses_fit(page: RecordPage, reader: RecordReader) -> None:
    socket, address = "ipc:///" + "x" * 106, "tcp://" + "x" * 253 + ":65535"
    contact = Contact(socket, socket, 2**64 - 1, 2**64 - 1, "h" * 64, address, address)
    seats = tuple(Seat(Member(f"{i:016x}", 2**64 - 1), 2**24 - 2, contact) for i in range(MOST_MEMBERS))
    view = View(b"l" * 16, 2**24 - 2, 100, seats, b"p" * 16, founder="f" * 16)
    crowded = AcceptorRecord(view, Ballot(2**40, 99), Vote(Ballot(2**40, 98), replace(view, number=2**24 - 1)))
    assert Codec([AcceptorRecord]).decode(CODEC.encode(crowded)) == crowded  # peers accept it
    page.write(crowded)
    assert reader.read() == crowded


def test_a_page_that_was_never_written_holds_no_record(page: RecordPage, reader: RecordReader) -> None:
    assert reader.read() is None
    assert reader.why == NOTHING
    page.write(record(1))
    assert (reader.read(), reader.why) == (record(1), "")


def test_the_page_is_private_and_has_all_its_space_from_the_start(page: RecordPage) -> None:
    status = page.path.stat()
    assert stat.filemode(status.st_mode) == "-rw-------"
    assert status.st_size == PAGE_BYTES <= status.st_blocks * 512


def test_readers_do_not_disturb_each_other(page: RecordPage, reader: RecordReader) -> None:
    page.write(record(1))
    other = RecordReader.open(page.path.parent, A, CODEC.decode)
    assert other is not None
    assert reader.read() == other.read() == record(1)
    other.close()
    page.write(record(2))
    assert reader.read() == record(2)


def test_who_opened_the_page_can_read_it_after_it_was_closed_and_removed(
    page: RecordPage, reader: RecordReader
) -> None:
    page.write(record(1))
    page.close()
    page.remove()
    page.remove()
    assert not page.path.exists()
    assert reader.read() == record(1)
    assert RecordReader.open(page.path.parent, A, CODEC.decode) is None


def test_closing_keeps_the_file(page: RecordPage, reader: RecordReader) -> None:
    page.write(record(1))
    page.close()
    page.close()
    assert reader.read() == record(1)


def test_a_forked_child_does_not_remove_the_page(page: RecordPage) -> None:
    child = os.fork()
    if child == 0:
        page.remove()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert page.path.exists()


def test_a_member_has_one_page_and_its_next_incarnation_another(page: RecordPage) -> None:
    with pytest.raises(RegistryError, match=r"cannot create the acceptor record .*: File exists; .* start this peer"):
        RecordPage(page.path.parent, A, CODEC.encode)
    RecordPage(page.path.parent, Member(A.peer_id, A.incarnation + 1), CODEC.encode).close()
    assert page.path.exists()


def test_a_link_in_place_of_a_new_page_is_not_followed(tmp_path: Path) -> None:
    record_path(tmp_path, A).symlink_to(tmp_path / "target")
    with pytest.raises(RegistryError, match="File exists"):
        RecordPage(tmp_path, A, CODEC.encode)
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize(
    "member", [Member("../" + "a" * 13, 1), Member("a", 1), Member("a" * 16, -1), Member("a" * 16, 2**64)]
)
def test_a_member_that_no_registry_takes_has_no_page(tmp_path: Path, member: Member) -> None:
    with pytest.raises(ValueError, match="16 hex digits"):
        RecordPage(tmp_path, member, CODEC.encode)
    assert RecordReader.open(tmp_path, member, CODEC.decode) is None


def test_a_record_that_fills_its_slot_is_written_and_a_larger_one_is_not(
    page: RecordPage, reader: RecordReader
) -> None:
    payload_bytes = SLOT_BYTES - HEADER_BYTES
    lineage_bytes = (payload_bytes - len(CODEC.encode(record(1, size=70_000)))) // 2 + 70_000
    page.write(record(1, size=lineage_bytes))
    with pytest.raises(ValueError, match=rf"the acceptor record takes \d+ bytes, a slot holds {payload_bytes}"):
        page.write(record(2, size=lineage_bytes + 1))
    assert reader.read() == record(1, size=lineage_bytes)


def test_a_slot_takes_a_payload_up_to_its_last_byte_and_no_more() -> None:
    largest = SLOT_BYTES - HEADER_BYTES
    assert len(pack_slot(1, BOOT, b"x" * largest)) == SLOT_BYTES
    with pytest.raises(ValueError, match=f"takes {largest + 1} bytes, a slot holds {largest}"):
        pack_slot(1, BOOT, b"x" * (largest + 1))


def test_a_page_that_finds_no_space_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    with largest_file(SLOT_BYTES), pytest.raises(RegistryError, match=r"cannot allocate .*; make space there, or set"):
        RecordPage(tmp_path, A, CODEC.encode)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(RegistryError, match=r"cannot create .*/gone/.*: No such file or directory"):
        RecordPage(tmp_path / "gone", A, CODEC.encode)


@pytest.mark.parametrize("num_bytes", [0, 1, HEADER_BYTES, 100])
def test_a_write_that_was_cut_short_is_an_error_and_the_record_before_stands(
    page: RecordPage, reader: RecordReader, num_bytes: int
) -> None:
    page.write(record(1))
    page.write(record(2))
    with largest_file(SLOT_BYTES + num_bytes), pytest.raises(RegistryError, match="cannot write the acceptor record"):
        page.write(record(3))
    assert reader.read() == record(2)
    page.write(record(3))
    assert reader.read() == record(3)


def test_of_two_records_the_greater_number_counts_up_to_the_last_one() -> None:
    last = 2**64 - 1
    payloads = [CODEC.encode(record(number)) for number in (1, 2)]
    assert found(page_of(pack_slot(last - 1, BOOT, payloads[0]), pack_slot(last, BOOT, payloads[1]))) == record(2)
    assert found(page_of(pack_slot(last - 1, BOOT, payloads[0]), pack_slot(1, BOOT, payloads[1]))) == record(1)


def test_a_record_in_the_wrong_slot_does_not_count() -> None:
    assert found(page_of(slot(3), slot(1))) == record(1)


def test_a_record_of_another_boot_does_not_count_and_neither_does_the_one_before_it() -> None:
    page = page_of(slot(2, boot=b"o" * 16), slot(1))
    with pytest.raises(RemoteProtocolError, match=f"record 2 is of boot {'6f' * 16}, this is boot {BOOT.hex()}"):
        unpack_page(page, BOOT)


def test_a_page_of_this_boot_says_so(page: RecordPage, reader: RecordReader) -> None:
    page.write(record(1))
    page.path.write_bytes(page_of(b"", slot(1, boot=read_boot_id())))
    assert reader.read() == record(1)
    page.path.write_bytes(page_of(b"", slot(1)))
    assert reader.read() is None
    assert reader.why.endswith(f"this is boot {read_boot_id().hex()}")


def test_a_finished_slot_without_a_record_is_not_replaced_by_the_one_before() -> None:
    assert found(page_of(pack_slot(2, BOOT, b"\x93%c\x00\x00" % VERSION), slot(1))) is None


@pytest.mark.parametrize(
    ("offset", "said"), [(0, "magic b'THRC'"), (4, f"version {VERSION + 1}; we read .* {VERSION}")]
)
def test_another_magic_or_version_is_named(offset: int, said: str) -> None:
    content = bytearray(page_of(b"", slot(1)))
    content[SLOT_BYTES + offset] += 1
    with pytest.raises(RemoteProtocolError, match=f"slot 1 has .*{said}"):
        unpack_page(bytes(content), BOOT)


def test_a_length_beyond_the_slot_is_refused_even_if_its_checksum_is_right() -> None:
    head = struct.pack("<4sI16sQI", b"SHRC", VERSION, BOOT, 2, SLOT_BYTES)
    payload = CODEC.encode(record(2)).ljust(SLOT_BYTES - HEADER_BYTES, b"x")
    assert found(page_of(head + xxhash.xxh3_128_digest(head + payload) + payload, slot(1))) == record(1)


@given(size=st.integers(0, PAGE_BYTES - 1))
def test_a_page_that_was_cut_short_holds_no_record(size: int) -> None:
    assert found(page_of(slot(2), slot(1))[:size]) is None


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_garbage_is_no_record(first: bytes, second: bytes) -> None:
    assert found(page_of(first, second)) is None


@given(st.binary(max_size=200))
def test_a_payload_of_garbage_with_its_checksum_is_no_record_and_no_other_error(payload: bytes) -> None:
    assert found(page_of(pack_slot(2, BOOT, payload), slot(1))) is None


@given(number=st.integers(1, 9), before=st.integers(16, 600), size=st.integers(16, 600), data=st.data())
def test_a_write_that_stopped_anywhere_leaves_the_record_before_it(
    number: int, before: int, size: int, data: st.DataObject
) -> None:
    """Any of the bytes may have reached the file: the kernel guarantees no order."""
    old, new = slot(number, size=before), slot(number + 2, size=size)
    stop = data.draw(st.integers(0, len(new)), label="stop")
    start = data.draw(st.integers(0, stop), label="start")
    torn = bytearray(old.ljust(SLOT_BYTES, b"\0"))
    torn[start:stop] = new[start:stop]
    slots = [b"", b""]
    slots[number % 2], slots[(number + 1) % 2] = bytes(torn), slot(number + 1)
    finished = torn.startswith(new)
    assert found(page_of(*slots)) == (record(number + 2, size=size) if finished else record(number + 1))


@given(st.lists(st.tuples(PAGE_OFFSETS | st.integers(0, 400), st.integers(1, 255)), min_size=1, max_size=8))
def test_flipped_bits_anywhere_never_make_another_record(flips: list[tuple[int, int]]) -> None:
    content = bytearray(page_of(slot(2), slot(1)))
    for offset, mask in flips:
        content[offset] ^= mask
    assert found(bytes(content)) in (record(2), record(1), None)


@given(st.lists(st.tuples(st.integers(16, 3000), st.none() | st.integers(0, 3000)), max_size=12))
@settings(deadline=None)
def test_whatever_is_cut_short_on_the_way_the_last_finished_record_is_read(
    writes: list[tuple[int, int | None]],
) -> None:
    """Each write has a size, and the number of bytes after which it stops, or none."""
    with TemporaryDirectory() as folder:
        page = RecordPage(Path(folder), A, CODEC.encode)
        reader = RecordReader.open(Path(folder), A, CODEC.decode)
        assert reader is not None
        last, number = None, 0
        for size, stop in writes:
            attempt = record(number + 1, size=size)
            limit = PAGE_BYTES if stop is None else (number + 1) % 2 * SLOT_BYTES + stop
            try:
                with largest_file(limit):
                    page.write(attempt)
                last, number = attempt, number + 1
            except RegistryError:
                assert stop is not None
            assert reader.read() == last
        page.close()
        reader.close()


def test_an_empty_file_holds_no_record(page: RecordPage, reader: RecordReader) -> None:
    page.write(record(1))
    os.truncate(page.path, 0)
    assert reader.read() is None
    assert reader.why == f"the page has 0 bytes and should have {PAGE_BYTES}"


def test_who_has_left_has_no_record_which_is_no_warning(page: RecordPage, caplog: pytest.LogCaptureFixture) -> None:
    """The peer has just left: its entry was read before."""
    page.remove()
    assert RecordReader.open(page.path.parent, B, CODEC.decode) is None and caplog.text == ""


def test_a_link_to_a_page_is_not_read(page: RecordPage, caplog: pytest.LogCaptureFixture) -> None:
    record_path(page.path.parent, B).symlink_to(page.path)
    assert RecordReader.open(page.path.parent, B, CODEC.decode) is None
    assert f"the acceptor record of peer {B} cannot be opened" in caplog.text


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_neither_a_folder_nor_a_pipe_is_read_or_waited_for(
    tmp_path: Path, make: type[Path], caplog: pytest.LogCaptureFixture
) -> None:
    make(record_path(tmp_path, A))
    assert RecordReader.open(tmp_path, A, CODEC.decode) is None
    assert "no private file of ours" in caplog.text


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_may_write_is_not_read(
    page: RecordPage, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    page.path.chmod(mode)
    assert RecordReader.open(page.path.parent, A, CODEC.decode) is None
    assert f"{stat.filemode(stat.S_IFREG | mode)} of user {os.geteuid()}, no private file" in caplog.text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file away")
def test_a_file_of_another_user_is_not_read(page: RecordPage, caplog: pytest.LogCaptureFixture) -> None:
    os.chown(page.path, 12345, -1)
    assert RecordReader.open(page.path.parent, A, CODEC.decode) is None
    assert "of user 12345, no private file of ours" in caplog.text


def test_the_registry_takes_no_page_for_an_entry(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = Registry(tmp_path / "home", "pond")
    assert first.enter(A.peer_id, A.incarnation).own.role is Role.FOUNDER
    page = RecordPage(first.folder, A, CODEC.encode)
    page.write(record(1))
    second = Registry(tmp_path / "home", "pond")
    assert [entry.peer_id for entry in second.enter(B.peer_id, B.incarnation).others] == [A.peer_id]
    assert not caplog.records
    page.close()
    page.remove()


WRITER = """
import os, sys
from itertools import count
from pathlib import Path
from p2p.host.acceptor_page import RecordPage
from tests.p2p.host.test_acceptor_page import A, CODEC, record

page = RecordPage(Path(sys.argv[1]), A, CODEC.encode)
for number in count(1):
    page.write(record(number, size=30_000))
    os.write(1, b"%d\\n" % number)
"""


@pytest.mark.parametrize("seed", range(5))
def test_what_a_killed_process_told_is_in_its_record(tmp_path: Path, seed: int) -> None:
    num_lines = random.Random(seed).randrange(1, 2000)
    with subprocess.Popen([sys.executable, "-c", WRITER, tmp_path], stdout=subprocess.PIPE, cwd=REPOSITORY) as child:
        assert child.stdout is not None
        lines = [child.stdout.readline()]
        reader = RecordReader.open(tmp_path, A, CODEC.decode)
        assert reader is not None
        assert child.poll() is None
        lines += [child.stdout.readline() for _ in range(num_lines)]
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
        lines += [line for line in child.stdout if line.endswith(b"\n")]
    told, left = int(lines[-1]), reader.read()
    reader.close()
    assert left is not None, reader.why
    assert left == record(left.promised.round, size=30_000)
    assert told <= left.promised.round <= told + 1
