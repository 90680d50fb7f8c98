"""The flight recorder: a record is read completely or not at all."""

import struct
from itertools import count

import pytest

from p2p.telemetry.records import (
    NUM_RECORDS,
    RECORD_BYTES,
    RING_BYTES,
    How,
    Kind,
    Record,
    RecordRing,
    peer_number,
    read_ring,
)


def half(memory: bytearray) -> RecordRing:
    ticks = count(1000)
    return RecordRing(memoryview(memory), lambda: next(ticks))


def test_a_record_is_read_as_it_was_written() -> None:
    memory = bytearray(RING_BYTES)
    recorder = half(memory)
    recorder.note(Kind.COMMITTED, 7)
    recorder.note(Kind.GONE, peer=peer_number("00000000000000ab"), how=How.LAUNCHER)
    recorder.note(Kind.RECEIVED, 7, view=3, size=5, value=40.0)
    expected = [
        Record(1, 1000, Kind.COMMITTED, 0, 0, 7, 0, "", 0.0),
        Record(2, 1001, Kind.GONE, How.LAUNCHER, 0, -1, 0, "00000000000000ab", 0.0),
        Record(3, 1002, Kind.RECEIVED, 0, 5, 7, 3, "", 40.0),
    ]
    assert read_ring(memoryview(memory)) == expected == recorder.latest()


@pytest.mark.parametrize("number", [NUM_RECORDS - 1, NUM_RECORDS, NUM_RECORDS + 1, 3 * NUM_RECORDS + 5])
def test_the_last_records_are_kept_in_order(number: int) -> None:
    memory = bytearray(RING_BYTES)
    recorder = half(memory)
    for step in range(1, number + 1):
        recorder.note(Kind.COMMITTED, step)
    kept = [record.step for record in read_ring(memoryview(memory))]
    assert kept == list(range(max(1, number + 1 - NUM_RECORDS), number + 1))
    assert [record.step for record in recorder.latest(3)] == kept[-3:]


@pytest.mark.parametrize("num_before", [1, NUM_RECORDS + 1])
def test_a_record_that_was_cut_short_is_left_out(num_before: int) -> None:
    """The writer may be killed after any byte; bytes are stored in order."""
    memory = bytearray(RING_BYTES)
    recorder = half(memory)
    for step in range(num_before):
        recorder.note(Kind.COMMITTED, step)
    before, earlier = bytes(memory), read_ring(memoryview(memory))
    recorder.note(Kind.FINISHED, 123_456, view=9, peer=2**64 - 1, size=77, value=1.5)
    after, later = bytes(memory), read_ring(memoryview(memory))
    at = (num_before + 1) % NUM_RECORDS * RECORD_BYTES
    kept = [record for record in earlier if record in later]
    for length in range(1, RECORD_BYTES):
        cut = bytearray(before)
        cut[at : at + length] = after[at : at + length]
        expected = earlier if cut == before else later if cut == after else kept
        assert read_ring(memoryview(cut)) == expected, length
    assert len(later) == len(kept) + 1


def test_a_record_that_another_thread_is_about_to_write_is_not_taken_for_an_older_one() -> None:
    memory = bytearray(RING_BYTES)
    recorder = half(memory)
    for step in range(NUM_RECORDS + 1):
        recorder.note(Kind.COMMITTED, step)
    at = (NUM_RECORDS + 1) % NUM_RECORDS * RECORD_BYTES
    struct.pack_into("<Q", memory, at, 1)  # the old value
    assert [record.step for record in recorder.latest(2)] == [NUM_RECORDS - 1]
