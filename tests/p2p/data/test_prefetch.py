"""Batches are the requested ones, whatever their loading raises."""

import sys
from itertools import count
from pathlib import Path
from threading import Event
from types import FrameType
from typing import Any

import pytest

from p2p.data.prefetch import Prefetch

ASKED = [[0, 1], [2, 3], [4, 5], [6, 7]]


class Numbers:
    """A dataset whose sample 3 is special."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        if index == 3:
            self.special()
        return index

    def special(self) -> None:
        raise RuntimeError("special")


class Hangs(Numbers):
    """Sample 3 hangs in the first process that reads it."""

    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def special(self) -> None:
        if not self._marker.exists():
            self._marker.touch()
            Event().wait()


class Stops(Numbers):
    def special(self) -> None:
        next(iter(()))


class Interrupted(Numbers):
    """Ctrl-C comes while sample 3 is read for the first time."""

    has_come = False

    def special(self) -> None:
        if not self.has_come:
            self.has_come = True
            raise KeyboardInterrupt


def load_all(prefetch: Prefetch) -> list[Any]:
    """The batches of `ASKED`, or their errors."""
    found: list[Any] = []
    for number, wanted in enumerate(ASKED):
        try:
            found.append(prefetch.get([wanted], iter(ASKED[number + 1 :])))
        except RuntimeError as error:
            found.append(str(error))
    prefetch.close()
    return found


def test_a_batch_that_takes_too_long_is_no_other_batch(tmp_path: Path) -> None:
    prefetch = Prefetch(Hangs(tmp_path / "hung"), {"num_workers": 1, "timeout": 2, "collate_fn": list})
    assert load_all(prefetch) == [[0, 1], "DataLoader timed out after 2 seconds", [4, 5], [6, 7]]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_dataset_may_raise_what_ends_an_iterator(num_workers: int) -> None:
    prefetch = Prefetch(Stops(), {"num_workers": num_workers, "collate_fn": list})
    assert load_all(prefetch) == [[0, 1], "the dataset raised StopIteration", [4, 5], [6, 7]]


def test_a_batch_asked_for_again_after_an_interruption_is_no_other_batch() -> None:
    prefetch = Prefetch(Interrupted(), {"collate_fn": list})
    assert prefetch.get([[0, 1]], iter(ASKED[1:])) == [0, 1]
    with pytest.raises(KeyboardInterrupt):
        prefetch.get([[2, 3]], iter(ASKED[2:]))
    assert load_all(prefetch) == ASKED


class Alarm(Exception):
    """Raised by a handler of the script's own."""


def get_interrupted(prefetch: Prefetch, number: int, kind: type[BaseException]) -> bool:
    """Raise `kind` in the call or return of that number in the request for the first batch. Returns whether it was."""
    left = number

    def look(frame: FrameType, event: str, _: object) -> None:
        nonlocal left
        left -= frame.f_code.co_filename == Prefetch.get.__code__.co_filename
        if left < 0:
            sys.setprofile(None)
            raise kind

    try:
        sys.setprofile(look)
        prefetch.get([ASKED[0]], iter(ASKED[1:]))
    except kind:
        return True
    finally:
        sys.setprofile(None)
    return False


@pytest.mark.parametrize("kind", [Alarm, KeyboardInterrupt])
def test_a_handler_may_raise_anywhere_in_a_request(kind: type[BaseException]) -> None:
    for number in count():
        prefetch = Prefetch(Numbers(), {"num_workers": 0, "collate_fn": list})
        if not get_interrupted(prefetch, number, kind):
            break
        assert load_all(prefetch)[0] == ASKED[0], number
    assert number > 20
