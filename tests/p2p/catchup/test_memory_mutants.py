"""Each rule about memory that is prepared is removed in turn: a test of the rule then fails."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest

from p2p.catchup import rooms
from p2p.catchup.donor import Donor
from p2p.catchup.rooms import Rooms
from p2p.catchup.stream import Stream
from p2p.host import prefaulted_memory
from p2p.host.prefaulted_memory import Bytes, PrefaultedMemory
from tests.p2p.catchup import test_aside as aside
from tests.p2p.catchup import test_donor as donors
from tests.p2p.catchup import test_rooms as of_rooms
from tests.p2p.host import test_prefaulted_memory as of_memory
from tests.p2p.net.parcels import A
from tests.simulated.mutant import Mutant, mutant, without


@dataclass(frozen=True, slots=True)
class Missing:
    """A removed rule, and the test that detects it."""

    mutant: Mutant
    notices: Callable[[], object]


def _missing(notices: Callable[[], object], *patches: tuple[object, str, Any]) -> Missing:
    return Missing(mutant(*patches, breaks=""), notices)


def _nothing(*_: object, **__: object) -> None:
    pass


def _reaches_once_dropped(self: PrefaultedMemory, piece: Bytes) -> bool:
    return self._is_dropped.is_set() or REACHES(self, piece)


def _reaches_where_it_begins(self: PrefaultedMemory, piece: Bytes) -> bool:
    return REACHES(self, piece[:0])


def _reserve_the_same(self: PrefaultedMemory, num_bytes: int) -> Bytes:
    return self._block[:num_bytes] if num_bytes <= len(self._block) else np.empty(num_bytes, np.uint8)


def _reserve_beyond_the_end(self: PrefaultedMemory, num_bytes: int) -> Bytes:
    begin = self._num_taken
    self._num_taken += num_bytes
    return self._block[begin : begin + num_bytes]


@contextmanager
def _taken_for_ever(self: Rooms, observer: object = None) -> Iterator[object]:
    room, self._whole = self._whole, None
    yield room


def _take_ready_or_not(self: PrefaultedMemory, num_bytes: int) -> Bytes:
    return self.reserve(num_bytes)


def _due_before_it_is_whole(self: Stream, now: float, segment_bytes: int) -> Any:
    for parcel in self.parcels:
        object.__setattr__(parcel, "is_whole", None)
    return DUE(self, now, segment_bytes)


REACHES, DUE, BEGIN, ASK = PrefaultedMemory.reaches, Stream.due, Rooms.begin, Donor.ask

MUTANTS = {
    "a piece is used before it is touched": _missing(
        of_memory.test_what_is_not_touched_yet_is_not_reached, (PrefaultedMemory, "reaches", lambda self, piece: True)
    ),
    "a piece is used once its beginning is touched": _missing(
        of_memory.test_what_is_not_touched_yet_is_not_reached, (PrefaultedMemory, "reaches", _reaches_where_it_begins)
    ),
    "dropped memory is used while the thread still touches it": _missing(
        of_memory.test_what_is_not_touched_yet_is_not_reached, (PrefaultedMemory, "reaches", _reaches_once_dropped)
    ),
    "memory is taken before it is ready": _missing(
        of_memory.test_nobody_is_given_what_is_still_touched, (PrefaultedMemory, "take", _take_ready_or_not)
    ),
    "two pieces lie in one place": _missing(
        of_memory.test_pieces_are_aligned_and_nobody_else_s, (PrefaultedMemory, "reserve", _reserve_the_same)
    ),
    "pieces are cut where the block ends": _missing(
        of_memory.test_what_there_is_no_room_for_is_memory_of_its_own,
        (PrefaultedMemory, "reserve", _reserve_beyond_the_end),
    ),
    "pieces are not aligned": _missing(
        of_memory.test_pieces_are_aligned_and_nobody_else_s, (prefaulted_memory, "room_of", sum)
    ),
    "what is dropped is kept": _missing(
        of_memory.test_what_is_dropped_is_given_back_but_for_what_was_taken, (PrefaultedMemory, "drop", _nothing)
    ),
    "a state is copied before its memory is ready": _missing(
        of_rooms.test_who_has_no_seat_waits_until_memory_is_ready_and_is_given_a_later_step,
        (Rooms, "is_held", lambda self, now: False),
    ),
    "memory is waited for for ever": _missing(
        of_rooms.test_nobody_waits_for_memory_for_ever, (rooms, "LONGEST_S", 1e9)
    ),
    "the others do not hear of it before": _missing(
        of_rooms.test_others_hear_of_it_when_the_first_is_asked_and_copy_what_they_are_asked_for_later,
        (Rooms, "begin", lambda self, now, sizes: bool(BEGIN(self, now, sizes)) and False),
    ),
    "what is announced is not made ready": _missing(
        of_rooms.test_others_hear_of_it_when_the_first_is_asked_and_copy_what_they_are_asked_for_later,
        (Rooms, "expect", _nothing),
    ),
    "a state is copied while a step is exchanged": _missing(
        of_rooms.test_memory_that_is_ready_while_a_step_is_exchanged_is_for_the_next,
        (Donor, "begin_exchange", _nothing),
    ),
    "who has a seat waits for memory": _missing(
        of_rooms.test_who_has_a_seat_is_given_the_step_that_its_view_needs_at_once,
        (Donor, "ask", lambda self, member, step, *, has_seat: ASK(self, member, step, has_seat=False)),
    ),
    "the rest of what was taken is kept": _missing(
        of_rooms.test_who_has_no_seat_waits_until_memory_is_ready_and_is_given_a_later_step,
        (Rooms, "taken", _taken_for_ever),
    ),
    "memory that nobody waits for is kept": _missing(
        of_rooms.test_memory_that_nobody_waits_for_any_more_is_given_back, (Rooms, "expire", _nothing)
    ),
    "memory for a share is given back too soon": _missing(
        of_rooms.test_memory_that_nobody_waits_for_any_more_is_given_back, (rooms, "UNUSED_S", 1.0)
    ),
    "memory for a share outlives who announced it": _missing(
        partial(of_rooms.test_memory_for_a_share_is_given_back_when_the_first_or_the_observer_is_gone, A),
        (Rooms, "forget", _nothing),
    ),
    "what was announced before is kept": _missing(
        of_rooms.test_what_is_announced_again_is_for_the_last_who_says_so, (Rooms, "forget", _nothing)
    ),
    "a state is sent before it is copied": _missing(
        aside.test_nothing_is_sent_before_the_copy_is_made_and_what_is_sent_is_the_copy,
        (Stream, "due", _due_before_it_is_whole),
    ),
    "a state waits for the steps before it": _missing(
        donors.test_a_state_overtakes_the_steps_that_nothing_was_sent_of, (Stream, "overtake", _nothing)
    ),
}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same limits as in the tests that are called here."""
    for module in ("p2p.catchup.rooms", "p2p.catchup.observer"):
        monkeypatch.setattr(f"{module}.LEAST_BYTES", 1)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_rule_that_is_left_out_is_noticed(name: str) -> None:
    missing = MUTANTS[name]
    missing.notices()  # passes with the rule
    with without(missing.mutant), pytest.raises((AssertionError, StopIteration)):
        missing.notices()
