"""Calls of p2p/cuda.py to torch, as far as they can be tested without a GPU."""

from typing import Any

import pytest
import torch
from torch.cuda._sanitizer import EventHandler  # noqa: TID251 - it needs no device

from p2p.cuda import CudaMark

FETCHING, STORING, EVENT, FLAT = 1, 2, 3, 4096


class TracedEvent:
    """A finished event, which reports to the sanitizer what torch reports: not its `query`."""

    def __init__(self, handler: EventHandler) -> None:
        self._handler = handler
        handler._handle_event_creation(EVENT)

    def record(self, stream: int) -> None:
        self._handler._handle_event_record(EVENT, stream)

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        self._handler._handle_event_synchronization(EVENT)


@pytest.mark.parametrize("is_looked_at", [True, False])
def test_a_copy_that_was_seen_to_be_over_is_over_for_the_sanitizer_of_torch_too(
    is_looked_at: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = EventHandler()
    monkeypatch.setattr("torch.cuda.Event", lambda blocking: TracedEvent(handler))
    for each in (FETCHING, STORING):
        handler._handle_stream_creation(each)
    assert not handler._handle_kernel_launch(FETCHING, {FLAT}, set(), set(), "copy_", {FLAT: []})
    stream: Any = FETCHING
    mark = CudaMark(stream, torch.ones(1))
    if is_looked_at:
        assert mark.is_over()
    errors = handler._handle_kernel_launch(STORING, set(), {FLAT}, set(), "copy_", {FLAT: []})
    assert len(errors) == (not is_looked_at)
